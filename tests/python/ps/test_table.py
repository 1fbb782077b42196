"""malt.ps.Table: what is pushed and pulled, in one process and under `malt run`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import PROMPT, run_job

import malt
from malt.ps import FTRL, SGD, AdaGrad, Add, Assign, Momentum, Table

pytestmark = pytest.mark.usefixtures("alone")


def test_pull_gives_what_was_pushed() -> None:
    with Table(100, 3) as table:
        table.push([2, 5, 99], np.arange(9).reshape(3, 3))
        table.push(range(4, 6), 1.0)
        assert table.pull([5]).tolist() == [[4, 5, 6]]
        assert table.pull().sum() == 36 + 6
        assert table.pull(range(98, 100)).tolist() == [[0, 0, 0], [6, 7, 8]]


def test_without_a_width_a_row_is_a_number() -> None:
    with Table(10, initial=2.5, dtype=np.float64) as table:
        assert table.push_pull(np.array([3, 7]), [1, 2]).tolist() == [3.5, 4.5]
        out = np.zeros(10)
        assert table.pull(out=out) is out
        assert out.sum() == 25 + 3


def test_no_keys_are_no_rows() -> None:
    with Table(10, 2) as table:
        table.wait(table.push([], np.zeros((0, 2))))
        assert table.pull([]).shape == (0, 2)


def test_many_keys_go_in_several_messages() -> None:
    rows = 1_000_000
    with Table(rows, dtype=np.float64) as table:
        keys = np.arange(1, rows, 2)
        table.push(keys, keys.astype(float))
        table.push(None, 1.0)
        expected = np.ones(rows)
        expected[1::2] += keys
        assert np.array_equal(table.pull(), expected)
        assert np.array_equal(table.pull(keys), expected[1::2])


def by_hand(rule: Any, gradients: np.ndarray) -> np.ndarray:
    """The textbook's formulas, in NumPy."""
    w, v, n = (np.zeros(gradients.shape[1]) for _ in range(3))
    for g in gradients:
        match rule:
            case Add():
                w = w + g
            case Assign():
                w = g
            case SGD(rate):
                w = w - rate * g
            case Momentum(rate, momentum):
                v = momentum * v + g
                w = w - rate * v
            case AdaGrad(rate, epsilon):
                n = n + g**2
                w = w - rate * g / (np.sqrt(n) + epsilon)
            case FTRL(alpha, beta, l1, l2):
                sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / alpha
                v = v + g - sigma * w
                n = n + g**2
                shrunk = -(v - np.sign(v) * l1) / ((beta + np.sqrt(n)) / alpha + l2)
                w = np.where(np.abs(v) <= l1, 0, shrunk)
    return w


