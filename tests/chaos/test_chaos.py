"""Training goes on while ranks are killed and stopped at times from a seed, and nothing is left.

MALT_SEEDS=1000 pytest tests/chaos/test_chaos.py      more of it
MALT_SEED=17 pytest tests/chaos/test_chaos.py         this schedule alone, once more
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from jobs import Running, in_dev_shm, processes_in, run_job, start_job

SEED = os.environ.get("MALT_SEED")
FAULT_SEEDS, KILL_SEEDS = (
    [int(SEED)] if SEED else list(range(int(os.environ.get("MALT_SEEDS", usual))))
    for usual in (4, 8)
)
SILENCE = 2.0
PAUSE = 0.3  # a stop that the others wait for
ABSENCE = 2 * SILENCE  # one after which they have gone on

# Least squares without noise: whoever survives, there is one solution.
TRAINING = """
malt.init(timeout=60, silence=silence)
data = np.random.default_rng(rank)
x, solution = data.normal(size=(200, 10)), np.arange(1.0, 11.0)
y = x @ solution
w = np.zeros(10)
v = malt.vector(w, policy=policy, graph=GRAPHS[graph])
tell(pid=os.getpid())
await_flag("go")
try:
    for step in range(200):
        w -= 0.2 * x.T @ (x @ w - y) / len(y)
        v.scatter()
        v.gather(malt.AVG, staleness=staleness)
        time.sleep(0.005)
    while not flag_is_up("over"):
        v.gather(malt.AVG)  # and hears if it has been left out
        time.sleep(0.01)
    malt.barrier()
    tell(error=float(np.abs(w - solution).max()), alive=malt.alive(), stats=counters(v))
    malt.barrier()
except malt.PeerError as error:
    tell(out=str(error))
"""


class Fault(NamedTuple):
    at: float  # seconds from the first step on
    rank: int
    stopped: float  # for so long; 0: killed


class Schedule(NamedTuple):
    size: int
    transport: str
    settings: dict[str, object]
    faults: list[Fault]

    @property
    def survivors(self) -> tuple[int, ...]:
        lost = {fault.rank for fault in self.faults if fault.stopped != PAUSE}
        return tuple(rank for rank in range(self.size) if rank not in lost)


def schedule_of(seed: int) -> Schedule:
    """Fewer than half are lost: who is merely silent is left out by a majority."""
    draw = random.Random(seed)
    size = draw.randint(4, 8)
    ranks = draw.sample(range(size), draw.randint(1, (size - 1) // 2))
    lengths = [0, 0, PAUSE, ABSENCE]
    faults = [Fault(draw.uniform(0, 1), rank, draw.choice(lengths)) for rank in ranks]
    # A queue's ranks wait for who has trained to its end and gathers no more, unless in step.
    policy, staleness = draw.choice([("latest", 0), ("latest", 2), ("latest", None), ("queue", 0)])
    settings = {
        "silence": SILENCE,
        "graph": draw.choice(["ALL", "HALTON"]),
        "policy": policy,
        "staleness": staleness,
    }
    return Schedule(size, draw.choice(["shm", "tcp"]), settings, sorted(faults))


def inflict(job: Running, pids: list[int], faults: list[Fault]) -> None:
    start = time.monotonic()
    events = [(f.at, f.rank, signal.SIGSTOP if f.stopped else signal.SIGKILL) for f in faults]
    events += [(f.at + f.stopped, f.rank, signal.SIGCONT) for f in faults if f.stopped]
    for at, rank, number in sorted(events):
        time.sleep(max(start + at - time.monotonic(), 0))
        os.kill(pids[rank], number)
    # While the others are there to learn it from.
    job.await_told("out", ranks=[f.rank for f in faults if f.stopped == ABSENCE])
    job.raise_flag("over")


def assert_nothing_is_left(directory: Path, in_shm_before: set[str]) -> None:
    deadline = time.monotonic() + 15
    while left := processes_in(directory):
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.01)
    assert in_dev_shm() <= in_shm_before


@pytest.mark.parametrize("seed", FAULT_SEEDS)
def test_survivors_train_to_the_solution(tmp_path: Path, seed: int) -> None:
    schedule, before = schedule_of(seed), in_dev_shm()
    header = "".join(f"{name} = {value!r}\n" for name, value in schedule.settings.items())
    environ = {"MALT_TRANSPORT": schedule.transport}
    script = header + TRAINING
    with start_job(tmp_path, schedule.size, script, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        job.raise_flag("go")
        inflict(job, pids, schedule.faults)
        result = job.finish()
    assert_nothing_is_left(tmp_path, before)
    shown = f"{schedule}\n{result.output}"
    for rank in schedule.survivors:
        told = result.told[rank]
        assert "error" in told, f"rank {rank} did not finish: {told.get('out')}\n{shown}"
        assert told["error"] < 0.01, shown
        assert told["alive"] == schedule.survivors, shown
        stats = told["stats"]
        ends = ("folded", "overwritten", "rejected", "pending", "to_dead")
        assert stats["sent"] == sum(stats[name] for name in ends), shown


def test_jobs_killed_at_any_time_leave_nothing_and_the_next_one_starts(tmp_path: Path) -> None:
    """All of a job's processes at once, or its launcher alone, which its guard then sees."""
    before = in_dev_shm()
    script = """
malt.init()
v = malt.vector(np.ones(1000))
while True:
    v.scatter(); v.gather(staleness=0)
"""
    for seed in KILL_SEEDS:
        draw = random.Random(seed)
        directory = tmp_path / str(seed)
        with start_job(directory, 4, script) as job:
            time.sleep(draw.uniform(0, 1.5))
            whole = processes_in(directory) if draw.random() < 0.5 else set()
            for pid in whole | {job.launcher.pid}:
                with contextlib.suppress(ProcessLookupError):  # the guard was faster
                    os.kill(pid, signal.SIGKILL)
            job.launcher.wait()
            assert_nothing_is_left(directory, before)
    run_job(tmp_path / "next", 4, "malt.init()\nmalt.barrier()")
    print(f"row {len(KILL_SEEDS)} jobs of 4 killed: 0 processes, 0 files left, the next starts")
