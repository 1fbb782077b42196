"""Every call that waits, while the RDMA network to the peer is cut (over TCP: tests/hosts).

malt run -n 2 cut_calls.py

As root, each rank with an adapter of its own, rank 1 with rxe2 of bed.sh.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import malt

sys.path.append(str(Path(__file__).parents[1] / "harness"))

from calls import CALLS
from jobs import await_flag, error_of, raise_flag

LIMIT = 4.0  # seconds; the ranks join within it, too
SILENCE = 60.0  # is not reached
SLACK = 3.0  # for the emulation, on a busy machine
# In a job each: after a collective step that others may still come to there is no other.
JOBS = [["scatter", "gather", "allreduce"], ["barrier"], ["vector"], ["save", "finalize"]]
assert [name for names in JOBS for name in names] == list(CALLS)

rank = int(os.environ["MALT_RANK"])


def connect(*how: str) -> None:
    subprocess.run(["ip", "link", "set", "p2", *how], check=True)


def check(name: str) -> None:
    start = time.monotonic()
    error = error_of(eval(CALLS[name]))
    seconds = time.monotonic() - start
    said = "" if error is None else f"{error.kind} "
    print(f"measured: {name}, cut off, verbs: {said}after {seconds:.2f} s")
    assert seconds < LIMIT + SLACK
    if name == "finalize":  # gives up, and leaves
        assert error is None, error
    else:
        assert error is not None
        assert (error.kind, error.ranks) == ("TimeoutError", (1,)), error
        assert error.says("rank 1"), error


for number, names in enumerate(JOBS):
    raise_flag(f"ready-{number}-{rank}")  # where one is slow to start, joining shall not be
    await_flag(f"ready-{number}-{1 - rank}")
    malt.init(timeout=LIMIT, silence=SILENCE)
    latest = malt.vector(np.ones(3))
    queue = malt.vector(np.ones(3), policy="queue", depth=1)
    assert latest.stats().routes[1 - rank].transport == "verbs"
    malt.barrier()
    if rank == 0:
        queue.scatter()
        latest.scatter()
        connect("nomaster")
        for name in names:
            check(name)
        connect("master", "br0")
        raise_flag(f"over-{number}")
    else:
        await_flag(f"over-{number}")
    malt.finalize()
