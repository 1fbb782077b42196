"""One rank of a job under `pipeline.py`, started by `malt run`.

    malt run -n 2 pipeline_worker.py --out FOLDER/result.json --hidden 256 --rows 128

Rank 0 writes the seconds a step, of blocks in which the ways take turns: `malt.torch.Pipeline`,
torch.distributed.pipelining over gloo, and the undivided network on rank 0 alone, with one thread
and with two.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import malt

RATE = 0.01


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=256, help="of each layer")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=128, help="of a batch")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block, about")
    parser.add_argument("--blocks", type=int, default=5)
    return parser.parse_args()


def network(options):
    torch.manual_seed(0)
    pairs = [(nn.Linear(options.hidden, options.hidden), nn.ReLU()) for _ in range(options.layers)]
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def ours(options, x, y):
    pipe = malt.torch.Pipeline(
        network(options), microbatches=options.microbatches, schedule=options.schedule
    )
    optimizer = sgd(pipe.parameters())

    def step():
        loss = pipe.step(x, y, nn.functional.mse_loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def theirs(options, x, y):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{options.out}.gloo",
        rank=malt.rank(),
        world_size=malt.size(),
    )
    whole, half = network(options), options.layers  # a Linear and a ReLU a layer
    module = whole[:half] if malt.rank() == 0 else whole[half:]
    stage = PipelineStage(module, malt.rank(), 2, torch.device("cpu"))
    kind = Schedule1F1B if options.schedule == "1f1b" else ScheduleGPipe
    schedule = kind(stage, options.microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = sgd(module.parameters())

    def step():
        losses = []
        if malt.rank() == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else None

    return step


def alone(options, x, y, threads):
    """The undivided network, on rank 0."""
    model = network(options)
    optimizer = sgd(model.parameters())

    def step():
        if malt.rank() == 0:
            torch.set_num_threads(threads)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.set_num_threads(1)

    return step


def time_block(step, count):
    malt.barrier()
    start = time.perf_counter()
    for _ in range(count):
        step()
    malt.barrier()
    return (time.perf_counter() - start) / count


def main():
    options = parse()
    torch.set_num_threads(1)
    malt.init()
    x, y = torch.randn(2, options.rows, options.hidden, generator=torch.Generator().manual_seed(1))
    ways = {
        "malt": ours(options, x, y),
        "torch": theirs(options, x, y),
        "alone": alone(options, x, y, 1),
        "alone, 2 threads": alone(options, x, y, 2),
    }
    losses = [ways["malt"](), ways["torch"]()]  # torch's looks at shapes in the first step
    if malt.rank() == 1:
        assert abs(losses[0] - losses[1]) < 1e-5 * abs(losses[1]), losses
    first = malt.allreduce(time_block(ways["torch"], 3), max)
    count = max(3, int(options.seconds / first))
    seconds = {name: [] for name in ways}
    for block in range(options.blocks + 1):  # the first one warms up
        for name, step in ways.items():
            taken = time_block(step, count)
            if block:
                seconds[name].append(taken)
    if malt.rank() == 0:
        options.out.write_text(json.dumps(seconds))
    malt.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
