"""Sparse vectors: what may be set, what goes over the wire, folds as those of dense ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import run_job

import malt

pytestmark = pytest.mark.usefixtures("alone")
DTYPES = ["float32", "float64", "int32", "int64"]


def contents(v: Any) -> dict[int, float]:
    return dict(zip(v.indices.tolist(), v.values.tolist(), strict=True))


# What is stored


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_new_vector_stores_nothing(dtype: str) -> None:
    v = malt.sparse_vector(100, capacity=10, dtype=dtype)
    assert (v.dim, v.capacity, contents(v)) == (100, 10, {})
    assert v.values.dtype == np.dtype(dtype)
    assert v.indices.dtype == np.int32


@pytest.mark.parametrize("dtype", DTYPES)
def test_set_sorts_indices_and_adds_up_duplicates(dtype: str) -> None:
    v = malt.sparse_vector(100, capacity=4, dtype=dtype)
    v.set([99, 5, 0, 5, 5, 7], [1, 2, 3, 4, 8, -16])
    assert v.indices.tolist() == [0, 5, 7, 99]
    assert v.values.tolist() == [3, 14, -16, 1]


def test_set_replaces_what_was_there() -> None:
    v = malt.sparse_vector(10, capacity=3)
    v.set([1, 2, 3], [1, 2, 3])
    v.set([9], [4])
    assert contents(v) == {9: 4}
    v.set([], [])
    assert contents(v) == {}
    v.set([2], [1])
    v.clear()
    assert contents(v) == {}


def test_set_takes_arrays_of_any_integer_type() -> None:
    v = malt.sparse_vector(1 << 30, capacity=3, dtype="float64")
    for kind in (np.uint8, np.int16, np.int32, np.uint32, np.int64):
        v.set(np.array([3, 100, 7], dtype=kind)[::-1], np.array([1.5, 2.5, 3.5]))
        assert contents(v) == {3: 3.5, 7: 1.5, 100: 2.5}


def test_capacity_counts_what_is_left_after_adding_up() -> None:
    v = malt.sparse_vector(10, capacity=2)
    v.set([1, 1, 1, 2, 2], [1, 1, 1, 1, 1])
    assert contents(v) == {1: 3, 2: 2}


def test_overfull_set_is_refused_and_changes_nothing() -> None:
    v = malt.sparse_vector(1000, capacity=2, name="grads")
    v.set([4, 5], [1, 2])
    with pytest.raises(
        malt.ConfigError, match=r"'grads': 3 elements .* capacity of 2.*larger"
    ) as info:
        v.set([1, 2, 3], [1, 1, 1])
    assert "1000" in str(info.value)
    assert contents(v) == {4: 1, 5: 2}


@pytest.mark.parametrize("index", [-1, 10, 2**31, -(2**40), 2**63 - 1])
def test_index_out_of_range_is_refused_and_changes_nothing(index: int) -> None:
    v = malt.sparse_vector(10, capacity=5)
    v.set([3], [1])
    with pytest.raises(malt.ConfigError) as info:
        v.set([0, index], [1, 1])
    assert f"index {index} is outside [0, 10)" in str(info.value)
    assert contents(v) == {3: 1}


def test_calls_of_dense_vectors_are_refused_by_name() -> None:
    v = malt.sparse_vector(10, capacity=5)
    words = r"no attribute 'allreduce'; use v\.scatter\(\) and v\.gather\(\), or a dense vector"
    with pytest.raises(AttributeError, match=f"a sparse vector has {words}"):
        v.allreduce(malt.SUM)
    assert not hasattr(v, "array")


def test_lengths_that_differ_are_refused() -> None:
    v = malt.sparse_vector(10, capacity=5)
    with pytest.raises(malt.ConfigError, match="2 indices but 3 values"):
        v.set([0, 1], [1, 1, 1])


@pytest.mark.parametrize("indices", [[0.5], np.array([2.7]), np.array([True]), ["a"]])
def test_indices_that_are_no_integers_are_refused(indices: Any) -> None:
    v = malt.sparse_vector(10, capacity=5)
    with pytest.raises((malt.ConfigError, TypeError)):
        v.set(indices, [1])
    assert contents(v) == {}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_fractions_are_refused_as_values_of_an_integer_vector(dtype: str) -> None:
    v = malt.sparse_vector(10, capacity=5, dtype=dtype)
    with pytest.raises((malt.ConfigError, TypeError)):
        v.set([1], [2.7])
    assert contents(v) == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dim": 0, "capacity": 1}, "dim is 0; it must be a whole number from 1 to 2147483647"),
        ({"dim": -5, "capacity": 1}, "dim is -5; it must be a whole number from 1"),
        ({"dim": 10.0, "capacity": 1}, "dim is 10.0; it must be a whole number from 1"),
        (
            {"dim": 10, "capacity": 0},
            "capacity is 0; it must be a whole number from 1 to 10, the dim",
        ),
        ({"dim": 10, "capacity": 11}, "capacity is 11; it must be a whole number from 1 to 10"),
        ({"dim": 10, "capacity": 1.0}, "capacity is 1.0; it must be a whole number from 1"),
        ({"dim": 10, "capacity": 2**70}, f"capacity is {2**70}; it must be a whole number"),
        ({"dim": 2**31, "capacity": 1}, "from 1 to 2147483647; split a longer vector"),
        ({"dim": 2**70, "capacity": 1}, f"dim is {2**70}; it must be a whole number"),
        ({"dim": 10, "capacity": 1, "name": "\ud800"}, r"name is '\ud800'; UTF-8 cannot encode"),
        ({"dim": 10, "capacity": 1, "dtype": "foo"}, "dtype is 'foo'"),
        ({"dim": 10, "capacity": 1, "dtype": "float16"}, "dtype is float16"),
        ({"dim": 10, "capacity": 1, "dtype": "complex64"}, "dtype is complex64"),
        ({"dim": 10, "capacity": 1, "policy": "newest"}, "policy is 'newest'"),
        ({"dim": 10, "capacity": 1, "depth": 0}, "depth is 0; it must be a whole number from 1 to"),
    ],
)
def test_impossible_vector_is_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(malt.ConfigError) as info:
        malt.sparse_vector(**options)
    assert expected in str(info.value)


def test_largest_dimension_is_possible() -> None:
    v = malt.sparse_vector(2**31 - 1, capacity=1)
    v.set([2**31 - 2], [1])
    assert contents(v) == {2**31 - 2: 1}


# On the wire


def test_wire_is_sparse_or_dense_whichever_is_smaller(tmp_path: Path) -> None:
    """A pair of index and float64 takes 12 bytes: up to 66 of 100 elements are sent as pairs."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
