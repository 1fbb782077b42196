"""Dense vectors: the caller's memory, folds, staleness, policies, counters, allreduce."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import run_job

import malt

PROMPT = 15.0  # seconds, on a busy machine
DTYPES = ["float32", "float64", "int32", "int64"]
# Older NumPy takes all memory from DLPack for read-only (numpy/numpy#28632).
DLPACK_IS_WRITEABLE = np.lib.NumpyVersion(np.__version__) >= "2.2.5"


class Lent:
    """NumPy memory that is offered through DLPack and nothing else."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def address(array: np.ndarray[Any, Any]) -> int:
    return array.__array_interface__["data"][0]


def balance(stats: dict[str, Any]) -> bool:
    ends = ("folded", "overwritten", "rejected", "pending", "to_dead")
    return stats["sent"] == sum(stats[end] for end in ends)


# Memory


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (1,), (3, 5), (2, 3, 4), ()])
def test_vector_is_the_callers_array_itself(alone: None, dtype: str, shape: tuple[int]) -> None:
    w = np.ones(shape, dtype=dtype)
    v = malt.vector(w)
    assert v.array is w
    assert len(v) == w.size
    assert v.dtype == w.dtype


def test_contiguous_part_of_a_larger_array_is_shared_in_place(alone: None) -> None:
    whole = np.arange(20, dtype=np.float64).reshape(5, 4)
    v = malt.vector(whole[1:3])
    v.array[:] = -1
    assert whole[1:3].tolist() == [[-1] * 4] * 2
    assert whole[3].tolist() == [12, 13, 14, 15]


def test_several_arrays_are_one_vector(alone: None) -> None:
    parts = [np.zeros((2, 3), dtype=np.float32), np.zeros(5, dtype=np.float32)]
    v = malt.vector(parts)
    assert len(v) == 11
    assert [address(a) for a in v.array] == [address(a) for a in parts]


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        (lambda w: [w, w], ("data[0]", "data[1]")),
        (lambda w: [np.zeros(3, w.dtype), w[4:], w[:5]], ("data[1]", "data[2]")),
        (lambda w: [w, np.zeros(3, w.dtype), w[3:4]], ("data[0]", "data[2]")),
    ],
)
def test_arrays_that_share_memory_are_refused_by_their_places(
    alone: None, pieces: Any, names: tuple[str, str]
) -> None:
    with pytest.raises(malt.ConfigError, match=r"share memory.*folded twice") as refused:
        malt.vector(pieces(np.ones(8)))
    assert all(name in str(refused.value) for name in names)


def test_arrays_that_follow_one_another_in_memory_share_none(alone: None) -> None:
    w = np.ones(8)
    assert len(malt.vector([w[4:], w[:4]])) == 8


@pytest.mark.parametrize(("shape", "expected"), [((3, 4), (3, 4)), (5, (5,)), ((2, 2), (2, 2))])
def test_shape_gives_zeros_in_memory_of_malts_own(
    alone: None, shape: Any, expected: tuple[int]
) -> None:
    v = malt.vector(shape)
    assert (v.array.shape, v.array.dtype, v.array.any()) == (expected, np.float32, False)
    v.array[...] = 3
    assert v.array.sum() == 3 * len(v)


@pytest.mark.parametrize("dtype", DTYPES)
def test_own_memory_has_the_dtype_asked_for(alone: None, dtype: str) -> None:
    assert malt.vector((2, 2), dtype=dtype).array.dtype == np.dtype(dtype)


def test_own_memory_outlives_vector_and_job() -> None:
    with malt.init():
        array = malt.vector((3, 4)).array
        array[:] = 7
    assert array.tolist() == [[7.0] * 4] * 3
    array += 1
    assert array.sum() == 96


def test_callers_memory_is_kept_as_long_as_the_vector(alone: None) -> None:
    v = malt.vector(np.full(100_000, 3.0))
    np.full(100_000, 9.0)  # would come to lie there, had the array been let go
    assert v.array[0] == v.array[-1] == 3.0