@pytest.mark.parametrize(
    "rule",
    [Add(), Assign(), SGD(0.3), Momentum(0.1, 0.8), AdaGrad(0.5), FTRL(0.2, 1.5, 0.6, 0.1)],
    ids=lambda rule: type(rule).__name__,
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_rule_does_what_its_formula_says(rule: Any, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(7, 40)).astype(dtype)
    keys = np.sort(rng.choice(1000, 40, replace=False))
    for width in (None, 4):
        shape = (40,) if width is None else (10, 4)
        with Table(1000, width, update=rule, dtype=dtype) as table:
            used = keys[: shape[0]]
            for g in gradients:
                table.push(used, g.reshape(shape))
            values = table.pull(used)
            expected = by_hand(rule, gradients.astype(float))
            assert np.allclose(values.ravel(), expected, rtol=1e-4, atol=1e-5)
            others = np.setdiff1d(np.arange(1000), used)
            assert not table.pull(others).any()


def test_a_rule_of_the_users_changes_rows_in_place() -> None:
    kept = []

    def largest(values: np.ndarray, gradients: np.ndarray) -> None:
        kept.append(values)
        np.maximum(values, gradients, out=values)

    with Table(50, 2, update=largest) as table:
        table.push([1, 3], [[1, 5], [2, 2]])
        assert table.push_pull([1, 3], [[3, 1], [1, 9]]).tolist() == [[3, 5], [2, 9]]
    kept[0][:] = 7  # its memory is still there


def test_an_exception_of_the_users_rule_comes_back_and_leaves_the_rows() -> None:
    def broken(values: np.ndarray, gradients: np.ndarray) -> None:
        values[:] = 1
        if gradients.any():
            raise KeyError("no such thing")

    with Table(50, update=broken, name="t") as table:
        push = table.push([1], [5])
        with pytest.raises(malt.Error, match=r"'t'.*rank 0.*KeyError.*no such thing"):
            table.wait(push)
        assert table.push_pull([1, 2], 0).tolist() == [1, 1]


def test_a_rule_that_returns_values_is_refused() -> None:
    with Table(5, update=lambda values, gradients: values + gradients) as table:
        table.push([1], [5])
        with pytest.raises(malt.Error, match="in place"):
            table.wait()


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ([1, 1], ["key 1", "twice", "sum"]),
        ([4, 9, 3], ["key 3", "index 2", "sort"]),
        ([-1, 3], ["key -1", "0 to 9"]),
        ([3, 10], ["key 10", "index 1", "0 to 9"]),
        (range(5, 11), ["key 10", "0 to 9"]),
        (range(0, 6, 2), ["step 2"]),
        (np.array([1, 2], dtype=np.int32), ["int32", "int64"]),
        ([1.0], ["float64"]),
        (np.zeros((1, 1), dtype=np.int64), ["2 dimensions"]),
        (3, ["0 dimensions"]),
        ([[1], [2, 3]], ["object"]),
        ("x", ["<U1"]),
    ],
)
def test_wrong_keys_are_named(keys: Any, parts: list[str]) -> None:
    with Table(10) as table:
        for call in (lambda: table.pull(keys), lambda: table.push(keys, 1.0)):
            with pytest.raises(malt.ConfigError) as caught:
                call()
            assert all(part in str(caught.value) for part in parts), caught.value
        assert not table.pull().any()


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"rows": 0}, ["rows is 0"]),
        ({"rows": 1.5}, ["rows is 1.5", "whole"]),
        ({"rows": 1 << 41}, ["rows is"]),
        ({"rows": 10, "width": 0}, ["width is 0", "16384"]),
        ({"rows": 10, "width": 20_000}, ["width is 20000", "16384"]),
        ({"rows": 1 << 39, "width": 100}, ["MB", "free"]),
        ({"rows": 10, "dtype": np.int32}, ["int32", "float64"]),
        ({"rows": 10, "update": 3}, ["update is 3"]),
        ({"rows": 10, "update": SGD}, ["update is <class", "malt.ps.SGD(0.1)"]),
        ({"rows": 10, "name": 3}, ["name is 3; it is a text"]),
        ({"rows": 10, "name": "\ud800"}, [r"name is '\ud800'", "UTF-8 cannot encode"]),
        ({"rows": 10, "replicas": 1}, ["replicas is 1", "1 ranks are live"]),
        ({"rows": 10, "staleness": -1}, ["staleness is -1"]),
        ({"rows": 10, "initial": float("nan")}, ["initial is nan"]),
        ({"rows": 10, "initial": "q"}, ["initial is 'q'", "finite number"]),
        ({"rows": 10, "initial": 2**2000}, [f"initial is {2**2000}", "finite number"]),
        ({"rows": 10, "timeout": "a"}, ["timeout is 'a'", "seconds"]),
        ({"rows": 10, "timeout": -(2**2000)}, [f"timeout is {-(2**2000)}", "seconds"]),
        ({"rows": 10, "dtype": "zz"}, ["dtype is 'zz'", "float64"]),
        ({"rows": 10, "threshold": "x"}, ["threshold is 'x'", "at least 0"]),
        ({"rows": 10, "codec": "float16"}, ["codec is 'float16'", "INT8"]),
        ({"rows": 10, "codec": malt.TOP_K(0.5)}, ["top-k 0.5", "threshold="]),
        ({"rows": 10, "threshold": -1}, ["threshold is -1", "at least 0"]),
        ({"rows": 10, "threshold": float("inf")}, ["threshold is inf"]),
        ({"rows": 10, "threshold": 0.1, "update": Assign()}, ["0.1", "Assign()", "summed"]),
        ({"rows": 10, "cached_keys": -1}, ["cached_keys is -1"]),
        ({"rows": 1 << 39, "width": 99, "cached_keys": 1 << 20}, ["16 MB of cached keys", "free"]),
    ],
)
def test_wrong_arguments_are_named(given: Any, parts: list[str]) -> None:
    with pytest.raises(malt.ConfigError) as caught:
        Table(**given)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_wrong_numbers_of_a_rule_are_named() -> None:
    makes: list[Callable[[], object]] = [
        lambda: SGD(0.0),
        lambda: FTRL(0.1, l1=-1),
        lambda: AdaGrad(float("inf")),
        lambda: SGD("x"),  # type: ignore[arg-type]
    ]
    for make in makes:
        with pytest.raises(malt.ConfigError, match=r"lr=0\.0|l1=-1|lr=inf|lr='x'"):
            make()


