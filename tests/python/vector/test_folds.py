"""What folds make of the updates that have come: as NumPy would, on all ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs import run_job
from numpy_folds import fold_with_numpy, inputs, is_close

import malt

DTYPES = ["float32", "float64", "int32", "int64"]
LENGTHS = (1, 3, 1000, 4099)
LONG = 30_011  # elements: the ranks share the folding of a vector as long as this

# With four updates of each length and type over three ranks or four, everything is folded once.
FOLD_SCRIPT = """
malt.init()
got = {}
for dtype in ("float32", "float64", "int32", "int64"):
    for length in (1, 3, 1000, 4099):
        values = np.random.default_rng(length).standard_normal((size, length)) * 1000
        w = np.empty(length, dtype=dtype)
        cut = length // 3
        v = malt.vector(w if length != 4099 else [w[:cut], w[cut:]])
        for name, fold in FOLDS.items():
            w[:] = values.astype(dtype)[rank]
            v.scatter()
            g = v.gather(fold, staleness=0)
            assert (g.count, g.ranks) == (size - 1, tuple(r for r in range(size) if r != rank)), g
            got[dtype, length, name] = w.copy()
        v.close()
tell(got=got)
malt.barrier()
"""


@pytest.mark.parametrize("ranks", [3, 4])
def test_builtin_folds_agree_with_numpy(tmp_path: Path, ranks: int) -> None:
    result = run_job(tmp_path, ranks, FOLD_SCRIPT)
    for rank, got in enumerate(result.each("got")):
        assert len(got) == len(DTYPES) * len(LENGTHS) * 6
        for (dtype, length, name), values in got.items():
            all_values = inputs(ranks, dtype, length)
            expected = fold_with_numpy(name, all_values, rank)
            assert is_close(values, expected, all_values), (rank, dtype, length, name)


def test_weighted_uses_the_mixing_weights_of_the_graph(tmp_path: Path) -> None:
    """At a chain's ends one neighbour, in its middle two: weights differ between ranks."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
chain = malt.Graph([(a, a + d) for a in range(4) for d in (-1, 1) if 0 <= a + d < 4])
got = {}
for name, graph in {"RING": malt.RING, "STAR": malt.STAR, "chain": chain,
                    "ONE_PEER": malt.ONE_PEER}.items():
    w = np.eye(4)[rank]
    v = malt.vector(w, graph=graph)
    v.scatter()
    v.gather(malt.WEIGHTED, staleness=0)
    got[name] = w, graph.in_(rank, size, 0), graph.weights(rank, size, 0)
tell(got=got)
malt.barrier()
""",
    )
    told = result.each("got")
    for name in told[0]:
        for rank in range(4):
            mixed, senders, weights = told[rank][name]
            expected = np.zeros(4)
            expected[list(senders)] = weights
            expected[rank] = 1 - sum(weights)
            np.testing.assert_allclose(mixed, expected, atol=1e-15, err_msg=f"{name}, rank {rank}")
        # All four graphs have doubly stochastic weights: the sum over ranks is kept.
        np.testing.assert_allclose(sum(got[name][0] for got in told), np.ones(4), atol=1e-15)


def test_replace_takes_the_newest_of_several_senders(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
w = np.zeros(2)
v = malt.vector(w)
for step in range((0, 3, 1)[rank]):
    w[:] = 10 * rank + step
    v.scatter()
malt.barrier()
if rank == 0:
    g = v.gather(malt.REPLACE)
    tell(w=w, ranks=g.ranks, staleness=g.staleness)
malt.barrier()
""",
    )
    told = result.told[0]
    assert told["w"].tolist() == [12, 12]
    assert (told["ranks"], told["staleness"]) == ((1, 2), (-3, -1))


def test_user_fold_gets_own_values_and_readonly_updates(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
w = np.array([1.0, 2.0]) * (rank + 1)
v = malt.vector(w)
seen = []
def in_place(mine, updates):
    seen.append((mine.copy(), [(u.rank, u.iteration, u.values.copy()) for u in updates]))
    seen.append([error_of(u.values.__setitem__, 0, 9.0) for u in updates])
    for u in updates:
        mine += 10 * u.values
v.scatter()
g = v.gather(in_place, staleness=0)
tell(seen=seen, w=w, g=(g.count, g.ranks, g.staleness))
malt.barrier()
""",
    )
    for rank, told in enumerate(result.told):
        others = [r for r in range(3) if r != rank]
        (mine, updates), refused = told["seen"]
        assert mine.tolist() == [rank + 1, 2 * (rank + 1)]
        assert [(r, i, x.tolist()) for r, i, x in updates] == [
            (r, 1, [r + 1, 2 * (r + 1)]) for r in others
        ]
        assert [e.kind for e in refused] == ["builtins.ValueError"] * 2
        assert all(e.says("read-only") for e in refused)
        scale = (rank + 1) + 10 * sum(r + 1 for r in others)
        assert told["w"].tolist() == [scale, 2 * scale]
        assert told["g"] == (2, tuple(others), (0, 0))


def test_user_fold_may_return_the_result_and_see_several_arrays_as_one(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
parts = [np.full((2, 2), rank + 1, np.float32), np.full(3, 10.0 * (rank + 1), np.float32)]
v = malt.vector(parts)
v.scatter()
shapes = []
def largest(mine, updates):
    shapes.append((mine.shape, updates[0].values.shape))
    return np.maximum(mine, updates[0].values)
v.gather(largest, staleness=0)
tell(parts=parts, shapes=shapes)
malt.barrier()
""",
    )
    for told in result.told:
        assert told["shapes"] == [((7,), (7,))]
        assert [a.tolist() for a in told["parts"]] == [[[2, 2], [2, 2]], [20, 20, 20]]