def test_dlpack_memory_is_shared(alone: None) -> None:
    w = np.arange(6, dtype=np.float64).reshape(2, 3)
    if not DLPACK_IS_WRITEABLE:
        with pytest.raises(malt.ConfigError, match=r"a Lent is read-only .*NumPy before 2\.2\.5"):
            malt.vector(Lent(w))
        return
    v = malt.vector(Lent(w))
    assert (address(v.array), v.array.shape) == (address(w), (2, 3))
    v.array[1, 2] = -5
    assert w[1, 2] == -5


def test_dlpack_memory_in_a_list_is_shared(alone: None) -> None:
    parts = [np.zeros(3, dtype=np.float32), np.ones(2, dtype=np.float32)]
    v = malt.vector([Lent(parts[0]) if DLPACK_IS_WRITEABLE else parts[0], parts[1]])
    assert [address(a) for a in v.array] == [address(a) for a in parts]


def test_memory_of_a_torch_tensor_is_shared(alone: None) -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.zeros(3, 4), torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))):
        v = malt.vector(tensor)
        assert address(v.array) == tensor.data_ptr()
        v.array[...] = 2
        assert bool((tensor == 2).all())


def test_folds_write_into_the_callers_memory_of_every_kind(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        f"DLPACK_IS_WRITEABLE = {DLPACK_IS_WRITEABLE}"
        """
class Lent:
    def __init__(self, array): self.array = array
    def __dlpack__(self, **options): return self.array.__dlpack__(**options)
    def __dlpack_device__(self): return self.array.__dlpack_device__()
malt.init()
fill = np.arange(1, 25, dtype=np.float32) * (rank + 1)
flat, cube = fill.copy(), fill.reshape(2, 3, 4).copy()
pair, lent = [fill[:5].copy(), fill[5:].reshape(19, 1).copy()], fill.copy()
own = malt.vector((4, 6))
own.array[:] = fill.reshape(4, 6)
through_dlpack = malt.vector(Lent(lent) if DLPACK_IS_WRITEABLE else lent)
for v in (malt.vector(flat), malt.vector(cube), malt.vector(pair), through_dlpack, own):
    v.scatter()
    v.gather(malt.REPLACE, staleness=0)
tell(got=[flat, cube.ravel(), np.concatenate([p.ravel() for p in pair]), lent, own.array.ravel()])
malt.barrier()
""",
    )
    for rank, arrays in enumerate(result.each("got")):
        for array in arrays:
            np.testing.assert_array_equal(array, np.arange(1, 25) * (2 - rank))


# Folds

LENGTHS = (1, 3, 1000, 4099)
LONG = 30_011  # elements: the ranks share the folding of a vector as long as this


def inputs(ranks: int, dtype: str, length: int) -> np.ndarray[Any, Any]:
    """What the ranks send, by rank; the script makes the same."""
    random = np.random.default_rng(length)
    return (random.standard_normal((ranks, length)) * 1000).astype(dtype)


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


def fold_with_numpy(name: str, all_values: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
    """The fold over ALL as its documentation words it; integers round toward zero."""
    ranks = len(all_values)
    exact = all_values.astype(np.float64)
    ordered = np.sort(exact, axis=0)
    cut = int(0.3 * ranks)
    folded = {
        "AVG": exact.mean(axis=0),
        "SUM": exact.sum(axis=0),
        "WEIGHTED": exact.mean(axis=0),  # ALL gives every rank the same weight
        "REPLACE": exact[0 if rank != 0 else 1],  # all are as new: the first
        "MEDIAN": np.median(exact, axis=0),
        "TRIMMED_MEAN": ordered[cut : ranks - cut].mean(axis=0),
    }[name]
    if all_values.dtype.kind == "f":
        return folded
    return np.rint(folded) if name == "WEIGHTED" else np.trunc(folded)


def is_close(
    values: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], all_values: np.ndarray[Any, Any]
) -> bool:
    """Equal for integers; the rounding of a sum of floats is relative to its terms."""
    relative = {"float32": 1e-6, "float64": 1e-14}.get(values.dtype.name, 0)
    return bool((np.abs(values - expected) <= relative * np.abs(all_values).sum(axis=0)).all())


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
    with pytest.raises(TypeError, match="neither a built-in fold"):
        v.gather(3)


