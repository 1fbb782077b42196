"""v.frontier(), v.wait_for() and v.on_frontier(), and malt.types.Frontier over several vectors."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import refused, run_job, start_job

import malt

MAKE = """
from collections import Counter
def make(kind, name, graph=malt.ALL):
    if kind == "dense":
        return malt.vector(np.zeros(2), name=name, graph=graph, policy="queue")
    return malt.sparse_vector(4, capacity=4, name=name, graph=graph, policy="queue")
"""


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("graph", ["ALL", "RING", "ONE_PEER"])
def test_after_a_wait_for_an_iteration_all_its_updates_are_here(
    tmp_path: Path, kind: str, graph: str
) -> None:
    body = """
malt.init(timeout=60)
v = make(kind, "v", GRAPHS[graph])
fronts, found, called = [v.frontier()], [], []
due, folded = Counter(), Counter()              # updates, by sender
for step in range(1, 9):
    v.on_frontier(step, lambda t: called.append((t, v.frontier() >= t)))
    v.scatter()
    v.wait_for(step)
    fronts.append(v.frontier())
    due.update(GRAPHS[graph].in_(rank, size, step - 1))
    folded.update(v.gather(malt.SUM).ranks)
    found.append(due <= folded)
malt.barrier()
tell(fronts=fronts, found=found, called=called, end=v.frontier())
"""
    result = run_job(tmp_path, 4, MAKE + body, kind=kind, graph=graph)
    for told in result.told:
        assert told["fronts"] == sorted(told["fronts"])
        assert all(front >= step for step, front in enumerate(told["fronts"]))
        assert all(told["found"])
        assert told["called"] == [(step, True) for step in range(1, 9)]
        assert told["end"] == 8


def test_the_frontier_is_that_of_the_rank_that_is_furthest_behind(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
v = make("dense", "v")
called = []
v.on_frontier(1, called.append)
if rank != 2:
    v.scatter()
malt.barrier()
tell(before=v.frontier(), early=list(called), error=error_of(v.wait_for, 1, timeout=0.2))
malt.barrier()
if rank == 2:
    v.scatter()
v.wait_for(1)
tell(after=v.frontier(), late=called)
malt.barrier()
"""
    result = run_job(tmp_path, 3, MAKE + body)
    assert result.each("before") == [0, 0, 1]
    assert result.each("early") == [[], [], [1]]
    for told in result.told[:2]:
        error = told["error"]
        assert (error.kind, error.ranks) == ("TimeoutError", (2,))
        assert error.says("rank 2 did not scatter iteration 1", "0.2")
    assert result.each("after") == [1, 1, 1]
    assert result.each("late") == [[1]] * 3


def test_a_frontier_of_two_vectors_is_the_lower_one(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
v, w = make("dense", "v"), make("sparse", "w")
both, called = malt.types.Frontier([v, w]), []
both.on_frontier(1, called.append)
v.scatter()
v.wait_for(1)
malt.barrier()
tell(before=(v.frontier(), both.frontier(), list(called)))
malt.barrier()
w.scatter()
both.wait_for(1)
tell(after=(both.frontier(), called))
tell(none=error_of(malt.types.Frontier, []), wrong=error_of(malt.types.Frontier, [3]))
tell(below=[error_of(v.wait_for, -1), error_of(v.on_frontier, -1, print)])
malt.barrier()
"""
    result = run_job(tmp_path, 2, MAKE + body)
    assert result.each("before") == [(1, 0, [])] * 2
    assert result.each("after") == [(1, [1])] * 2
    for told in result.told:
        assert refused(told["none"], "at least one vector")
        assert refused(told["wrong"], "[3]")
        assert all(refused(error, "-1") for error in told["below"])


class SlowVector:
    """Its frontier comes after 50 ms."""

    def frontier(self) -> int:
        return 0

    def wait_for(self, _: int, *, timeout: float) -> None:
        self.limit = timeout
        time.sleep(0.05)


def test_the_limit_of_a_wait_for_several_vectors_is_for_all_together() -> None:
    vectors: list[Any] = [SlowVector() for _ in range(3)]
    first, second, third = vectors
    malt.types.Frontier(vectors).wait_for(1, timeout=30)
    assert first.limit <= 30
    assert second.limit <= 30 - 0.05
    assert third.limit <= 30 - 0.1
    malt.types.Frontier(vectors).wait_for(1, timeout=0.02)
    assert (second.limit, third.limit) == (0, 0)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_wait_goes_on_without_a_rank_that_dies(tmp_path: Path, transport: str) -> None:
    body = """
malt.init(timeout=60)
v = make("dense", "v")
tell(pid=os.getpid())
if rank == 2:
    await_flag("never")
v.scatter()
tell(ready=True)
v.wait_for(1)
tell(front=v.frontier())
"""
    environ = {"MALT_TRANSPORT": transport}
    with start_job(tmp_path, 3, MAKE + body, "--keep-going", environ=environ) as job:
        job.await_told("ready", ranks=[0, 1])
        [pid] = job.await_told("pid", ranks=[2])
        os.kill(pid, signal.SIGKILL)
        assert job.await_told("front", ranks=[0, 1]) == [1, 1]
        job.finish()


def test_the_frontier_does_not_go_back_when_a_rank_rejoins(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
v = malt.vector(np.zeros(2))
fronts = []
tell(pid=os.getpid(), restarts=malt.jobs.restarts())
while v.iteration < goal():
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    v.wait_for(v.iteration)
    fronts.append((v.iteration, v.frontier()))
    tell(fronts=fronts, at=v.iteration)
"""
    with start_job(tmp_path, 3, body, "--respawn=1") as job:
        job.kill_and_await_return(1)
        job.set_goal(5)
        result = job.finish()
    assert result.code == 0, result.output
    for told in result.told:
        fronts = [front for _, front in told["fronts"]]
        assert fronts == sorted(fronts)
        assert all(front >= iteration for iteration, front in told["fronts"])


def test_the_frontier_does_not_go_back_to_a_new_in_neighbour_that_is_behind(tmp_path: Path) -> None:
    # Rank 3 hears ranks 1 and 2, and when rank 2 is dead ranks 0 and 1.
    body = """
malt.init(timeout=60)
w = np.zeros(2)
v = malt.vector(w, graph=malt.EXPONENTIAL)
for _ in range(1 if rank == 0 else 5):
    v.scatter()
tell(pid=os.getpid(), ready=True)
if rank == 3:
    v.wait_for(5)
    tell(before=v.frontier())
    while malt.epoch() == 0:
        time.sleep(0.01)
    v.scatter()
    tell(after=v.frontier())
await_flag("end")
"""
    with start_job(tmp_path, 4, body, "--keep-going") as job:
        job.await_told("ready")
        assert job.await_told("before", ranks=[3]) == [5]
        os.kill(job.told(2)["pid"], signal.SIGKILL)
        assert job.await_told("after", ranks=[3]) == [5]
        job.raise_flag("end")
        job.finish()
