"""Witnesses, over TCP, where each rank is a host of its own: they prove deaths, and end in time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from jobs import PROMPT, exists, run_job


@pytest.mark.parametrize("killed", [(2,), (0,), (0, 1), (0, 2, 3)], ids=str)
def test_deaths_on_other_hosts_are_proved_whoever_is_left(
    tmp_path: Path, killed: tuple[int, ...]
) -> None:
    """Silence would tell of them after 90 s, and too few would stop."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60, silence=120, transport="tcp")
malt.barrier()
if rank in killed: os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
while set(malt.alive()) & set(killed) or malt.epoch() == 0: time.sleep(0.001)
tell(seconds=time.monotonic() - start, alive=malt.alive())
malt.barrier()
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        killed=killed,
    )
    left = tuple(rank for rank in range(4) if rank not in killed)
    for rank in left:
        told = result.told[rank]
        print(f"row proof: rank {rank} of {left} knew after {told['seconds'] * 1000:.1f} ms")
        assert told["alive"] == left
        assert told["seconds"] < PROMPT


# The witnesses of a job's ranks, which their launcher has adopted.
WITNESSES = """
def witnesses():
    launcher = os.getppid()
    found = []
    for pid in open(f"/proc/{launcher}/task/{launcher}/children").read().split():
        try: name = open(f"/proc/{pid}/comm").read().strip()
        except OSError: continue
        if name == "malt-witness": found.append(int(pid))
    return found
malt.init(timeout=60, silence=600, transport="tcp")
malt.barrier()
tell(witnesses=witnesses())
malt.barrier()
"""


def test_witnesses_of_ranks_that_leave_have_ended_with_them(tmp_path: Path) -> None:
    """Their launcher, which goes on, has then to reap them."""
    script = (
        WITNESSES
        + """
malt.finalize()
meet("out")
deadline = time.monotonic() + seconds
while witnesses() and time.monotonic() < deadline: time.sleep(0.001)
tell(left=witnesses())
meet("looked")
"""
    )
    result = run_job(tmp_path, 3, script, seconds=PROMPT)
    for told in result.told:
        assert (len(told["witnesses"]), told["left"]) == (3, [])


def test_witnesses_that_nobody_asks_end_with_the_launcher(tmp_path: Path) -> None:
    script = WITNESSES + "os.kill(os.getpid(), signal.SIGKILL)"
    result = run_job(tmp_path, 3, script, "--keep-going", code=128 + signal.SIGKILL)
    left = {pid for told in result.told for pid in told["witnesses"]}
    assert len(left) == 3
    deadline = time.monotonic() + PROMPT
    while any(map(exists, left)):
        assert time.monotonic() < deadline, f"witnesses {left} are left"
        time.sleep(0.01)