# What a gather does and returns


def test_gather_without_updates_keeps_values(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.array([1.5, -2.5])
v = malt.vector(w)
calls = []
seen = []
for fold in [*FOLDS.values(), lambda mine, updates: calls.append(1)]:
    for staleness in (None, 0, 3):
        g = v.gather(fold, staleness=staleness)
        seen.append((g.count, g.ranks, g.staleness, g.rejected))
tell(w=w, seen=seen, calls=calls)
malt.barrier()
""",
    )
    for told in result.told:
        assert told["w"].tolist() == [1.5, -2.5]
        assert set(told["seen"]) == {(0, (), (), ())}
        assert told["calls"] == []


@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_an_update_is_folded_at_most_once(tmp_path: Path, policy: str) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
w = np.array([1.0])
v = malt.vector(w, policy=policy)
v.scatter()
malt.barrier()
first = v.gather(malt.SUM)
second = v.gather(malt.SUM)
third = v.gather(malt.SUM, staleness=0)
malt.barrier()
tell(counts=(first.count, second.count, third.count), w=w, stats=counters(v))
""",
        policy=policy,
    )
    for told in result.told:
        assert told["counts"] == (2, 0, 0)
        assert told["w"].tolist() == [3.0]
        assert (told["stats"]["sent"], told["stats"]["folded"]) == (2, 2)
        assert (told["stats"]["bytes_out"], told["stats"]["bytes_in"]) == (16, 16)


def test_staleness_k_waits_until_neighbours_are_at_most_k_behind(tmp_path: Path) -> None:
    """Rank 0 is at iteration 3, rank 1 at 1 until told to go on."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
w = np.full(1, 100.0 * (rank + 1))
v = malt.vector(w)
if rank == 0:
    v.scatter(); v.scatter(); v.scatter()
    tell(no_wait=error_of(v.gather, malt.REPLACE, staleness=3, timeout=5))  # 3 - 3: always there
    raise_flag("start")
    await_flag("one")
    g = v.gather(malt.REPLACE, staleness=2, timeout=30)
    tell(two=(g.count, g.staleness, w[0]))
    tell(late=error_of(v.gather, malt.REPLACE, staleness=1, timeout=0.2),
         bsp=error_of(v.gather, malt.REPLACE, staleness=0, timeout=0.2))
    start = time.monotonic()
    g = v.gather(malt.REPLACE)
    tell(asp=(g.count, time.monotonic() - start))
    raise_flag("go on")
    g = v.gather(malt.REPLACE, staleness=0)
    tell(last=(g.count, g.staleness, w[0]))
else:
    await_flag("start")
    v.scatter()
    raise_flag("one")
    await_flag("go on")
    time.sleep(0.1)
    w[0] = 201; v.scatter()
    w[0] = 202; v.scatter()
    v.gather(malt.REPLACE, staleness=0)
malt.barrier()
""",
    )
    told = result.told[0]
    assert told["no_wait"] is None
    assert told["two"] == (1, (2,), 200.0)
    for name, target in (("late", 2), ("bsp", 3)):
        error = told[name]
        assert (error.kind, error.ranks) == ("TimeoutError", (1,))
        assert error.says("rank 1", f"iteration {target}", "at iteration 3")
        assert 0.2 <= error.seconds < PROMPT
    assert told["asp"][0] == 0
    assert told["asp"][1] < PROMPT
    assert told["last"] == (1, (0,), 202.0)


def test_gather_at_staleness_0_folds_its_own_iteration_though_a_neighbour_is_ahead(
    tmp_path: Path,
) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.zeros(1)
v = malt.vector(w)
rounds = []
for step in range(1, 21):
    w[0] = 1000 * rank + step
    v.scatter()
    if rank == 0: time.sleep(0.002)  # rank 1 runs ahead as far as it can
    g = v.gather(malt.REPLACE, staleness=0)
    rounds.append((w[0], g.staleness))
