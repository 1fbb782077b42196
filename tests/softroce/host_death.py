"""Two hosts of two ranks each, of which the second dies in the midst, kernel and all.

malt run --nnodes 2 --node-rank NODE --rendezvous HOST:PORT -n 2 --keep-going host_death.py
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import malt

FIRST_HOST = (0, 1)
LIMIT = 9.0  # seconds: five of silence, the time to agree, and the emulation

malt.init()
rank = malt.rank()
w = np.zeros(10_000)
v = malt.vector(w)
for peer, route in v.stats().routes.items():
    same_host = (peer in FIRST_HOST) == (rank in FIRST_HOST)
    assert route.transport == ("shm" if same_host else "verbs"), (peer, route)
slowest = 0.0
for t in range(60):
    if t == 30 and rank == 2:
        Path("/proc/sysrq-trigger").write_text("b")
    w[:] = 1
    start = time.monotonic()
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    slowest = max(slowest, time.monotonic() - start)
assert w[0] == len(FIRST_HOST), w[0]
assert tuple(malt.alive()) == FIRST_HOST, malt.alive()
malt.barrier()
assert slowest < LIMIT, slowest
print(f"measured: death of a host: the longest round of rank {rank} took {slowest:.2f} s")
