"""pool.run(): a program of MALT on all ranks; and how ranks and the pool's process talk."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import malt

Floats = npt.NDArray[np.float64]


def test_program_of_malt_runs_on_all_ranks(pool: malt.Pool) -> None:
    def train(x: Floats, *, rounds: int) -> tuple[int, float, Floats]:
        malt.init()
        mine = malt.shard(x)
        vector = malt.vector(np.zeros(3), graph=malt.ALL)
        for _ in range(rounds):
            vector.array[:] = len(mine)
            vector.scatter()
            vector.gather(malt.SUM, staleness=0)
        return malt.rank(), float(malt.allreduce(mine.sum(), malt.SUM)), vector.array

    x = np.arange(1000.0)
    for _ in range(2):  # a rank may be in one job after the other
        results = pool.run(train, x, rounds=3)
        assert [rank for rank, _, _ in results] == [0, 1]
        for _, total, array in results:
            assert total == x.sum()
            assert array.tolist() == [1000.0] * 3


def test_run_works_without_a_job(pool: malt.Pool) -> None:
    assert pool.run(lambda: None) == [None, None]
    first, second = pool.run(os.getpid)
    assert len({first, second, os.getpid()}) == 3


def test_arguments_of_run_cannot_be_written_to_and_results_can(pool: malt.Pool) -> None:
    def work(x: Floats) -> tuple[bool, Floats]:
        return x.flags.writeable, x * 2

    x = np.arange(10_000.0)
    for may_write, doubled in pool.run(work, x):
        assert not may_write
        doubled += 1
        np.testing.assert_array_equal(doubled, 2 * x + 1)


def test_malt_in_a_sum_is_a_job_of_one_rank(pool: malt.Pool) -> None:
    def size(theta: None, x: Floats) -> int:
        with malt.init():
            return malt.size()

    assert pool.sum(size, None, pool.share(np.zeros(4), chunks=4)) == 4


def test_output_appears_in_the_callers_with_the_rank(
    pool: malt.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk() -> None:
        malt.init()
        print(f"to out from {malt.rank()}")
        print("half a line", end="", file=sys.stderr)
        malt.finalize()

    pool.run(talk)
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[0] to out from 0", "[1] to out from 1"]
    assert sorted(err.splitlines()) == ["[0] half a line", "[1] half a line"]


def test_much_output_does_not_block(pool: malt.Pool, capsys: pytest.CaptureFixture[str]) -> None:
    def talk(theta: None, x: Floats) -> int:
        for line in range(5000):
            print(f"{x[0]:.0f} {line} " + "x" * 80)
        return 1

    assert pool.sum(talk, None, pool.share(np.arange(4.0), chunks=4)) == 4
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20_000
    assert {line[:4] for line in lines} <= {"[0] ", "[1] "}


def test_ranks_draw_different_random_numbers(pool: malt.Pool) -> None:
    first, second = pool.run(lambda: np.random.random())
    assert first != second


def test_each_rank_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    with malt.Pool(1) as pool:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        cores = str(len(os.sched_getaffinity(0)))
        assert pool.run(lambda: [os.environ[name] for name in names]) == [[cores, "7"]]


def test_several_threads_take_turns(pool: malt.Pool) -> None:
    data = pool.share(np.arange(100.0), chunks=4)
    totals: list[Any] = []

    def call(factor: float) -> None:
        for _ in range(20):
            totals.append(pool.sum(lambda theta, x: theta * x.sum(), factor, data) / factor)

    threads = [threading.Thread(target=call, args=[factor]) for factor in (1.0, 2.0, 4.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [4950.0] * 60


def test_pool_outlives_the_thread_that_made_it() -> None:
    made: list[malt.Pool] = []
    thread = threading.Thread(target=lambda: made.append(malt.Pool(2)))
    thread.start()
    thread.join()
    with made[0] as pool:
        assert pool.run(lambda: 1) == [1, 1]
