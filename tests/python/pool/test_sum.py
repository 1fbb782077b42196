"""pool.share() and pool.sum(): each chunk once, the same bits whoever does it."""

from __future__ import annotations

import contextlib
import os
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import malt

Floats = npt.NDArray[np.float64]
Pair = namedtuple("Pair", "count total")

RNG = np.random.default_rng(7)
X = RNG.normal(size=(1000, 5))
Y = RNG.normal(size=1000)


def squared_error(theta: Floats, x: Floats, y: Floats) -> tuple[float, Floats]:
    error = x @ theta - y
    return float(error @ error), x.T @ error


def test_sum_is_that_of_all_chunks(pool: malt.Pool) -> None:
    theta = np.arange(5.0)
    cost, gradient = pool.sum(squared_error, theta, pool.share(X, Y))
    error = X @ theta - Y
    assert cost == pytest.approx(error @ error)
    np.testing.assert_allclose(gradient, X.T @ error)


def test_each_chunk_is_counted_once(pool: malt.Pool) -> None:
    bits = np.left_shift(1, np.arange(60), dtype=np.int64)
    data = pool.share(bits, chunks=60)
    for _ in range(20):
        assert pool.sum(lambda theta, x: int(x[0]), None, data) == 2**60 - 1


def test_bits_are_the_same_whoever_does_which_chunk(pool: malt.Pool) -> None:
    """Some ranks sleep in some chunks, so that chunks are done in many orders."""

    def work(seed: int, x: Floats) -> Floats:
        time.sleep(np.random.default_rng([seed, os.getpid()]).choice([0, 0.002]))
        return x.sum(axis=0)

    data = pool.share(X, chunks=13)
    sums = {pool.sum(work, seed, data).tobytes() for seed in range(10)}
    assert len(sums) == 1
    with malt.Pool(1) as alone:
        assert alone.sum(work, 0, alone.share(X, chunks=13)).tobytes() in sums


NARROW: dict[str, tuple[Any, Any]] = {
    "uint8": (np.array([200], np.uint8), np.array([800], np.uint64)),
    "int8": (np.int8(-100), np.int64(-400)),
    "truth value": ({"a": np.True_}, {"a": np.int64(4)}),
    "named tuple": (Pair(np.array([True]), np.int16(30000)), Pair(np.array([4]), np.int64(120000))),
    "float16": (np.float16(60000), np.float32(240000)),
}


@pytest.mark.parametrize("name", NARROW)
def test_narrow_numbers_are_widened(pool: malt.Pool, name: str) -> None:
    value, total = NARROW[name]
    found = pool.sum(lambda theta, x: theta, value, pool.share(np.arange(4), chunks=4))
    assert repr(found) == repr(total)


def test_narrow_tensors_are_widened(pool: malt.Pool) -> None:
    torch = pytest.importorskip("torch")
    for value, total in (
        (torch.tensor([200], dtype=torch.uint8), torch.tensor([800])),
        (torch.tensor([60000.0], dtype=torch.float16), torch.tensor([240000.0])),
    ):
        found = pool.sum(lambda theta, x: theta, value, pool.share(np.arange(4), chunks=4))
        assert found.dtype == total.dtype
        assert torch.equal(found, total)


@pytest.mark.parametrize("value", [np.array([2**62]), np.int64(-(2**62)), np.uint64(2**63)])
def test_sum_of_whole_numbers_beyond_64_bits_is_refused(pool: malt.Pool, value: Any) -> None:
    with pytest.raises(malt.ConfigError, match=r"the sum is beyond u?int64; return floats"):
        pool.sum(lambda theta, x: theta, value, pool.share(np.arange(4), chunks=4))


def test_idle_rank_takes_chunks_of_a_slow_one(pool: malt.Pool, tmp_path: Path) -> None:
    """The rank that does chunk 0 is not done before all other chunks are."""

    def work(folder: Path, x: Floats) -> int:
        (folder / str(int(x[0]))).touch()
        deadline = time.monotonic() + 60
        while x[0] == 0 and len(list(folder.iterdir())) < 8:
            assert time.monotonic() < deadline, "nobody takes the other chunks"
            time.sleep(0.001)
        return 1

    before = pool.stats().chunks_taken
    assert pool.sum(work, tmp_path, pool.share(np.arange(8.0), chunks=8)) == 8
    assert pool.stats().chunks_taken > before


