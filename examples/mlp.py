"""A PyTorch network on Fashion-MNIST: local SGD on several ranks beside one.

    malt run -n 4 examples/mlp.py                        # average the models every 32 steps
    malt run -n 4 examples/mlp.py --exchange gradient    # one step of all ranks together
    malt run -n 4 examples/mlp.py --exchange diloco      # an outer step with Nesterov's momentum
    python examples/mlp.py                               # one rank: the serial loop
    python examples/mlp.py --compare 4                   # 1 rank and 4, side by side

Needs PyTorch and SciPy: pip install "malt-sgd[examples,torch]". The data are fetched once (see
fashion_mnist.py). The serial loop becomes parallel by `parallel()` and one line in `train()`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

import fashion_mnist
import torch
from torch import nn

import malt

CORES = len(os.sched_getaffinity(0))


def parse_knobs() -> tuple[argparse.Namespace, list[str]]:
    """The knobs, and those among the arguments that a run to compare is given too."""
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--compare", type=int, metavar="RANKS", help="run on 1 rank, and on so many")
    p = argparse.ArgumentParser(
        parents=[both],
        description="A network on Fashion-MNIST, on the ranks of a job.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--exchange", choices=["average", "gradient", "diloco"], default="average")
    p.add_argument("--every", type=int, default=32, help="steps from one average to the next")
    p.add_argument("--epochs", type=int, default=8, help="passes over all pictures")
    p.add_argument("--batch", type=int, default=64, help="pictures in one rank's step")
    p.add_argument("--hidden", type=int, default=256, help="units in each of two layers")
    p.add_argument("--rate", type=float, default=0.05, help="first learning rate")
    p.add_argument("--seed", type=int, default=0)
    knobs = p.parse_args()
    if min(knobs.every, knobs.epochs, knobs.batch, knobs.hidden) < 1 or (knobs.compare or 1) < 1:
        p.error("--every, --epochs, --batch, --hidden and --compare start at 1")
    return knobs, both.parse_known_args()[1]


def network(hidden: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(784, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
        *(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
        nn.Linear(hidden, 10),
    )


def parallel(
    model: nn.Module, optimizer: torch.optim.Optimizer, knobs: argparse.Namespace
) -> tuple[torch.optim.Optimizer, malt.torch.Average | None]:
    """Return the optimizer to step with, and the average to step after it, or None."""
    if knobs.exchange == "gradient":
        return malt.torch.GradientExchange(model, optimizer), None
    if knobs.exchange == "diloco":
        return malt.torch.DiLoCo(model, optimizer, every=knobs.every), None
    return optimizer, malt.torch.average(model, knobs.every)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, knobs: argparse.Namespace) -> None:
    """Train on this rank's pictures. All ranks have equally many: they wait for one another."""
    steps = len(x) // knobs.batch
    optimizer = torch.optim.SGD(model.parameters(), lr=knobs.rate, momentum=0.9)
    optimizer, average = parallel(model, optimizer, knobs)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, knobs.epochs * steps)
    order = torch.Generator().manual_seed(knobs.seed + malt.rank())
    for _ in range(knobs.epochs):
        rows = torch.randperm(len(x), generator=order)
        for batch in rows[: steps * knobs.batch].split(knobs.batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
            if average:
                average.step()
    if average:
        average.allreduce()
    elif isinstance(optimizer, malt.torch.DiLoCo) and knobs.epochs * steps % knobs.every:
        optimizer.outer_step()  # there are steps since the last outer step


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    with torch.inference_mode():
        return float((model(x).argmax(1) == y).float().mean())


def compare(arguments: list[str], ranks: int) -> None:
    """Run this program on one rank and on `ranks`, and print both results."""
    print("ranks  pictures/s  test accuracy")
    for count in (1, ranks):
        launch = [sys.executable, "-m", "malt", "run", "-n", str(count), __file__, *arguments]
        done = subprocess.run(launch, stdout=subprocess.PIPE, text=True, check=True)
        speed, right = re.findall(r"([\d,]+) pictures/s, test accuracy ([\d.]+%)", done.stdout)[0]
        print(f"{count:5}  {speed:>10}  {right:>13}", flush=True)


def main() -> None:
    knobs, arguments = parse_knobs()
    if knobs.compare:
        compare(arguments, knobs.compare)
        return
    try:
        data = fashion_mnist.load()
    except fashion_mnist.DataError as error:
        sys.exit(str(error))
    malt.init()
    torch.set_num_threads(max(1, CORES // malt.size()))
    torch.manual_seed(knobs.seed)
    share = len(data.x_train) // malt.size() * malt.size()  # as many pictures for each rank
    x = torch.tensor(malt.shard(data.x_train[:share]))
    y = torch.tensor(malt.shard(data.y_train[:share]))
    model = network(knobs.hidden)
    malt.barrier()
    start = time.perf_counter()
    train(model, x, y, knobs)
    malt.barrier()
    seconds = time.perf_counter() - start
    if malt.rank() == 0:
        right = accuracy(model, torch.tensor(data.x_test), torch.tensor(data.y_test))
        speed = knobs.epochs * share / seconds
        print(f"{seconds:.1f} s, {speed:,.0f} pictures/s, test accuracy {100 * right:.2f}%")
    malt.finalize()


if __name__ == "__main__":
    main()