tell(rounds=rounds)
malt.barrier()
""",
    )
    for rank, rounds in enumerate(result.each("rounds")):
        assert rounds == [(1000 * (1 - rank) + step, (0,)) for step in range(1, 21)]


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


# Policies and counters


def test_latest_keeps_the_newest_and_counts_what_it_replaced(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.zeros(4)
v = malt.vector(w, policy="latest", depth=3)
if rank == 0:
    for step in range(1, 11):
        w[:] = step
        v.scatter()
    tell(before=counters(v))
malt.barrier()
if rank == 1:
    g = v.gather(malt.REPLACE)
    tell(w=w, count=g.count)
malt.barrier()
if rank == 0:
    tell(after=counters(v))
malt.barrier()
""",
    )
    before, after = result.told[0]["before"], result.told[0]["after"]
    assert (before["sent"], before["pending"], before["overwritten"]) == (10, 3, 7)
    assert result.told[1]["w"].tolist() == [10] * 4
    assert result.told[1]["count"] == 1
    assert (after["folded"], after["overwritten"], after["pending"]) == (1, 9, 0)
    assert balance(before)
    assert balance(after)


@pytest.mark.parametrize("depth", [1, 4])
def test_queue_loses_nothing(tmp_path: Path, depth: int) -> None:
    """Depth 1 is NOTIFY-ACK: a sender goes on only when its last update has been folded."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
w = np.zeros(8, dtype=np.int64)
v = malt.vector(w, policy="queue", depth=depth)
STEPS = 300
order = {r: [] for r in range(size)}
total = np.zeros(8, dtype=np.int64)
def add(mine, updates):
    for u in updates:
        order[u.rank].append(u.iteration)
        total[:] += u.values
if rank == 0:  # a slow one, who only receives
    while sum(map(len, order.values())) < 2 * STEPS:
        v.gather(add)
else:
    sent = 0
    while sent < STEPS:
        w[:] = 1000 * rank + sent
        assert v.scatter(malt.STAR) == (0,)
        sent += 1
malt.barrier()
tell(order=order, total=total, stats=counters(v))
malt.barrier()
""",
        depth=depth,
    )
    told = result.told[0]
    assert told["order"][1] == told["order"][2] == list(range(1, 301))
    expected = sum(1000 * r + step for r in (1, 2) for step in range(300))
    assert told["total"].tolist() == [expected] * 8
    for rank in (1, 2):
        stats = result.told[rank]["stats"]
        assert (stats["sent"], stats["folded"], stats["overwritten"]) == (300, 300, 0)
        assert (stats["pending"], stats["to_dead"], stats["rejected"]) == (0, 0, 0)
    assert told["stats"]["bytes_in"] == 600 * 64