def test_gradients_that_do_not_fit_are_named() -> None:
    with Table(10, 2) as table:
        with pytest.raises(malt.ConfigError, match=r"\(3,\).*\(3, 2\)"):
            table.push([1, 2, 3], [1, 2, 3])
        with pytest.raises(malt.ConfigError, match=r"out has shape"):
            table.pull([1], out=np.zeros((1, 2)))
        with pytest.raises(malt.ConfigError, match=r"out is \[1, 2\]"):
            table.pull([1], out=[1, 2])  # type: ignore[arg-type]
        for gradients in (None, 1j, "x", [[1.0], [2.0, 3.0]]):
            with pytest.raises(malt.ConfigError, match=r"gradients have dtype .* real numbers"):
                table.push([1, 2], gradients)
        with pytest.raises(malt.ConfigError, match="no push 7"):
            table.wait(7)
        for push in (-1, "x"):
            with pytest.raises(malt.ConfigError, match=f"push is {push!r}; it must be a whole"):
                table.wait(push)  # type: ignore[arg-type]
        assert not table.pull().any()


def test_wrong_time_limits_are_named() -> None:
    with Table(10) as table:
        calls: list[Callable[[Any], object]] = [
            lambda limit: table.pull(timeout=limit),
            lambda limit: table.push([1], 1.0, timeout=limit),
            lambda limit: table.wait(timeout=limit),
            lambda limit: table.clock(timeout=limit),
            lambda limit: table.close(timeout=limit),
            lambda limit: table.leave(timeout=limit),
        ]
        for call in calls:
            for limit in ("1", -1.0, float("nan")):
                with pytest.raises(malt.ConfigError, match=f"timeout is {limit!r}"):
                    call(limit)
        assert not table.pull().any()


def test_a_closed_table_says_so_and_leaves_no_thread() -> None:
    before = set(os.listdir("/proc/self/task"))
    table = Table(10)
    table.close()
    table.close()
    for call in (table.pull, table.wait, table.clock, table.stats):
        with pytest.raises(malt.ConfigError, match="has been closed"):
            call()
    dropped = Table(10, update=lambda values, gradients: None)
    dropped.push([1], 1.0)
    del dropped
    gc.collect()
    deadline = time.monotonic() + PROMPT  # the system may list a thread a little longer
    while not before.issuperset(os.listdir("/proc/self/task")):
        assert time.monotonic() < deadline


def test_a_table_ends_with_its_job() -> None:
    table = Table(10)
    malt.finalize()
    with pytest.raises(malt.ConfigError, match="no job"):
        table.pull()
    malt.init()
    with pytest.raises(malt.ConfigError, match="closed"):
        table.pull()


def test_a_forked_child_is_told_and_ends() -> None:
    code = """
import os, malt, malt.ps
malt.init()
table = malt.ps.Table(10)
child = os.fork()
if child == 0:
    try:
        table.pull()
    except malt.ConfigError as error:
        assert "forked" in str(error)
        del table
        raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
table.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_threads_can_push_in_turn() -> None:
    turn = threading.Lock()
    with Table(10) as table:

        def push() -> None:
            for _ in range(100):
                with turn:
                    table.push([1, 2], 1.0)

        threads = [threading.Thread(target=push) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert table.pull([1, 2]).tolist() == [300, 300]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_bsp_is_the_same_every_time(tmp_path: Path, transport: str) -> None:
    """Pushes are applied in rank order, so that float32 sums have the same bits on every run."""
    sums = []
    for run in range(2):
        result = run_job(
            tmp_path / str(run),
            3,
            """
malt.init()
rng = np.random.default_rng(rank)
with malt.ps.Table(400, 3, update=malt.ps.AdaGrad(0.1), staleness=0) as table:
    for step in range(10):
        keys = np.flatnonzero(rng.random(400) < 0.5)
        table.push(keys, rng.normal(size=(len(keys), 3)) + table.pull(keys))
        table.clock()
    tell(values=table.pull())
