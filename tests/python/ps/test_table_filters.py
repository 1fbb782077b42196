"""malt.ps.Table: filters make messages smaller, and lose nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import run_job

import malt
from malt.ps import SGD, Table

pytestmark = pytest.mark.usefixtures("alone")


def moved(table: Table, call: Any) -> tuple[int, int]:
    before = table.stats()
    call()
    after = table.stats()
    return after.bytes_out - before.bytes_out, after.bytes_in - before.bytes_in


def test_cached_keys_go_over_the_wire_once() -> None:
    keys = np.arange(0, 50_000, 5)
    with Table(50_000, cached_keys=20_000) as table:
        first, again = (moved(table, lambda: table.pull(keys))[0] for _ in range(2))
        assert first > 8 * len(keys)
        assert again < 100
        out, _ = moved(table, lambda: table.wait(table.push(keys, 1.0)))
        assert 4 * len(keys) <= out < 4 * len(keys) + 100
        assert (table.pull(keys) == 1).all()
        assert table.pull(keys + 1).sum() == 0


def test_lists_beyond_the_cache_are_sent_each_time() -> None:
    keys = np.arange(1000)[::2]
    with Table(1000, cached_keys=100) as table:
        for _ in range(3):
            assert moved(table, lambda: table.pull(keys))[0] > 8 * len(keys)


@pytest.mark.parametrize(
    ("codec", "error", "value_bytes"),
    [(malt.FLOAT16, 2**-11, 2), (malt.BFLOAT16, 2**-8, 2), (malt.INT8, 1 / 127, 1)],
    ids=["float16", "bfloat16", "int8"],
)
def test_a_codec_rounds_what_is_pushed_and_pulled(
    codec: malt.types.Codec, error: float, value_bytes: int
) -> None:
    values = np.random.default_rng(3).uniform(-1, 1, (2000, 16)).astype(np.float32)
    with Table(2000, 16, codec=codec) as table:
        out, _ = moved(table, lambda: table.wait(table.push(range(2000), values)))
        assert out < values.size * value_bytes * 1.2
        pulled = np.empty_like(values)
        _, come_in = moved(table, lambda: table.pull(out=pulled))
        assert come_in < values.size * value_bytes * 1.1
        assert np.abs(pulled - values).max() <= 2 * error
        assert not np.array_equal(pulled, values)


def test_small_gradients_are_held_back_until_they_add_up() -> None:
    with Table(100, 2, update=SGD(1.0), threshold=1.0) as table:
        table.push([3, 4], [[0.25, 0.5], [-1.5, 0]])
        assert table.pull([3, 4]).tolist() == [[0, 0], [1.5, 0]]
        assert table.stats().rows_held_back == 1
        table.push([3], [[0.25, -0.25]])
        table.clock()
        assert table.pull([3]).tolist() == [[0, 0]]
        table.push([3], [[0.5, 0.25]])
        assert table.pull([3]).tolist() == [[-1, -0.5]]
        assert table.stats().rows_held_back == 0


def test_wait_without_a_number_sends_what_is_held_back() -> None:
    with Table(10, threshold=1.0) as table:
        push = table.push([1, 2], 0.5)
        table.wait(push)
        assert table.stats().rows_held_back == 2
        assert not table.pull().any()
        table.wait()
        assert table.stats().rows_held_back == 0
        assert table.pull([1, 2]).tolist() == [0.5, 0.5]


def test_gradients_that_are_not_numbers_are_not_held_back() -> None:
    with Table(10, threshold=1.0) as table:
        table.push([1, 2], [np.nan, np.inf])
        assert np.isnan(table.pull([1])[0])
        assert np.isinf(table.pull([2])[0])


def test_filters_keep_bsp_the_same_every_time(tmp_path: Path) -> None:
    """All at once, on three ranks: the sum of what was pushed is there at the end, on all ranks."""
    results = []
    for run in range(2):
        result = run_job(
            tmp_path / str(run),
            3,
            """
malt.init()
rng = np.random.default_rng(rank)
lists = [np.flatnonzero(rng.random(400) < 0.5) for _ in range(4)]
with malt.ps.Table(
    400, 3, staleness=0, codec=malt.INT8, threshold=1.5, cached_keys=700, dtype=np.float64
) as table:
    total = np.zeros((400, 3))
    for step in range(12):
        keys = lists[step % 4]
        gradients = rng.normal(size=(len(keys), 3))
        total[keys] += gradients
        table.push(keys, gradients)
        table.clock()
        table.pull(keys)
    table.wait()
    table.clock()
    tell(values=table.pull(), total=total, held=table.stats().rows_held_back)
""",
        )
        assert result.each("held") == [0, 0, 0]
        values = result.each("values")
        assert all(np.array_equal(each, values[0]) for each in values)
        assert np.abs(values[0] - sum(result.each("total"))).max() < 0.5
        results.append(values[0])
    assert np.array_equal(results[0], results[1])


def test_ranks_with_different_filters_are_told(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
codec = malt.INT8 if rank else malt.FLOAT16
tell(error=error_of(malt.ps.Table, 10, codec=codec, cached_keys=rank))
malt.barrier()
""",
    )
    for error in result.each("error"):
        assert error.kind == "ConfigError"
        assert error.says("codec=int8", "codec=float16", "cached_keys=0", "cached_keys=1")