def test_notify_ack_makes_the_sender_wait_for_the_receiver(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
w = np.ones(1)
v = malt.vector(w, policy="queue", depth=1)
if rank == 0:
    v.scatter()
    raise_flag("sent")
    start = time.monotonic()
    v.scatter()
    end = time.monotonic()
    tell(waited=end - start, counted=v.stats().wait_seconds, iteration=v.iteration, at=end)
else:
    await_flag("sent")
    time.sleep(0.3)
    tell(at=time.monotonic())
    v.gather(malt.SUM)
malt.barrier()
""",
    )
    told = result.told[0]
    assert told["at"] > result.told[1]["at"]
    assert told["waited"] / 2 < told["counted"] <= told["waited"]
    assert told["iteration"] == 2


@pytest.mark.parametrize("policy", ["latest", "queue"])
def test_counters_balance_after_a_storm(tmp_path: Path, policy: str) -> None:
    """Every rank scatters and gathers as it likes; in the end each update is accounted for."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=40)
w = np.ones(100)
v = malt.vector(w, policy=policy, depth=3)
random = np.random.default_rng(rank)
gathered = 0
alone = []
for step in range(400):
    w[:] = rank
    v.scatter()
    if policy == "queue" or random.random() < 0.4:
        gathered += v.gather(malt.AVG).count
    if step % 50 == 0:
        alone.append(counters(v)["sent"] == 3 * (step + 1))
raise_flag(rank)
while policy == "queue" and not all(flag_is_up(r) for r in range(size)):
    gathered += v.gather(malt.AVG).count
malt.barrier()
tell(stats=counters(v), gathered=gathered, alone=alone)
malt.barrier()
""",
        policy=policy,
    )
    stats = result.each("stats")
    assert all(balance(s) for s in stats), stats
    assert all(s["sent"] == 1200 and s["to_dead"] == s["rejected"] == 0 for s in stats), stats
    assert sum(s["folded"] for s in stats) == sum(result.each("gathered")) > 0
    assert sum(s["bytes_in"] for s in stats) == 800 * sum(s["folded"] for s in stats)
    # Under "latest" an update that finds every slot being read is overwritten before it is written.
    assert all(s["bytes_out"] <= 800 * s["sent"] for s in stats)
    if policy == "queue":
        assert all(s["bytes_out"] == 800 * s["sent"] for s in stats)
        assert all(s["overwritten"] == 0 for s in stats), stats
    assert all(all(alone) for alone in result.each("alone"))


# Graphs


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_each_graph_sends_and_waits_along_its_edges(tmp_path: Path, ranks: int) -> None:
    result = run_job(
        tmp_path,
        ranks,
        """
malt.init()
wrong = []
for name, graph in GRAPHS.items():
    w = np.zeros(3)
    v = malt.vector(w, graph=graph)
    for step in range(6):
        w[:] = rank
        to = v.scatter()
        g = v.gather(malt.SUM, staleness=0)
        expected = (tuple(graph.out(rank, size, step)), tuple(graph.in_(rank, size, step)))
        if (to, g.ranks) != expected or (w != rank + sum(expected[1])).any():
            wrong.append((name, step, to, g.ranks, w.tolist()))
    s = v.stats()
    if s.sent != sum(len(graph.out(rank, size, t)) for t in range(6)): wrong.append((name, s.sent))
tell(wrong=wrong)
malt.barrier()
""",
    )
    assert result.each("wrong") == [[]] * ranks


def test_one_scatter_can_go_over_another_graph(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
w = np.zeros(1)
v = malt.vector(w)
circle = malt.Graph([(0, 1), (1, 2), (2, 3), (3, 0)])
rounds = []
for graph in (None, malt.RING, circle, malt.STAR, None):
    w[0] = 10 ** rank
    to = v.scatter(graph) if graph is not None else v.scatter()
    g = v.gather(malt.SUM, staleness=0)
    rounds.append((to, g.ranks, w[0]))
tell(rounds=rounds)
malt.barrier()
""",
    )
    for rank, rounds in enumerate(result.each("rounds")):
        others = tuple(r for r in range(4) if r != rank)
        beside = tuple(sorted({(rank + 1) % 4, (rank - 1) % 4}))
        star = others if rank == 0 else (0,)
        before, after = ((rank - 1) % 4,), ((rank + 1) % 4,)
        everyone = (others, others)
        expected = [everyone, (beside, beside), (after, before), (star, star), everyone]
        assert [(to, came) for to, came, _ in rounds] == expected
        for (_, came), (_, _, value) in zip(expected, rounds, strict=True):
            assert value == 10**rank + sum(10**r for r in came)


# Updates that are not finite


def test_nonfinite_updates_are_refused_counted_and_their_senders_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
bad = {1: np.nan, 2: -np.inf}.get(rank, float(rank))
got = {}
for refuse in (True, False):
    w = np.ones(1001, dtype=np.float32)
    w[1000] = bad
    v = malt.vector(w, reject_nonfinite=refuse)
    v.scatter()
    w[1000] = rank
    g = v.gather(malt.SUM, staleness=0)
    malt.barrier()
    again = v.gather(malt.SUM)
    got[refuse] = g.count, g.ranks, g.rejected, w[0], w[1000], counters(v), again.count