def test_chunk_that_is_there_is_not_copied_again() -> None:
    with malt.Pool(2) as pool:
        first = pool.share(X, Y, chunks=4)
        copied = pool.stats()
        assert (copied.chunks_copied, copied.chunks_found) == (4, 0)
        assert copied.bytes_copied >= X.nbytes + Y.nbytes

        changed = Y.copy()
        changed[-1] += 1  # in the last chunk
        second = pool.share(X, changed, chunks=4)
        stats = pool.stats()
        assert (stats.chunks_copied, stats.chunks_found) == (5, 3)
        for data, y in ((first, Y), (second, changed)):
            total = pool.sum(lambda theta, x, y: float(y.sum()), None, data)
            assert total == pytest.approx(y.sum())


def test_data_that_nobody_has_any_more_leave_the_memory() -> None:
    with malt.Pool(2) as pool:

        def memories() -> int:
            return len(_data_memories()) + sum(map(len, pool.run(_data_memories)))

        data = pool.share(X, chunks=2)
        other = pool.share(Y, chunks=2)
        assert pool.sum(lambda theta, x: len(x), None, data) == 1000
        assert pool.sum(lambda theta, y: len(y), None, other) == 1000
        before = memories()
        del data
        assert pool.sum(lambda theta, y: len(y), None, other) == 1000
        assert memories() == before - 3  # in each process


def _data_memories() -> set[int]:
    """The memories with shared data that this process has open, by their inodes."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if "malt-pool-data" in os.readlink(f"/proc/self/fd/{descriptor}"):
                found.add(os.stat(f"/proc/self/fd/{descriptor}").st_ino)
    return found


def test_results_may_be_nested(pool: malt.Pool) -> None:
    def count(theta: None, x: Floats) -> tuple[Any, ...]:
        signs = {"all": len(x), **({"last": 1} if x[-1] == Y[-1] else {})}
        return Pair(len(x), [x.sum(), None]), signs, bool(len(x)), np.isfinite(x[:2])

    pair, signs, chunks, finite = pool.sum(count, None, pool.share(Y, chunks=5))
    assert type(pair).__name__ == "Pair"
    assert pair.count == 1000
    assert pair.total == [pytest.approx(Y.sum()), None]
    assert signs == {"all": 1000, "last": 1}
    assert chunks == 5
    np.testing.assert_array_equal(finite, [5, 5])


def test_function_may_return_the_same_array_each_time() -> None:
    buffer = np.zeros(5)

    def work(theta: None, x: Floats) -> Floats:
        buffer[:] = x.sum(axis=0)
        return buffer

    with malt.Pool(1) as pool:
        total = pool.sum(work, None, pool.share(X, chunks=4))
    np.testing.assert_allclose(total, X.sum(axis=0))


def test_sum_is_the_callers_own(pool: malt.Pool) -> None:
    """Later calls leave it as it is, and it can be written to, also if there is one chunk."""
    for chunks in (1, 2, 8):
        data = pool.share(X, chunks=chunks)
        kept = pool.sum(lambda theta, x: {"a": x[0] * 0 + 1}, None, data)
        large = pool.sum(lambda theta, x: np.ones(10_000), None, data)
        pool.sum(lambda theta, x: np.zeros(10_000), None, data)
        assert kept["a"].tolist() == [chunks] * 5
        assert large.sum() == chunks * 10_000
        large += 1
        kept["a"] += 1


def test_theta_of_any_size_and_kind(pool: malt.Pool) -> None:
    data = pool.share(X, chunks=4)
    for size in (1, 1000, 100_000, 1_000_000, 3):
        theta = {"w": np.arange(float(size)), "rate": 0.5, "names": ("a", "b")}
        total = pool.sum(lambda theta, x: theta["w"][-1] * theta["rate"], theta, data)
        assert total == 4 * 0.5 * (size - 1)


def test_function_that_has_changed_is_sent_again(pool: malt.Pool) -> None:
    data = pool.share(X, chunks=2)
    scale = 1.0
    weights = [1.0]

    def scaled(theta: None, x: Floats) -> float:
        return scale * weights[0]

    assert pool.sum(scaled, None, data) == 2
    scale = 3.0
    assert pool.sum(scaled, None, data) == 6
    weights[0] = 2.0
    assert pool.sum(scaled, None, data) == 12
    for number in range(40):  # more than the ranks keep
        assert pool.sum(lambda theta, x, number=number: number, None, data) == 2 * number
    assert pool.sum(scaled, None, data) == 12


def test_bar_reaches_the_number_of_chunks(
    pool: malt.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.sum(lambda theta, x: 0, None, pool.share(X, chunks=50), progress=True)
    assert "50/50" in capsys.readouterr().err