v = malt.sparse_vector(100, capacity=100, dtype="float64")
got = []
for count in (0, 1, 66, 67, 100):
    v.set(np.arange(count), np.arange(count) + 1.0 + rank)
    before = v.stats().bytes_out
    v.scatter()
    g = v.gather(malt.REPLACE, staleness=0)
    got.append((v.stats().bytes_out - before, g.count, v.indices.tolist(), v.values.tolist()))
tell(got=got)
malt.barrier()
""",
    )
    for rank, got in enumerate(result.each("got")):
        assert [row[0] for row in got] == [0, 12, 66 * 12, 800, 800]
        for count, row in zip((0, 1, 66, 67, 100), got, strict=True):
            assert row[1:] == (1, list(range(count)), [i + 2.0 - rank for i in range(count)])


# Folds

FOLD_SCRIPT = """
def entries(r, dtype, dim, count):
    random = np.random.default_rng(1000 * count + r)
    indices = random.choice(dim, size=count, replace=False)
    return indices, (random.standard_normal(count) * 100).astype(dtype)

malt.init()
got = {}
for dtype in ("float32", "float64", "int32", "int64"):
    for dim, count in ((1000, 30), (1000, 0), (50, 40), (1, 1)):
        v = malt.sparse_vector(dim, capacity=dim, dtype=dtype)
        for name, fold in FOLDS.items():
            v.set(*entries(rank, dtype, dim, count))
            v.scatter()
            g = v.gather(fold, staleness=0)
            dense = np.zeros(dim, dtype)
            dense[v.indices] = v.values
            got[dtype, dim, count, name] = dense, g.count, g.ranks, (np.diff(v.indices) > 0).all()
        w = np.zeros(dim, dtype)
        d = malt.vector(w)
        for name, fold in FOLDS.items():
            indices, values = entries(rank, dtype, dim, count)
            w[:] = 0
            w[indices] = values
            d.scatter()
            d.gather(fold, staleness=0)
            got[dtype, dim, count, name] += (w.copy(),)
tell(got=got)
malt.barrier()
"""


def test_folds_are_those_of_dense_vectors_bit_for_bit(tmp_path: Path) -> None:
    result = run_job(tmp_path, 3, FOLD_SCRIPT)
    for rank, got in enumerate(result.each("got")):
        assert len(got) == 4 * 4 * 6
        for case, (sparse, count, ranks, increasing, dense) in got.items():
            assert (count, ranks) == (2, tuple(r for r in range(3) if r != rank)), case
            assert increasing, case
            np.testing.assert_array_equal(sparse, dense, err_msg=str(case))
        assert got["float64", 1000, 30, "SUM"][0].any()


def test_user_fold_gets_entries_and_returns_what_the_vector_becomes(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
v = malt.sparse_vector(100, capacity=20, dtype="float64")
v.set([rank, 50], [1.0, 10.0 * (rank + 1)])
seen = []
def concatenated(mine, updates):
    seen.append((mine.indices.tolist(), mine.values.tolist()))
    seen.append([(u.rank, u.iteration, u.indices.tolist(), u.values.tolist()) for u in updates])
    return (np.concatenate([mine.indices, *[u.indices for u in updates]]),
            np.concatenate([mine.values, *[u.values for u in updates]]))
v.scatter()
g = v.gather(concatenated, staleness=0)
tell(seen=seen, g=(g.count, g.ranks), indices=v.indices, values=v.values)
malt.barrier()
""",
    )
    for rank, told in enumerate(result.told):
        others = [r for r in range(3) if r != rank]
        assert told["seen"][0] == ([rank, 50], [1.0, 10.0 * (rank + 1)])
        assert told["seen"][1] == [(r, 1, [r, 50], [1.0, 10.0 * (r + 1)]) for r in others]
        assert told["g"] == (2, tuple(others))
        assert told["indices"].tolist() == [0, 1, 2, 50]
        assert told["values"].tolist() == [1, 1, 1, 60]


