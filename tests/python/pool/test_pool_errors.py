"""Misuse of a pool, and exceptions on ranks: errors name what is wrong, the pool goes on."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import malt

Floats = npt.NDArray[np.float64]


def total(theta: Any, x: Floats) -> float:
    return float(x.sum())


class StrangeError(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def test_exception_arrives_as_itself_with_the_ranks_traceback(pool: malt.Pool) -> None:
    class OwnError(ValueError):
        pass

    def fail(theta: None, x: Floats) -> float:
        if x[0] == 3:
            raise OwnError("row 3", 3)
        return 0.0

    data = pool.share(np.arange(8.0), chunks=8)
    with pytest.raises(OwnError, match="row 3") as caught:
        pool.sum(fail, None, data)
    assert caught.value.args == ("row 3", 3)
    shown = "".join(traceback.format_exception(caught.value))
    assert "on rank " in shown
    assert f"{__file__}" in shown
    assert 'raise OwnError("row 3", 3)' in shown
    assert "malt/_pool/local/worker.py" not in shown
    assert pool.sum(total, None, data) == 28


def test_exception_that_cannot_be_sent_arrives_in_words(pool: malt.Pool) -> None:
    def fail(theta: None, x: Floats) -> float:
        raise StrangeError(3, 4)

    with pytest.raises(malt.Error, match=r"rank [01]: .*StrangeError: 3 and 4"):
        pool.sum(fail, None, pool.share(np.arange(2.0), chunks=2))


def test_exception_without_a_text_ends_the_call_and_no_rank(pool: malt.Pool) -> None:
    class MuteError(Exception):
        def __init__(self, one: int, other: int) -> None:  # so it cannot be loaded either
            super().__init__()

        def __str__(self) -> str:
            raise ValueError("no text")

    def fail(theta: None, x: Floats) -> float:
        raise MuteError(1, 2)

    with pytest.raises(
        malt.Error, match=r"rank [01]: .*MuteError: \(it has no text: .* ValueError\)"
    ):
        pool.sum(fail, None, pool.share(np.arange(2.0), chunks=2))
    assert pool.stats().restarts == 0


def test_exit_on_a_rank_is_an_error(pool: malt.Pool) -> None:
    def fail(theta: None, x: Floats) -> None:
        sys.exit(3)

    data = pool.share(np.arange(2.0), chunks=2)
    with pytest.raises(malt.Error, match=r"rank [01]: SystemExit: 3"):
        pool.sum(fail, None, data)
    assert pool.stats().restarts == 0


def test_failure_in_run_stops_the_others_and_names_the_cause(pool: malt.Pool) -> None:
    def fail() -> None:
        malt.init()
        if malt.rank() == 1:
            raise LookupError("no such thing")
        malt.barrier()

    for _ in range(3):
        with pytest.raises(LookupError, match="no such thing"):
            pool.run(fail)

    def fail_and_hang() -> None:
        malt.init()
        if malt.rank() == 1:
            raise LookupError("no such thing")
        threading.Event().wait()

    with pytest.raises(LookupError, match="no such thing"):
        pool.run(fail_and_hang)
    assert pool.run(lambda: 1) == [1, 1]
    assert pool.stats().restarts == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda pool: pool.share(), "got nothing"),
        (lambda pool: pool.share(np.zeros((0, 3))), "no rows"),
        (lambda pool: pool.share(np.float64(3)), "argument 1 is of numpy.float64"),
        (lambda pool: pool.share([1], {1: 2}), "argument 2 is of builtins.dict"),
        (lambda pool: pool.share(np.zeros(3), np.zeros(4)), "argument 1 has 3 rows and argument 2"),
        (lambda pool: pool.share(np.zeros(3), chunks=4), r"chunks=4\): 3 rows .* 1 to 3 chunks"),
        (lambda pool: pool.share(np.zeros(3), chunks=0), r"chunks=0\)"),
        (lambda pool: pool.share(np.zeros(3), chunks=True), r"chunks=True\)"),
        (lambda pool: pool.share(np.zeros(9999), chunks=1025), "1 to 1024 chunks"),
        (lambda pool: pool.sum(total, None, np.zeros(3)), "data of numpy.ndarray; give it what"),
    ],
)
def test_misuse_is_a_config_error(
    pool: malt.Pool, call: Callable[[malt.Pool], object], text: str
) -> None:
    with pytest.raises(malt.ConfigError, match=text):
        call(pool)


def test_results_that_cannot_be_added_name_the_chunks(pool: malt.Pool) -> None:
    data = pool.share(np.arange(5.0), chunks=2)
    with pytest.raises(malt.ConfigError, match=r"chunk 0 .* chunk 1 .* shapes are \(2,\) and \(3,"):
        pool.sum(lambda theta, x: x, None, data)
    for kinds in ("ab", ([1], [1, 2]), ({}, 3), (None, 1), ((1,), [1])):
        with pytest.raises(malt.ConfigError, match="cannot be added"):
            pool.sum(lambda kinds, x: kinds[int(x[0] > 0)], kinds, data)


def test_data_of_another_pool_is_refused(pool: malt.Pool) -> None:
    with malt.Pool(1) as other:
        data = other.share(np.zeros(3))
        with pytest.raises(malt.ConfigError, match="another pool"):
            pool.sum(total, None, data)


def test_variable_that_cannot_be_pickled_is_named(pool: malt.Pool) -> None:
    lock = threading.Lock()

    def locked(theta: None, x: Floats) -> float:
        with lock:
            return 0.0

    data = pool.share(np.zeros(3))
    with pytest.raises(malt.ConfigError, match=r"locked cannot be sent .* variable 'lock' is of"):
        pool.sum(locked, None, data)
    with pytest.raises(malt.ConfigError, match="variable 'lock'"):
        pool.run(locked, None, None)
    with pytest.raises(malt.ConfigError, match=r"argument theta cannot be sent .*lock"):
        pool.sum(total, {"a": lock}, data)
    with pytest.raises(malt.ConfigError, match=r"argument 2 cannot be sent .*lock"):
        pool.run(total, None, lock)


def test_result_that_cannot_be_pickled_is_an_error_of_the_rank(pool: malt.Pool) -> None:
    with pytest.raises(malt.ConfigError, match=r"result of type lock cannot be sent .*pickle"):
        pool.run(threading.Lock)


def test_writing_to_a_chunk_or_theta_is_an_error(pool: malt.Pool) -> None:
    def write(theta: Floats, x: Floats) -> None:
        (theta if theta[0] else x)[0] = 1

    data = pool.share(np.zeros(100_000), chunks=2)
    for theta in (np.zeros(3), np.ones(3), np.ones(100_000)):
        with pytest.raises(ValueError, match="read-only"):
            pool.sum(write, theta, data)


def test_impossible_numbers_of_ranks() -> None:
    for ranks in (0, -1, True, 1.5, "2", 243):
        with pytest.raises(malt.ConfigError, match="a pool has 1 to 242 ranks"):
            malt.Pool(ranks)  # type: ignore[arg-type]
    most = 64 * len(os.sched_getaffinity(0))
    if most < 242:
        with pytest.raises(malt.ConfigError, match="too many for"):
            malt.Pool(most + 1)


def test_closed_pool_says_so() -> None:
    pool = malt.Pool(1)
    data = pool.share(np.zeros(3))
    pool.close()
    pool.close()
    assert "closed" in repr(pool)
    for call in (
        lambda: pool.share(np.zeros(3)),
        lambda: pool.sum(total, None, data),
        lambda: pool.run(total),
    ):
        with pytest.raises(malt.ConfigError, match="the pool is closed"):
            call()


def test_forked_child_cannot_use_the_pool(pool: malt.Pool) -> None:
    """And its end leaves the pool as it is."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pool.share(np.zeros(3))
        except malt.ConfigError as error:
            os.write(write_end, str(error).encode())
            pool.close()
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with open(read_end) as pipe:
        assert "was forked from the pool's" in pipe.read()
    assert pool.sum(total, None, pool.share(np.ones(3))) == 3


def test_call_in_a_call_of_the_same_pool(pool: malt.Pool) -> None:
    """What is shown runs in the thread of the call."""

    class Output:
        text = ""

        def write(self, text: str) -> None:
            with pytest.raises(malt.ConfigError, match="inside another call"):
                pool.run(lambda: 1)
            self.text += text

        def flush(self) -> None:
            pass

    before, sys.stdout = sys.stdout, Output()  # type: ignore[assignment]
    try:
        pool.run(lambda: print("hello"))
        assert "[0] hello\n" in sys.stdout.text  # type: ignore[attr-defined]
    finally:
        sys.stdout = before
