"""Vectors on GPUs (tests/fake_cuda) of two hosts of two ranks, of which the last one dies.

malt run --nnodes 2 --node-rank NODE --rendezvous HOST:PORT -n 2 --keep-going gpu.py

FAKE_CUDA_COPY_DELAY_US is 4000, so that a copy has a middle.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import malt

sys.path.append(str(Path(__file__).parents[1] / "fake_cuda"))

from device_array import DeviceArray, on_gpu

VICTIM = 3
SENT = 10  # updates of each sender in a queue

malt.init()
rank, size = malt.rank(), malt.size()


def check_route(v: malt.Vector) -> None:
    assert v.slots.startswith("host: the ranks do not all share memory"), v.slots
    for peer, route in v.stats().routes.items():
        assert route.transport == ("shm" if peer // 2 == rank // 2 else "verbs"), (peer, route)


def exchange(count: int) -> None:
    values = np.arange(count) % 1000 * 4.0
    x = DeviceArray(count, np.float32)
    v = malt.vector(x)
    check_route(v)
    total = size * values + 4 * sum(range(size))
    for fold, expected in ((malt.SUM, total), (malt.AVG, total / size), (malt.SUM, total)):
        x.set(values + 4 * rank)
        v.scatter()
        assert v.gather(fold, staleness=0).count == size - 1
        assert (x.get() == expected).all(), (count, fold, x.get()[:3], expected[:3])
    v.allreduce(malt.SUM)
    assert (x.get() == size * total).all(), (count, x.get()[:3], total[:3])
    malt.barrier()


for count in (1, 70_000):  # the longer one takes two writes of the adapter
    exchange(count)

w = np.random.default_rng(rank).normal(size=5003)
x = on_gpu(w)
for v in (malt.vector(w, codec=malt.INT8), malt.vector(x, codec=malt.INT8)):
    v.scatter()
    v.gather(malt.AVG, staleness=0)
assert x.get().tobytes() == w.tobytes()

x = on_gpu(np.zeros(1000, np.int64))
queue = malt.vector(x, policy="queue", depth=2)
folded = 0
for step in range(SENT if rank else 0):
    x.set(1000 * rank + step)
    queue.scatter(malt.STAR)
while rank == 0 and folded < SENT * (size - 1):
    folded += queue.gather(malt.SUM).count
if rank == 0:
    total = sum(1000 * r + step for r in range(1, size) for step in range(SENT))
    assert (x.get() == total).all(), (x.get()[0], total)
malt.barrier()

x = DeviceArray(5 * 16384, np.int32)
v = malt.vector(x, depth=2)
for step in range(6):
    x.fill(10 + rank)
    if (rank, step) == (VICTIM, 3):  # the copy takes five times the delay
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
    v.scatter()
    g = v.gather(malt.SUM, staleness=0)
    expected = 0x01010101 * (10 + rank + sum(10 + r for r in g.ranks))
    assert set(x.get().tolist()) == {expected}, (step, g.ranks, x.get()[:3], expected)
while malt.alive() != (0, 1, 2):
    time.sleep(0.01)
x = on_gpu(np.full(1000, 10.0**rank))
malt.vector(x, name="made by the survivors").allreduce(malt.SUM)
assert set(x.get().tolist()) == {111.0}, set(x.get().tolist())
malt.barrier()
print(f"measured: rank {rank}: folds of GPUs over verbs exact, before and after a death in a copy")