def test_failed_folds_leave_vector_and_updates_as_they_were(tmp_path: Path) -> None:
    """The user's exception, a fold that returns nonsense, and a result beyond the capacity."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
v = malt.sparse_vector(100, capacity=2, dtype="float32", name="grads")
v.set([2 * rank, 2 * rank + 1], [1, 2])
v.scatter()
malt.barrier()
def broken(mine, updates): raise KeyError("of the user")
errors = [error_of(v.gather, fold) for fold in (
    broken,
    lambda mine, updates: None,
    lambda mine, updates: ([100], [1.0]),
    lambda mine, updates: ([1, 2], [1.0]),
    malt.SUM)]
malt.barrier()
s = v.stats()
tell(errors=errors, kept=v.indices.tolist(), pending=s.pending, folded=s.folded)
malt.barrier()
g = v.gather(malt.REPLACE)
malt.barrier()
tell(count=g.count, now=v.indices.tolist(), stats=(v.stats().pending, v.stats().folded))
malt.barrier()
""",
    )
    for rank, told in enumerate(result.told):
        raised, none, index, lengths, overflow = told["errors"]
        assert raised.kind == "builtins.KeyError"
        assert (index.kind, lengths.kind, overflow.kind) == ("ConfigError",) * 3
        assert index.says("index 100 is outside [0, 100)")
        assert lengths.says("2 indices but 1 values")
        assert overflow.says("'grads'", "4 elements", "capacity of 2")
        assert none.kind in ("ConfigError", "builtins.TypeError"), none
        assert told["kept"] == [2 * rank, 2 * rank + 1]
        assert (told["pending"], told["folded"]) == (1, 0)
        assert told["count"] == 1
        assert told["now"] == [2 - 2 * rank, 3 - 2 * rank]
        assert told["stats"] == (0, 1)


def test_nonfinite_entries_are_refused_and_their_sender_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
v = malt.sparse_vector(10, capacity=10, reject_nonfinite=True)
v.set([1, 5], [1.0, np.nan if rank == 2 else 1.0])
v.scatter()
v.set([1], [1.0])
g = v.gather(malt.SUM, staleness=0)
malt.barrier()
tell(g=(g.ranks, g.rejected), ones=v.values[0], rejected=v.stats().rejected)
malt.barrier()
""",
    )
    for rank, told in enumerate(result.told):
        good = tuple(r for r in (0, 1) if r != rank)
        assert told["g"] == (good, (2,) if rank != 2 else ())
        assert told["ones"] == 1 + len(good)
        assert told["rejected"] == (2 if rank == 2 else 0)


@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_policies_and_graphs_are_those_of_dense_vectors(tmp_path: Path, policy: str) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
v = malt.sparse_vector(1000, capacity=500, dtype="int64", policy=policy, depth=4,
                       graph=malt.Graph([(0, 1), (1, 2), (2, 0)]))
sent_to = set()
for step in range(4):
    v.set([rank, 100 + step], [1, 1])
    sent_to.add(v.scatter())
malt.barrier()
v.clear()
g = v.gather(malt.SUM)
malt.barrier()
s = v.stats()
tell(to=sent_to, g=(g.count, g.ranks, g.staleness), got=(v.indices.tolist(), v.values.tolist()),
     stats=(s.sent, s.folded, s.overwritten, s.pending))
malt.barrier()
""",
        policy=policy,
    )
    for rank, told in enumerate(result.told):
        before = (rank - 1) % 3
        assert told["to"] == {((rank + 1) % 3,)}
        if policy == "latest":
            assert told["g"] == (1, (before,), (0,))
            assert told["got"] == ([before, 103], [1, 1])
            assert told["stats"] == (4, 1, 3, 0)
        else:
            assert told["g"] == (4, (before,) * 4, (3, 2, 1, 0))
            assert told["got"] == ([before, 100, 101, 102, 103], [4, 1, 1, 1, 1])
            assert told["stats"] == (4, 4, 0, 0)