tell(got=got)
malt.barrier()
""",
    )
    for rank, got in enumerate(result.each("got")):
        count, ranks, rejected, ones, last, stats, again = got[True]
        assert rejected == tuple(r for r in (1, 2) if r != rank)
        assert ranks == tuple(r for r in (0, 3) if r != rank)
        assert (count, again) == (len(ranks), 0)
        assert (ones, last) == (1 + count, rank + sum(ranks))
        is_bad = rank in (1, 2)
        assert (stats["rejected"], stats["folded"]) == ((3, 0) if is_bad else (0, 3))
        assert balance(stats)
        count, ranks, rejected, ones, last, stats, _ = got[False]
        assert (count, rejected, stats["rejected"]) == (3, (), 0)
        assert not np.isfinite(last)


# Allreduce


def test_allreduce_is_exact_over_callers_and_own_memory(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
got = {}
for dtype in ("float32", "float64", "int32", "int64"):
    for length in (1, 3, 1000, 4099):
        values = np.random.default_rng(length).standard_normal((size, length)) * 1000
        for memory in ("own", "callers", "several"):
            w = np.empty(length, dtype=dtype)
            cut = max(1, length // 3)
            parts = [w[:cut], w[cut:]] if length > 1 else [w]
            v = malt.vector({"own": (length,), "callers": w, "several": parts}[memory], dtype=dtype)
            if memory == "own": w = v.array
            for name in ("AVG", "SUM", "MEDIAN", "TRIMMED_MEAN"):
                w[:] = values.astype(dtype)[rank]
                g = v.allreduce(FOLDS[name])
                got[dtype, length, name, memory] = w.copy(), g.count, g.ranks
            v.close()
tell(got=got)
malt.barrier()
""",
    )
    told = result.each("got")
    assert len(told[0]) == 4 * 4 * 3 * 4
    for (dtype, length, name, memory), (values, count, ranks) in told[0].items():
        all_values = inputs(4, dtype, length)
        expected = fold_with_numpy(name, all_values, 0)
        assert is_close(values, expected, all_values), (dtype, length, name, memory)
        assert (count, ranks) == (3, (1, 2, 3))
        for other in told[1:]:
            assert other[dtype, length, name, memory][0].tobytes() == values.tobytes()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_means_of_large_integers_are_exact_on_every_way(
    tmp_path: Path, ranks: int, transport: str
) -> None:
    """Gathered alone and shared out, reduced in one memory and by messages, dense and sparse."""
    result = run_job(
        tmp_path,
        ranks,
        """
malt.init(transport, timeout=30)
told = []
for count in (3, 9000):  # the long one is shared out
    for fold in (malt.AVG, malt.TRIMMED_MEAN(0), malt.MEDIAN):
        w = np.full(count, -(2**62) - 2 * rank)
        v = malt.vector(w)
        v.allreduce(fold)
        reduced = w.copy()
        w[:] = 2**62 + 2 * rank
        v.scatter(), v.gather(fold, staleness=0)
        told.append([set(reduced.tolist()), set(w.tolist())])
s = malt.sparse_vector(9, capacity=9, dtype=np.int64)
s.set([rank, 5], [7, 2**63 - 1])
s.scatter(), s.gather(malt.AVG, staleness=0)
tell(told=told, sparse=s.values.tolist()[-1])
malt.barrier()
""",
        transport=transport,
    )
    middle = ranks - 1  # the mean of 2 * rank
    for told in result.told:
        assert told["told"] == [[{-(2**62) - middle}, {2**62 + middle}]] * 6
        assert told["sparse"] == 2**63 - 1


