"""Ranks, the process that forks them, or the pool's own process are killed: nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from jobs import exists

import malt

Ints = npt.NDArray[np.int64]

BITS = np.left_shift(1, np.arange(40), dtype=np.int64)
ALL = 2**40 - 1
LIMIT = 60.0  # seconds


def kill_self_once(folder: Path, x: Ints) -> int:
    try:
        (folder / "killed").mkdir()
    except FileExistsError:
        return int(x.sum())
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_chunks_of_a_killed_rank_are_done_once(ranks: int, tmp_path: Path) -> None:
    with malt.Pool(ranks) as pool:
        data = pool.share(BITS, chunks=40)
        assert pool.sum(kill_self_once, tmp_path, data) == ALL
        assert pool.stats().restarts == 1
        assert len(pool.run(os.getpid)) == ranks  # it is there again


def stop_once(folder: Path, x: Ints) -> int:
    with contextlib.suppress(FileExistsError):
        (folder / "stopped").mkdir()
        os.kill(os.getpid(), signal.SIGSTOP)
    return int(x.sum())


def test_chunks_of_a_rank_that_stays_stopped_are_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALT_SILENCE", "0.3")
    with malt.Pool(2) as pool:
        data = pool.share(BITS, chunks=40)
        with pytest.warns(RuntimeWarning, match=r"rank \d .*stopped for 0.3 s.*MALT_SILENCE"):
            assert pool.sum(stop_once, tmp_path, data) == ALL
        assert pool.stats().restarts == 1


def test_late_answer_to_a_call_that_was_given_up_is_in_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does a rank that works for that call take chunks of the next one."""
    monkeypatch.setattr("malt._pool.local.crew._KILL_SECONDS", 1.0)

    def work_on(folder: Path, x: Ints) -> int:
        while not (folder / "next").exists():
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(0.1)
        return 1 << 50

    with malt.Pool(2) as pool:
        data = pool.share(BITS, chunks=40)
        nursery = pool._calls._crew._nursery  # type: ignore[union-attr]
        assert nursery is not None

        def give_up() -> None:
            nursery.send_signal(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.5, give_up)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pool.sum(work_on, tmp_path, data)
        (tmp_path / "next").touch()
        assert pool.sum(lambda _, x: int(x.sum()), None, data) == ALL


def test_long_results_of_ranks_that_lived_stay_whole(tmp_path: Path) -> None:
    """The others answer twice: what they answered first is still to be added up."""

    def work(folder: Path, x: Ints) -> Ints:
        return np.full(10_000, kill_self_once(folder, x) if x[0] == BITS[-1] else x.sum())

    with malt.Pool(2) as pool:
        data = pool.share(BITS, chunks=40)
        np.testing.assert_array_equal(pool.sum(work, tmp_path, data), np.full(10_000, ALL))


def test_function_that_always_ends_its_rank_is_an_error() -> None:
    def exit_in(theta: None, x: Ints) -> int:
        if x[0] == BITS[7]:
            os._exit(3)
        return 1

    with malt.Pool(2) as pool:
        data = pool.share(BITS, chunks=40)
        with pytest.raises(malt.PeerError, match=r"3 ranks have ended in chunk 7.* exited with co"):
            pool.sum(exit_in, None, data)
        assert pool.sum(lambda theta, x: int(x.sum()), None, data) == ALL


def test_killed_rank_in_run_is_named_and_the_others_are_stopped() -> None:
    def program() -> None:
        malt.init()
        if malt.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            malt.barrier()

    with malt.Pool(3) as pool:
        with pytest.raises(malt.PeerError, match=r"rank 1 died of SIGKILL in pool.run\(\)") as lost:
            pool.run(program)
        assert lost.value.ranks == (1,)
        assert pool.run(lambda: 1) == [1, 1, 1]
        assert pool.stats().restarts == 1


def test_pool_goes_on_when_the_process_that_forks_is_killed(tmp_path: Path) -> None:
    def kill_parent_once(folder: Path, x: Ints) -> int:
        try:
            (folder / "killed").mkdir()
        except FileExistsError:
            return int(x.sum())
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(LIMIT)
        raise AssertionError

    with malt.Pool(2) as pool:
        data = pool.share(BITS, chunks=40)
        before = pool.run(os.getpid)
        assert pool.sum(kill_parent_once, tmp_path, data) == ALL
        assert pool.sum(lambda theta, x: int(x.sum()), None, data) == ALL
        assert not any(exists(process) for process in before)


def await_end_of(processes: Sequence[int]) -> None:
    deadline = time.monotonic() + LIMIT
    while any(exists(process) for process in processes):
        assert time.monotonic() < deadline, [each for each in processes if exists(each)]
        time.sleep(0.01)


PROGRAM = """
import os, subprocess, sys, time
import malt

def busy():
    child = subprocess.Popen(["sleep", "1000"])
    grandchild = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"],
                                  stdout=subprocess.PIPE, text=True)
    print(os.getpid(), os.getppid(), child.pid, grandchild.pid, grandchild.stdout.readline())
    {then}

pool = malt.Pool(2)
{before}
pool.run(busy)
{end}
"""


@contextlib.contextmanager
def started(
    then: str, end: str = "", before: str = ""
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A program, and the ids of all processes that its ranks have started."""
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM.format(then=then, end=end, before=before))],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    with program:
        try:
            found: list[int] = []
            ranks: set[str] = set()
            while len(ranks) < 2:
                words = program.stdout.readline().split()
                assert words, "the program has ended"
                ranks.add(words[0])
                found += map(int, words[1:])
            yield program, found
        finally:
            program.kill()


def test_nothing_is_left_when_the_pools_process_is_killed() -> None:
    with started("time.sleep(1000)") as (program, processes):
        assert all(exists(process) for process in processes)
        program.kill()
        program.wait()
        await_end_of(processes)


def test_ranks_end_with_the_pools_process_also_if_a_child_of_it_goes_on(tmp_path: Path) -> None:
    """The child has the pool's sockets open, so their end is not what the ranks must wait for."""
    file = tmp_path / "child"
    fork = f"child = os.fork()\nif child == 0:\n    time.sleep({2 * LIMIT})\n    os._exit(0)\n"
    fork += f"open({str(file)!r}, 'w').write(str(child))"
    with started("time.sleep(1000)", before=fork) as (program, processes):
        child = int(file.read_text())
        try:
            program.kill()
            program.wait()
            await_end_of(processes)
            assert exists(child)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "pool.close()"])
def test_nothing_is_left_after_the_end(end: str) -> None:
    with started("pass", end) as (program, processes):
        assert program.wait(LIMIT) == 0
        await_end_of(processes)


def test_child_of_a_killed_rank_ends_with_it() -> None:
    with malt.Pool(1) as pool:
        ((rank, child),) = pool.run(lambda: (os.getpid(), subprocess.Popen(["sleep", "999"]).pid))
        assert exists(child)
        os.kill(rank, signal.SIGKILL)
        await_end_of([child])


def test_closed_pool_leaves_no_descriptor_and_no_process() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with malt.Pool(2) as pool:  # what is opened once
        pool.run(os.getpid)
    before = descriptors()
    with malt.Pool(2) as pool:
        data = pool.share(np.arange(1000.0))
        pool.sum(lambda theta, x: x.sum(), None, data)
        processes = pool.run(os.getpid) + pool.run(os.getppid)
    assert descriptors() == before
    assert not any(exists(process) for process in processes)