""",
            environ={"MALT_TRANSPORT": transport},
        )
        values = result.each("values")
        assert all(np.array_equal(each, values[0]) for each in values)
        sums.append(values[0])
    assert np.array_equal(sums[0], sums[1])


def test_ranks_that_make_different_tables_are_told(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
tell(error=error_of(malt.ps.Table, 10 + rank, name="t"))
tell(wrong=[error_of(malt.ps.Table, 10, **{option: value if rank else 0}) for option, value in (
    ("replicas", 2), ("staleness", -1), ("initial", "x"))])
with malt.ps.Table(10, name="t") as table:
    table.push([1], 1.0)
    table.clock()
    malt.barrier()
    tell(value=table.pull([1])[0])
""",
    )
    for error in result.each("error"):
        assert error.kind == "ConfigError"
        assert error.says("'t'", "rows=10", "rows=11")
    for errors in result.each("wrong"):
        assert all(error.seconds < 20 for error in errors)
    for error, text in zip(
        result.told[0]["wrong"],
        (
            "malt.ps.Table 'table 1': rank 1: replicas is 2; it must be a whole number",
            "malt.ps.Table 'table 1': rank 1: staleness is -1",
            "malt.ps.Table 'table 1': rank 1: initial is 'x'; it is a finite number",
        ),
        strict=True,
    ):
        assert error.kind == "ConfigError"
        assert error.says(text)
    assert result.each("value") == [2, 2]


def test_a_rank_that_does_not_clock_is_waited_for_so_long(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
with malt.ps.Table(10, staleness=1) as table:
    if rank == 0:
        table.clock()
        table.pull(timeout=30)
        table.clock()
        tell(error=error_of(table.pull, timeout=0.2))
    malt.barrier()
""",
    )
    error = result.told[0]["error"]
    assert error.kind == "TimeoutError"
    assert error.says("pull of table", "0.2 s")


def test_a_block_that_raises_leaves_at_once(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
try:
    with malt.ps.Table(1000, replicas=1) as table:
        table.push(None, 1.0)
        table.clock()
        malt.barrier()
        if rank == 1:
            raise KeyError
        while len(malt.alive()) == 2 and table.pull().sum() == 2000 and not flag_is_up("left"):
            pass
        tell(sum=table.pull().sum())
except KeyError:
    raise_flag("left")
""",
    )
    assert result.told[0]["sum"] == 2000


def test_a_push_and_a_pull_have_one_limit(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
def update(values, gradients):
    if rank == 1:
        time.sleep(0.05)
    values += gradients
# Each of 200 rows takes a message. Values with a codec are pulled by messages too.
table = malt.ps.Table(200, 16384, update=update, codec=malt.FLOAT16)
malt.barrier()
if rank == 0:
    tell(error=error_of(table.push_pull, None, 1.0, timeout=3))
    tell(sum=float(table.pull().sum()))
table.close()
"""
    told = run_job(tmp_path, 2, body).told[0]
    assert (told["error"].kind, told["error"].ranks) == ("TimeoutError", (1,))
    assert told["error"].says("pull of table", "rank 1 did not answer within 3 s")
    assert 3 <= told["error"].seconds < 4.5
    assert told["sum"] == 200 * 16384


def test_time_outs_name_the_ranks_that_are_behind(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
table = malt.ps.Table(30, 1, staleness=0, codec=malt.FLOAT16)  # so that pulls go by messages
table.push(None, np.ones((30, 1)))
if rank != 2:
    table.clock()
malt.barrier()
if rank == 0:
    tell(behind=error_of(table.pull, [3], timeout=.2))
malt.barrier()
if rank != 2:
    tell(close=error_of(table.close, timeout=.2))
    tell(again=error_of(table.close), pull=error_of(table.pull))
malt.barrier()
os._exit(0)
"""
    result = run_job(tmp_path, 3, body)
    behind, close = result.told[0]["behind"], [told["close"] for told in result.told[:2]]
    for error in (behind, *close):
        assert error.kind == "TimeoutError"
    assert behind.says("rank 2 did not come to clock 1 within 0.2 s")
    for error in close:
        assert error.says("rank 2 did not close it within 0.2 s")
    for told in result.told[:2]:
        assert told["again"] is None
        assert told["pull"].says("has been closed")
