"""One job over all three transports: host 2 has no adapter, and nobody reaches host 3's.

malt run --nnodes 4 --node-rank NODE --rendezvous HOST:PORT -n RANKS mixed.py
"""

from __future__ import annotations

from collections import Counter

import numpy as np

import malt

ROUNDS = 50
HOSTS = (0, 0, 1, 1, 2, 3)  # by rank

malt.init()
rank, size = malt.rank(), malt.size()
w = np.zeros(1000)
v = malt.vector(w)


def expected(peer: int) -> str:
    own, its = HOSTS[rank], HOSTS[peer]
    return "shm" if own == its else "verbs" if {own, its} == {0, 1} else "tcp"


def reason(peer: int) -> str:
    hosts = {HOSTS[rank], HOSTS[peer]}
    if 2 in hosts:
        return "uses no adapter"
    return "gets no write of 12288 bytes through" if 3 in hosts else ""


routes = v.stats().routes
for peer, route in routes.items():
    assert route.transport == expected(peer), (peer, route)
    assert reason(peer) in route.why, (peer, route)
for t in range(1, ROUNDS + 1):
    w[:] = rank + t
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    assert (w == sum(r + t for r in range(size))).all(), (t, w[0])
malt.barrier()
if rank == 0:
    counted = Counter(route.transport for route in routes.values())
    print(f"measured: rank 0 of {size} over {dict(counted)}: {ROUNDS} sums, all exact")
