"""Ranks that are forked from a process which is in no job."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import malt
from malt._pool import forked


def children() -> set[str]:
    path = f"/proc/self/task/{os.getpid()}/children"
    with open(path) as file:
        return set(file.read().split())


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    before = children(), len(os.listdir("/proc/self/fd"))
    yield
    assert (children(), len(os.listdir("/proc/self/fd"))) == before


def test_ranks_read_the_memory_of_their_parent_and_average() -> None:
    rows = np.arange(12.0).reshape(3, 4)
    shared = np.frombuffer(mmap.mmap(-1, 4 * 8))

    def work() -> Mapping[str, Any]:
        w = rows[malt.rank()].copy()
        malt.vector(w).allreduce(malt.AVG)
        if malt.rank() == 0:
            shared[:] = w
        return {"rank": malt.rank(), "size": malt.size()}

    reports = forked.run(3, work)
    assert reports == [{"rank": rank, "size": 3} for rank in range(3)]
    assert np.array_equal(shared, rows.mean(0))
    with pytest.raises(malt.ConfigError, match="in no job"):
        malt.rank()


@pytest.mark.parametrize(
    ("kind", "raised"),
    [(ValueError, ValueError), (malt.ConfigError, malt.ConfigError), (KeyError, malt.Error)],
)
def test_exception_of_one_rank_ends_all_and_is_raised_here(
    kind: type[Exception], raised: type[Exception]
) -> None:
    def work() -> Mapping[str, Any]:
        if malt.rank() == 1:
            raise kind("no good")
        time.sleep(60)
        return {}

    with pytest.raises(raised, match="no good") as caught:
        forked.run(2, work)
    assert str(caught.value.__cause__).startswith("on rank 1:\nTraceback")


def test_a_rank_that_is_killed_is_named() -> None:
    def work() -> Mapping[str, Any]:
        if malt.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        return {}

    with pytest.raises(malt.PeerError, match=r"rank 0 died of SIGKILL") as caught:
        forked.run(2, work)
    assert caught.value.ranks == (0,)


def test_an_exception_of_watch_ends_the_ranks() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        forked.run(2, lambda: time.sleep(60) or {}, interrupt)


def test_a_rank_that_stays_stopped_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALT_SILENCE", "0.3")

    def work() -> Mapping[str, Any]:
        if malt.rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return {}

    with pytest.raises(malt.PeerError, match=r"rank 1 \(process \d+\) has been stopped") as caught:
        forked.run(2, work)
    assert caught.value.ranks == (1,)


def test_another_may_wait_for_the_ranks() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert forked.run(2, lambda: {"rank": malt.rank()}) == [{"rank": 0}, {"rank": 1}]
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_an_interrupt_in_the_middle_of_a_fork_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    process, forks, fork = os.getpid(), [], os.fork

    def interrupted() -> int:
        forks.append(fork())
        os.kill(os.getpid(), signal.SIGINT)  # a terminal's goes to the ranks too
        return forks[-1]

    monkeypatch.setattr(os, "fork", interrupted)

    def run() -> None:
        try:
            forked.run(2, dict)
        finally:
            if os.getpid() != process:
                os._exit(1)  # or the rank would run all tests that are left

    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(forks) == 2


def nested() -> Any:
    return forked.run(2, lambda: {"size": malt.size()})


def test_a_program_of_one_rank_may_start_ranks() -> None:
    with malt.Pool(1) as pool:
        assert pool.run(nested) == [[{"size": 2}] * 2]
