"""Ctrl-C in a call: the work stops, and the pool can be used again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from interrupts import Moments, interrupts

import malt


@pytest.fixture(autouse=True)
def _ctrl_c_is_pythons() -> Iterator[None]:
    """Ray Train, which other tests of this process use, leaves a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def pool() -> Iterator[malt.Pool]:
    with malt.Pool(2) as pool:
        yield pool


def test_interrupted_sum_stops_at_once_and_the_pool_goes_on(pool: malt.Pool) -> None:
    data = pool.share(np.arange(8), chunks=8)
    target = os.getpid()

    def interrupt(theta: None, x: npt.NDArray[np.int64]) -> None:
        if x[0] == 0:  # once: the second Ctrl-C would kill the ranks
            os.kill(target, signal.SIGINT)
        time.sleep(1000)

    ranks = pool.run(os.getpid)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            pool.sum(interrupt, None, data)
        assert pool.sum(lambda theta, x: int(x[0]), None, data) == 28
    assert pool.run(os.getpid) == ranks


def test_interrupted_run_stops_also_in_a_wait_of_malt(pool: malt.Pool) -> None:
    target = os.getpid()

    def wait_for_ever() -> None:
        malt.init()
        vector = malt.vector(np.zeros(3))
        if malt.rank() == 0:
            os.kill(target, signal.SIGINT)
            while True:
                time.sleep(1)
        vector.gather(staleness=0)

    with pytest.raises(KeyboardInterrupt):
        pool.run(wait_for_ever)
    assert pool.run(lambda: 1) == [1, 1]
    assert pool.stats().restarts == 0


def test_function_that_ignores_the_interrupt_is_killed(pool: malt.Pool) -> None:
    target = os.getpid()

    def go_on(theta: None, x: object) -> None:
        kill = [os.kill]
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                if kill:
                    kill.pop()(target, signal.SIGINT)  # in here, where the interrupt is ignored
                time.sleep(1000)

    before = pool.stats().restarts
    data = pool.share(np.arange(1), chunks=1)
    with pytest.raises(KeyboardInterrupt):
        pool.sum(go_on, None, data)
    assert pool.stats().restarts > before  # of one rank, or of all (crew.py says when)
    assert pool.sum(lambda theta, x: len(x), None, data) == 1


def test_late_signal_does_not_reach_the_next_call(pool: malt.Pool) -> None:
    """A rank gets SIGINT at any time, from anybody: only a call that is given up ends by it."""

    def signal_self(theta: None, x: object) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return 1

    data = pool.share(np.arange(8), chunks=8)
    assert pool.sum(signal_self, None, data) == 8
    for rank in pool.run(os.getpid):
        os.kill(rank, signal.SIGINT)
    assert pool.sum(signal_self, None, data) == 8


def test_call_first_stops_ranks_that_an_interrupt_has_left_at_work(
    pool: malt.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pool.share(np.arange(8), chunks=8)

    def fail(theta: None, x: npt.NDArray[np.int64]) -> int:
        if x[0] == 0:
            raise ValueError
        time.sleep(0.1)
        return 1000

    def interrupt() -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(pool._calls, "_stop_all", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pool.sum(fail, None, data)
        assert pool.sum(lambda theta, x: int(x[0]), None, data) == 28


def test_interrupt_at_any_moment_leaves_the_pool_usable_and_no_data_behind(pool: malt.Pool) -> None:
    calls = 0

    def sum_of_new_data() -> int:
        nonlocal calls
        calls += 1
        first = calls
        data = pool.share(np.arange(first, first + 4), chunks=4)
        total: int = pool.sum(lambda theta, x: int(x[0]) - first, None, data)
        return total

    for _ in interrupts(sum_of_new_data, ["calls", "store", "summing", "pool"]):
        assert sum_of_new_data() == 6
    assert len(pool._calls.store.blocks) <= 2
    assert len(pool._calls.store._place_of) <= 8


# A Rendezvous that is interrupted before its block begins is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_at_any_moment_of_run_leaves_the_ranks_usable(pool: malt.Pool) -> None:
    argument = np.zeros(10_000)  # too long for a message
    for at in range(1, 400, 3):
        moments = Moments(at, ["calls", "store"])
        with contextlib.suppress(KeyboardInterrupt):
            moments.run(lambda: pool.run(len, argument))
        assert pool.run(len, argument) == [10_000] * 2
        if not moments.where:
            break
    assert not moments.where
    assert not pool._calls.store.blocks


def test_interrupted_close_can_be_made_again() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    for at in range(1, 100, 9):
        before = children.read_text()
        pool = malt.Pool(1)
        moments = Moments(at, ["pool", "calls", "crew"])
        with contextlib.suppress(KeyboardInterrupt):
            moments.run(pool.close)
        pool.close()
        assert children.read_text() == before
        if not moments.where:
            break
    assert not moments.where