def test_exception_in_a_user_fold_propagates_and_leaves_updates_pending(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.array([rank + 1.0])
parts = [np.array([1.0]), np.array([2.0, 3.0])]
got = {}
for policy in ("latest", "queue"):
    for kind, data in (("one", w), ("several", parts)):
        v = malt.vector(data, policy=policy)
        v.scatter()
        malt.barrier()
        def broken(mine, updates):
            raise KeyError("of the user")
        raised = error_of(v.gather, broken)
        wrong_shape = error_of(v.gather, lambda mine, updates: np.zeros(99))
        malt.barrier()
        before = counters(v)
        malt.barrier()
        again = v.gather(malt.AVG, staleness=0)
        malt.barrier()
        got[policy, kind] = raised, wrong_shape, before, again.count, counters(v)
tell(got=got)
malt.barrier()
""",
    )
    for told in result.each("got"):
        for raised, wrong_shape, before, count, after in told.values():
            assert raised.kind == "builtins.KeyError"
            assert raised.text == "'of the user'"
            assert wrong_shape.kind == "builtins.ValueError"
            assert (before["sent"], before["pending"], before["folded"]) == (1, 1, 0)
            assert count == 1
            assert (after["sent"], after["pending"], after["folded"]) == (1, 0, 1)


def test_fold_that_is_none_is_refused(alone: None) -> None:
    v = malt.vector(np.zeros(2))
    with pytest.raises(TypeError, match=r"fold is 3; it is malt\.AVG"):
        v.gather(3)


BSP_SCRIPT = """
malt.init()
w = np.random.default_rng(rank).standard_normal(length).astype(np.float32)
v = malt.vector(w)
rows = []
for step in range(25):
    w += np.float32(0.01) * np.sin(w * (rank + 1))
    v.scatter()
    v.gather([malt.AVG, malt.MEDIAN, malt.TRIMMED_MEAN(0.3), malt.WEIGHTED][step % 4], staleness=0)
    rows.append(w.tobytes())
tell(rows=rows)
malt.barrier()
"""


@pytest.mark.parametrize("length", [1003, LONG])
def test_bsp_over_all_is_bit_for_bit_equal_on_all_ranks_and_repeatable(
    tmp_path: Path, length: int
) -> None:
    first = run_job(tmp_path / "a", 4, BSP_SCRIPT, length=length).each("rows")
    second = run_job(tmp_path / "b", 4, BSP_SCRIPT, length=length).each("rows")
    assert first[0] == first[1] == first[2] == first[3]
    assert first == second
    assert len(set(first[0])) == 25  # it did go somewhere


def test_long_vectors_changed_since_the_scatter_are_folded_as_they_are_now(tmp_path: Path) -> None:
    """Over ALL the ranks share out the folding of what they have sent: not what one has now."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
got = {}
for dtype in ("float32", "int64"):
    values = (np.random.default_rng(length).standard_normal((size, length)) * 1000).astype(dtype)
    w = np.empty(length, dtype=dtype)
    v = malt.vector([w[: length // 3], w[length // 3 :]])
    for name in ("AVG", "SUM", "MEDIAN", "TRIMMED_MEAN", "WEIGHTED"):
        w[:] = values[rank]
        v.scatter()
        if rank == 1:
            w[[0, 777, 20_000, -1]] = 500_000
        g = v.gather(FOLDS[name], staleness=0)
        got[dtype, name] = w.copy()
tell(got=got)
malt.barrier()
""",
        length=LONG,
    )
    for rank, got in enumerate(result.each("got")):
        for (dtype, name), values in got.items():
            all_values = inputs(3, dtype, LONG)
            if rank == 1:
                all_values[1, [0, 777, 20_000, -1]] = 500_000
            expected = fold_with_numpy(name, all_values, rank)
            assert is_close(values, expected, all_values), (rank, dtype, name)


def test_long_vectors_may_be_folded_differently_by_each_rank(tmp_path: Path) -> None:
    """Then nothing can be shared out; the results are right all the same, and nobody waits long."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
w = np.empty(length)
v = malt.vector(w)
fold = (malt.SUM, malt.AVG, lambda mine, updates: mine - sum(u.values for u in updates))[rank]
values = []
start = time.monotonic()
for step in range(30):
    w[:] = 10 ** rank
    v.scatter()
    v.gather(fold, staleness=0)
    values.append((w.min(), w.max()))
tell(values=values, seconds=time.monotonic() - start)
malt.barrier()
""",
        length=LONG,
    )
    for expected, told in zip((111, 37, 89), result.told, strict=True):
        assert told["values"] == [(expected, expected)] * 30
        assert told["seconds"] < 15