def test_allreduce_goes_beside_scatters_of_differing_number(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init()
got = []
for own in (True, False):
    w = np.zeros(5)
    v = malt.vector((5,), dtype="float64") if own else malt.vector(w)
    if own: w = v.array
    for step in range(rank):
        v.scatter()
    w[:] = rank + 1
    v.allreduce(malt.SUM)
    got.append(w.tolist())
tell(got=got)
malt.barrier()
""",
    )
    assert result.each("got") == [[[6.0] * 5] * 2] * 3


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_stats_count_the_bytes_of_allreduce_and_no_updates(
    tmp_path: Path, transport: str, size: int
) -> None:
    """Each rank sends its parts of the others' sums, and its sum to them, though read in place."""
    result = run_job(
        tmp_path,
        size,
        """
malt.init(transport=TRANSPORT)
got = []
for own in (True, False):
    v = malt.vector((1001,), dtype="float64") if own else malt.vector(np.zeros(1001))
    for step in range(3):
        v.allreduce(malt.SUM)
    got.append(counters(v))
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    malt.barrier()
    got.append(counters(v))
tell(got=got)
malt.barrier()
""",
        TRANSPORT=transport,
    )
    payload = 3 * 2 * (size - 1) * 8008  # of all ranks together
    for reduced, scattered in [told["got"][i : i + 2] for told in result.told for i in (0, 2)]:
        assert all(reduced[name] == 0 for name in reduced if name[:6] != "bytes_")
        assert scattered["sent"] == scattered["folded"] == size - 1
        updates = (size - 1) * 8008
        assert scattered["bytes_out"] - reduced["bytes_out"] == updates
        assert scattered["bytes_in"] - reduced["bytes_in"] == updates
    for i in (0, 2):
        received, sent = (
            sum(told["got"][i][name] for told in result.told) for name in ("bytes_in", "bytes_out")
        )
        if transport == "shm":
            assert received == sent == payload
        else:  # a short vector goes whole to everybody, in messages with headers
            assert received == 3 * size * (size - 1) * 8008
            assert received < sent < received + 20_000


def test_allreduce_alone_changes_nothing(alone: None) -> None:
    v = malt.vector(np.array([1.0, 2.0]))
    assert v.allreduce(malt.AVG).count == 0
    assert v.array.tolist() == [1.0, 2.0]


def test_allreduce_without_a_rank_that_is_late_raises_and_can_be_repeated(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=40)
w = np.full(3, rank + 1.0)
v = malt.vector(w)
if rank < 2:  # their limit is long enough for each to see the other come
    tell(late=error_of(v.allreduce, malt.SUM, timeout=1), kept=w.copy())
    raise_flag(rank)
else:
    await_flag(0), await_flag(1)
    tell(late=error_of(v.allreduce, malt.SUM, timeout=0.3), kept=w.copy())
malt.barrier()
v.allreduce(malt.SUM)
tell(summed=w)
malt.barrier()
""",
    )
    for rank in (0, 1):
        late = result.told[rank]["late"]
        assert late.kind == "TimeoutError"
        assert late.seconds < PROMPT
        assert set(late.ranks) <= {2}, late
    assert any(result.told[rank]["late"].ranks == (2,) for rank in (0, 1))
    for rank, told in enumerate(result.told):
        assert told["kept"].tolist() == [rank + 1] * 3
        assert told["summed"].tolist() == [6] * 3


def test_allreduce_of_different_folds_is_an_error_on_every_rank(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init()
w = np.full(3, rank + 1.0)
v = malt.vector(w)
tell(differ=error_of(v.allreduce, malt.AVG if rank else malt.SUM), kept=w.copy(),
     cuts=error_of(v.allreduce, malt.TRIMMED_MEAN(0.2 + rank / 10)),
     weighted=error_of(v.allreduce, malt.WEIGHTED))
malt.barrier()
v.allreduce(malt.SUM)
tell(summed=w)
malt.barrier()
""",
    )
    for rank, told in enumerate(result.told):
        for name in ("differ", "cuts"):
            assert told[name].kind == "ConfigError"
            assert told[name].says("the ranks ask for different folds")
        assert told["weighted"].kind == "ConfigError"
        assert told["weighted"].says("takes AVG, SUM, MEDIAN and TRIMMED_MEAN, not WEIGHTED")
        assert told["kept"].tolist() == [rank + 1] * 3
        assert told["summed"].tolist() == [3] * 3


