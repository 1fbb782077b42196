"""One rank of a job under `slow_network.py`: trains until pictures are told apart well enough.

    malt run -n 2 slow_network_worker.py --goal 0.8 --out FILE.json

With each codec in turn; rank 0 writes the file.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch_worker import network, sgd

import malt

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import fashion_mnist  # after the path

CODECS = {
    "none": None,
    "float16": malt.FLOAT16,
    "bfloat16": malt.BFLOAT16,
    "int8": malt.INT8,
    "top-k 0.01": malt.TOP_K(0.01),
}
LOOK = 20  # steps from one look at the test pictures to the next
MOST_STEPS = 2000


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--goal", type=float, required=True, help="accuracy at which it ends")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def share_gradients(model, codec):
    """The vector in whose memory the gradients lie from now on."""
    parameters = list(model.parameters())
    vector = malt.vector(sum(p.numel() for p in parameters), policy="queue", codec=codec)
    parts = torch.from_numpy(vector.array).split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    return vector


def pictures():
    """This rank's, and those of the test."""
    data = fashion_mnist.load()
    own = (malt.shard(data.x_train), malt.shard(data.y_train))
    return [tuple(map(torch.tensor, pair)) for pair in (own, (data.x_test, data.y_test))]


def train(options, codec, data):
    """Seconds, without those of looking, and steps until all ranks reach the goal."""
    (x, y), (x_test, y_test) = data
    torch.manual_seed(options.seed)
    model = network(256)
    optimizer = sgd(model)
    vector = share_gradients(model, CODECS[codec])
    there = malt.vector(np.zeros(1))  # ranks that have reached it
    order = torch.Generator().manual_seed(options.seed * malt.size() + malt.rank())
    seconds, steps = 0.0, 0
    while there.array[0] < malt.size() and steps < MOST_STEPS:
        malt.barrier()
        start = time.perf_counter()
        for _ in range(LOOK):
            rows = torch.randint(len(x), (options.batch,), generator=order)
            vector.array[:] = 0
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            vector.scatter()
            vector.gather(malt.AVG, staleness=0)
            optimizer.step()
        malt.barrier()
        seconds, steps = seconds + time.perf_counter() - start, steps + LOOK
        with torch.inference_mode():
            right = (model(x_test).argmax(1) == y_test).float().mean()
        there.array[0] = float(right) >= options.goal
        there.allreduce(malt.SUM)
    if there.array[0] < malt.size():
        raise SystemExit(
            f"{codec}: accuracy is {right:.4f} after {steps} steps, below {options.goal}"
        )
    return {"seconds": seconds, "steps": steps, "bytes": vector.stats().bytes_out / steps}


def main():
    options = parse()
    torch.set_num_threads(1)
    malt.init()
    data = pictures()
    result = {codec: train(options, codec, data) for codec in CODECS}
    if malt.rank() == 0:
        options.out.write_text(json.dumps(result))
    malt.barrier()


if __name__ == "__main__":
    main()
