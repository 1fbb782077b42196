"""One rank of a job under `torch_exchange.py`, started by `malt run`.

    malt run -n 2 torch_worker.py step --out FOLDER --staleness 0     # the cost of a step
    malt run -n 2 torch_worker.py train --out FOLDER --way malt       # or ddp, or plain

Rank 0 writes FOLDER/result.json.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

import malt

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import fashion_mnist  # after the path

RATE, MOMENTUM = 0.05, 0.9
EXCHANGES = 8  # a block of steps


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["step", "train"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--way", choices=["malt", "ddp", "plain"], default="malt")
    parser.add_argument(
        "--staleness", type=lambda text: None if text == "none" else int(text), default=0
    )
    parser.add_argument("--every", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def network(hidden):
    return nn.Sequential(
        *(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()),
        nn.Linear(hidden, 10),
    )


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def time_steps(options):
    """Seconds a step until all ranks have made theirs, plain and with an exchange, of blocks in
    turns; also this rank's processor time."""
    x = torch.randn(options.batch, 784)
    y = torch.randint(10, (options.batch,))
    plain, averaged = network(options.hidden), network(options.hidden)
    average = malt.torch.average(averaged, options.every, staleness=options.staleness)
    optimizers = {"plain": sgd(plain), "averaged": sgd(averaged)}
    seconds = {"plain": [], "averaged": []}
    processor_seconds = {"plain": [], "averaged": []}
    count = EXCHANGES * options.every
    for block in range(options.blocks + 1):  # the first one warms up
        for name, model in (("plain", plain), ("averaged", averaged)):
            malt.barrier()
            start, processor_start = time.perf_counter(), time.process_time()
            for _ in range(count):
                step(model, optimizers[name], x, y)
                if model is averaged:
                    average.step()
            processor = time.process_time() - processor_start
            malt.barrier()  # plain ranks wait for one another too, though only here
            if block:
                seconds[name].append((time.perf_counter() - start) / count)
                processor_seconds[name].append(processor / count)
    return {
        "seconds": seconds,
        "processor_seconds": processor_seconds,
        "parameters": sum(p.numel() for p in plain.parameters()),
    }


def train(options):
    """Examples a second of all ranks together, and the accuracy on the test pictures at the end."""
    data = fashion_mnist.load()
    share = len(data.x_train) // malt.size() * malt.size()
    x = torch.tensor(malt.shard(data.x_train[:share]))
    y = torch.tensor(malt.shard(data.y_train[:share]))
    torch.manual_seed(options.seed)
    model = network(options.hidden)
    optimizer, trained, average = sgd(model), model, None
    if options.way == "ddp":
        meeting = f"file://{options.out}.gloo"
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group(
            "gloo", init_method=meeting, rank=malt.rank(), world_size=malt.size()
        )
        trained = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif options.way == "malt":
        average = malt.torch.average(model, options.every, staleness=options.staleness)
    steps = len(x) // options.batch
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, options.epochs * steps)
    order = torch.Generator().manual_seed(options.seed * malt.size() + malt.rank())
    malt.barrier()
    start = time.perf_counter()
    for _ in range(options.epochs):
        rows = torch.randperm(len(x), generator=order)[: steps * options.batch]
        for batch in rows.split(options.batch):
            step(trained, optimizer, x[batch], y[batch])
            schedule.step()
            if average:
                average.step()
    if average:
        average.allreduce()
    malt.barrier()
    seconds = time.perf_counter() - start
    with torch.inference_mode():
        found = model(torch.tensor(data.x_test)).argmax(1)
    if options.way == "ddp":
        distributed.destroy_process_group()
    return {
        "examples_per_second": options.epochs * steps * options.batch * malt.size() / seconds,
        "accuracy": float((found == torch.tensor(data.y_test)).float().mean()),
    }


def main():
    options = parse()
    torch.set_num_threads(1)
    malt.init()
    result = time_steps(options) if options.what == "step" else train(options)
    if malt.rank() == 0:
        options.out.write_text(json.dumps(result))
    malt.barrier()


if __name__ == "__main__":
    main()
