"""One rank of a job under `pipeline.py`, started by `malt run`.

    malt run -n 2 pipeline_worker.py --out FOLDER/result.json --cases 256,128,4 64,64,8

A case is the units of each layer, the rows of a batch, and the micro-batches. Rank 0 writes, by
case, the seconds a step of blocks in which the ways take turns: `malt.torch.Pipeline`,
torch.distributed.pipelining over gloo, and the undivided network on rank 0 alone.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import malt

RATE = 0.01
LAYERS = 8


class Case(NamedTuple):
    hidden: int
    rows: int
    microbatches: int


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", required=True)
    parser.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block, about")
    parser.add_argument("--blocks", type=int, default=5)
    return parser.parse_args()


def network(case):
    torch.manual_seed(0)
    pairs = [(nn.Linear(case.hidden, case.hidden), nn.ReLU()) for _ in range(LAYERS)]
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def ours(case, schedule, x, y):
    pipe = malt.torch.Pipeline(network(case), microbatches=case.microbatches, schedule=schedule)
    optimizer = sgd(pipe.parameters())

    def step():
        loss = pipe.step(x, y, nn.functional.mse_loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, pipe.close


def theirs(case, schedule, x, y):
    whole = network(case)  # a Linear and a ReLU a layer
    module = whole[:LAYERS] if malt.rank() == 0 else whole[LAYERS:]
    stage = PipelineStage(module, malt.rank(), 2, torch.device("cpu"))
    kind = Schedule1F1B if schedule == "1f1b" else ScheduleGPipe
    running = kind(stage, case.microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = sgd(module.parameters())

    def step():
        losses = []
        if malt.rank() == 0:
            running.step(x)
        else:
            running.step(target=y, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else None

    return step


def alone(case, x, y):
    """The undivided network, on rank 0."""
    model = network(case)
    optimizer = sgd(model.parameters())

    def step():
        if malt.rank() == 0:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def time_block(step, count):
    malt.barrier()
    start = time.perf_counter()
    for _ in range(count):
        step()
    malt.barrier()
    return (time.perf_counter() - start) / count


def measure(case, options):
    x, y = torch.randn(2, case.rows, case.hidden, generator=torch.Generator().manual_seed(1))
    own, close = ours(case, options.schedule, x, y)
    ways = {
        "malt": own,
        "torch": theirs(case, options.schedule, x, y),
        "alone": alone(case, x, y),
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
    close()
    return seconds


def main():
    options = parse()
    torch.set_num_threads(1)
    malt.init()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{options.out}.gloo",
        rank=malt.rank(),
        world_size=malt.size(),
    )
    found = {each: measure(Case(*map(int, each.split(","))), options) for each in options.cases}
    if malt.rank() == 0:
        options.out.write_text(json.dumps(found))
    malt.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