def test_allreduce_between_hosts_sends_two_vectors_less_two_parts(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init()
w = np.arange(100_000, dtype=np.float32) + rank
v = malt.vector(w)
g = v.allreduce(malt.AVG)
tell(sent=v.stats().bytes_out / w.nbytes, ranks=g.ranks, w=w)
malt.barrier()
""",
        environ={"MALT_TRANSPORT": "tcp"},
    )
    for rank, told in enumerate(result.told):
        assert 1.5 <= told["sent"] < 1.51
        assert told["ranks"] == tuple(r for r in range(4) if r != rank)
        assert np.array_equal(told["w"], np.arange(100_000, dtype=np.float32) + 1.5)


@pytest.mark.parametrize(
    ("memory", "transport"), [("own", "shm"), ("callers", "shm"), ("callers", "tcp")]
)
def test_allreduce_goes_on_without_a_rank_that_is_killed(
    tmp_path: Path, memory: str, transport: str
) -> None:
    """Rank 2 dies somewhere inside; the others agree on each result: with it, or without."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
v = malt.vector((20_000,) if memory == "own" else np.zeros(20_000, dtype=np.float32))
w = v.array
rows, without = [], 0
start = time.monotonic()
while without < 20:
    if rank == 2 and len(rows) == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    w[:] = 10 ** rank
    g = v.allreduce(malt.SUM)
    assert w.min() == w.max()
    rows.append(int(w[0]))
    without += g.count == 1
tell(rows=rows, alive=malt.alive(), seconds=time.monotonic() - start)
malt.barrier()
""",
        "--keep-going",
        code=128 + 9,
        environ={"MALT_TRANSPORT": transport},
        memory=memory,
    )
    rows = result.told[0]["rows"]
    assert rows == result.told[1]["rows"]
    assert set(rows) == {111, 11}
    assert rows == sorted(rows, reverse=True)  # never back to three
    assert rows.count(11) >= 20
    assert result.told[0]["alive"] == (0, 1)
    assert result.told[0]["seconds"] < 30
    assert not result.told[2]


def test_ctypes_pointer_taken_before_stays_the_vectors(tmp_path: Path) -> None:
    """A program in another language may keep the address: gather writes there, and nowhere else."""
    result = run_job(
        tmp_path,
        2,
        """
import ctypes
malt.init()
w = np.zeros(3)
there = ctypes.cast(w.ctypes.data, ctypes.POINTER(ctypes.c_double))
v = malt.vector(w)
for r in range(3): there[r] = rank + 1.0
v.scatter()
v.gather(malt.SUM, staleness=0)
tell(there=there[:3])
malt.barrier()
""",
    )
    assert result.each("there") == [[3.0] * 3] * 2
    assert ctypes.sizeof(ctypes.c_double) == 8


def test_an_array_that_is_rebound_is_told_of_once(tmp_path: Path) -> None:
    """Each rank would train alone from there on."""
    result = run_job(
        tmp_path,
        2,
        """
class Model: pass
malt.init()
w, p, model = np.ones(3), [np.ones(2), np.ones(4)], Model()
model.coef = np.ones(5)
v = malt.vector(w, name="w")
m = malt.vector(p, name="p")
c = malt.vector(model.coef, name="coef")
for _ in range(3):
    w = w - 0.1
    p[1] = p[1] - 0.1
    v.scatter(), v.gather(staleness=0), m.allreduce(), c.allreduce()
model.coef = model.coef - 0.1
c.allreduce(), c.allreduce()
""",
    )
    said = "no longer used by anybody else"
    for which in ("the array of vector 'w'", "array 1 (counted from 0) of vector 'p'"):
        assert result.output.count(f"{which} is {said}") == 2  # once a rank
    assert result.output.count(f"the array of vector 'coef' is {said}") == 2
    assert result.output.count("w -= g") == 6


def test_no_false_alarm_of_rebinding(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = run_job(
        tmp_path,
        2,
        """
import torch
class Model: pass
malt.init()
def rounds(v):
    for _ in range(2):
        v.scatter(), v.gather(staleness=0), v.allreduce()
model = Model()
model.coef = np.ones((2, 3))
a = np.ones(4)
view, = [a[1:3]]
b = np.ones(8).reshape(2, 4)
row = b[0]
t = torch.ones(3)
shared = np.ones(3)
also = torch.from_numpy(shared)
made = [malt.vector(data) for data in (model.coef, a, b, t, shared, (2, 2))]
del a, b, shared
for v in made:
    rounds(v)
used = malt.vector(np.ones(3))
used.scatter(), used.gather(staleness=0)
used.array[:] = 2
rounds(used)
parts = malt.vector([np.ones(2), np.ones(3)])
parts.array[1][:] = 2
rounds(parts)
""",
    )
    assert "used by anybody" not in result.output
