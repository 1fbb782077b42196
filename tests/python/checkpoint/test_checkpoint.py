"""Checkpoints: what comes back, on one rank and on several, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import run_job
from saved_files import names, only_file

import malt


# ---- What comes back -----------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("shape", [(7,), (1,), (2, 3, 4), ()])
def test_dense_vector_comes_back(
    alone: None, tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    w = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    v = malt.vector(w)
    expected = w.copy()
    made = malt.save(tmp_path, {"w": v})
    w[...] = 0
    restored = malt.restore(tmp_path, {"w": v})
    assert restored is not None
    assert restored.path == made
    assert v.array is w
    assert np.array_equal(w, expected)


def test_vector_of_several_arrays_comes_back(alone: None, tmp_path: Path) -> None:
    parts = [np.arange(6.0).reshape(2, 3), np.arange(5.0)]
    v = malt.vector(parts)
    malt.save(tmp_path, {"model": v})
    for part in parts:
        part[...] = -1
    malt.restore(tmp_path, {"model": v})
    assert parts[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert parts[1].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stored", [[], [3, 8, 99]])
def test_sparse_vector_comes_back(alone: None, tmp_path: Path, stored: list[int]) -> None:
    v = malt.sparse_vector(100, capacity=5, dtype=np.float64)
    v.set(stored, [0.5 * i for i in stored])
    malt.save(tmp_path, {"s": v})
    v.set([1], [1.0])
    malt.restore(tmp_path, {"s": v})
    assert v.indices.tolist() == stored
    assert v.values.tolist() == [0.5 * i for i in stored]


def test_extras_come_back(alone: None, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rng.random(7)
    extra = {
        "step": np.int64(12),
        "loss": float("inf"),
        "name": 'ü"\\',
        "nested": {"a": [1, None, True]},
        "rng": rng.bit_generator.state,
        "seen": np.array([True, False]),
    }
    malt.save(tmp_path, {}, extra)
    restored = malt.restore(tmp_path, {})
    assert restored is not None
    seen = restored.extra.pop("seen")
    assert seen.tolist() == [True, False]
    assert restored.extra == {k: v for k, v in extra.items() if k != "seen"}
    other = np.random.default_rng()
    other.bit_generator.state = restored.extra["rng"]
    assert other.random() == rng.random()


def test_arrays_are_returned_where_no_vectors_are_given(alone: None, tmp_path: Path) -> None:
    arrays = {
        "mask": np.array([[True], [False]]),
        "half": np.ones(3, dtype=np.float16),
        "foreign": np.arange(4, dtype=">i4"),
        "strided": np.arange(12)[::3],
        "empty": np.zeros((0, 3)),
    }
    malt.save(tmp_path, arrays, {"x": np.zeros(1)})
    restored = malt.restore(tmp_path)
    assert restored is not None
    assert set(restored.arrays) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(restored.arrays[name], array)
        assert restored.arrays[name].dtype == array.dtype.newbyteorder("=")


def test_nothing_comes_back_where_nothing_was_saved(alone: None, tmp_path: Path) -> None:
    w = np.ones(3)
    assert malt.restore(tmp_path / "none", {"w": w}) is None
    assert w.tolist() == [1, 1, 1]


def test_newest_are_kept_and_each_can_be_restored(alone: None, tmp_path: Path) -> None:
    step = np.zeros(1)
    for number in range(1, 6):
        step[0] = number
        malt.save(tmp_path, {"step": step}, keep=3)
    assert names(tmp_path) == [f"checkpoint-{n:06d}" for n in (3, 4, 5)]
    malt.restore(tmp_path / "checkpoint-000004", {"step": step})
    assert step[0] == 4


def test_leftovers_of_dead_attempts_are_swept(alone: None, tmp_path: Path) -> None:
    for name in (".malt-draft-0123", ".malt-old-checkpoint-000001", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    malt.save(tmp_path, {"w": np.zeros(1)})
    assert names(tmp_path) == ["checkpoint-000001", "mine"]


# ---- Misuse --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"v": np.zeros(3)}, r"has no array 'v'; it has 'w'"),
        ({"w": np.zeros(4)}, r"'w' is float64 of shape \(3,\).*takes float64 of shape \(4,\)"),
        ({"w": np.zeros((3, 1))}, r"shape \(3, 1\)"),
        ({"w": np.zeros(3, dtype=np.float32)}, r"takes float32"),
        ({"w": [0.0] * 3}, r"vectors\['w'\] is a list"),
        ({"w": np.broadcast_to(np.zeros(1), 3)}, r"read-only"),
    ],
)
def test_vector_that_does_not_fit_is_refused(
    two: Path, target: dict[str, Any], message: str
) -> None:
    w = np.zeros(3)
    with pytest.raises(malt.ConfigError, match=message):
        malt.restore(
            two, {"w": w} | {f"{'w' if 'w' in target else 'v'}": next(iter(target.values()))}
        )
    assert w.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("dim", "capacity", "message"), [(99, 9, "dim 100.*99"), (100, 2, "3 elements.*capacity of 2")]
)
def test_sparse_vector_that_does_not_fit_is_refused(
    alone: None, tmp_path: Path, dim: int, capacity: int, message: str
) -> None:
    v = malt.sparse_vector(100, capacity=3)
    v.set([1, 2, 3], [1, 2, 3])
    malt.save(tmp_path, {"s": v})
    other = malt.sparse_vector(dim, capacity=capacity)
    with pytest.raises(malt.ConfigError, match=message):
        malt.restore(tmp_path, {"s": other})
    assert other.indices.size == 0


@pytest.mark.parametrize("indices", [[-1], [100], [[1]]])
def test_sparse_indices_of_others_are_checked(
    alone: None, tmp_path: Path, indices: list[Any]
) -> None:
    path = tmp_path / "s.npz"
    index = np.array(indices, dtype=np.int32)
    values = np.ones(index.shape, dtype=np.float32)
    np.savez(path, **{"s/indices": index, "s/values": values, "s/dim": np.int64(100)})
    with pytest.raises(malt.ConfigError, match="from 0 to below 100"):
        malt.restore(path, {"s": malt.sparse_vector(100, capacity=3)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("c", {"w": 3}), r"vectors\['w'\] is a int"),
        (("c", {"w": np.zeros(1, dtype=complex)}), "'w' has dtype complex128"),
        (("c", {"__metadata__": np.zeros(1)}), "__metadata__"),
        (("c", {"extra/x": np.zeros(1)}, {"x": np.zeros(1)}), "two arrays.*extra/x"),
        (("c", {}, {"x": object()}), "extra has what JSON has not: a object"),
        (("model.npz", {}), r"leave out \.npz"),
    ],
)
def test_save_refuses_bad_arguments_and_writes_nothing(
    alone: None, tmp_path: Path, arguments: tuple[Any, ...], message: str
) -> None:
    path, *rest = arguments
    with pytest.raises(malt.ConfigError, match=message):
        malt.save(tmp_path / path, *rest)
    assert names(tmp_path) == []


@pytest.mark.parametrize("keep", [0, -1, 1.5, 2.0, "2", None, True])
def test_at_least_one_checkpoint_is_kept(alone: None, tmp_path: Path, keep: Any) -> None:
    message = f"keep is {keep!r}; it must be a whole number at least 1"
    with pytest.raises(malt.ConfigError, match=re.escape(message)):
        malt.save(tmp_path, {}, keep=keep)
    assert names(tmp_path) == []


def test_resized_is_one_of_two(alone: None, tmp_path: Path) -> None:
    with pytest.raises(malt.ConfigError, match="resized is 'median'"):
        malt.restore(tmp_path, {}, resized="median")


def test_save_and_restore_need_a_job(tmp_path: Path) -> None:
    with pytest.raises(malt.ConfigError, match=r"malt\.init"):
        malt.save(tmp_path, {})
    with pytest.raises(malt.ConfigError, match=r"malt\.init"):
        malt.restore(tmp_path, {})


# ---- Several ranks -------------------------------------------------------------------------------
SAVE = """
malt.init()
w, n = np.full(3, 10.0 ** rank), np.full(2, rank - 3, dtype=np.int32)
v, s = malt.vector(w), malt.sparse_vector(50, capacity=40)
s.set([rank, 49], [rank + 1, 6])
malt.save("../c", {"w": v, "n": n, "s": s}, {"rank": rank, "a": np.array(rank)}, **options)
"""
RESTORE = """
malt.init()
w, n = np.zeros(3), np.zeros(2, dtype=np.int32)
v, s = malt.vector(w), malt.sparse_vector(50, capacity=40)
got = malt.restore("../c", {"w": v, "n": n, "s": s}, **options)
assert got.extra["a"] == got.extra["rank"]
tell(w=w.tolist(), n=n.tolist(), s=dict(zip(s.indices.tolist(), s.values.tolist())),
     extra=got.extra["rank"], path=str(got.path))
"""


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with c/, in which four ranks have saved."""
    folder = tmp_path_factory.mktemp("of_four")
    run_job(folder / "save", 4, SAVE, options={})
    return folder


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_each_rank_gets_its_own_values(tmp_path: Path, transport: str) -> None:
    environ = {"MALT_TRANSPORT": transport}
    run_job(tmp_path / "save", 4, SAVE, environ=environ, options={})
    result = run_job(tmp_path / "restore", 4, RESTORE, environ=environ, options={})
    assert result.each("w") == [[10.0**rank] * 3 for rank in range(4)]
    assert result.each("n") == [[rank - 3] * 2 for rank in range(4)]
    assert result.each("s") == [{rank: rank + 1, 49: 6} for rank in range(4)]
    assert result.each("extra") == [0, 1, 2, 3]


@pytest.mark.parametrize("ranks", [1, 2, 6])
def test_another_number_of_ranks_gets_the_average(of_four: Path, ranks: int) -> None:
    result = run_job(of_four / f"average-{ranks}", ranks, RESTORE, options={})
    assert result.each("w") == [[1111 / 4] * 3] * ranks
    assert result.each("n") == [[-1, -1]] * ranks  # -6 / 4, toward zero
    assert result.each("s") == [{0: 0.25, 1: 0.5, 2: 0.75, 3: 1, 49: 6}] * ranks
    assert result.each("extra") == [rank % 4 for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 6])
def test_another_number_of_ranks_wraps_if_so_asked(of_four: Path, ranks: int) -> None:
    result = run_job(of_four / f"wrap-{ranks}", ranks, RESTORE, options={"resized": "wrap"})
    assert result.each("w") == [[10.0 ** (rank % 4)] * 3 for rank in range(ranks)]
    assert result.each("s") == [{rank % 4: rank % 4 + 1, 49: 6} for rank in range(ranks)]


def test_one_copy_is_for_all(tmp_path: Path) -> None:
    run_job(tmp_path / "save", 3, SAVE, options={"each_rank": False})
    assert only_file(only_file(tmp_path / "c")).name == "rank-00000.safetensors"
    result = run_job(tmp_path / "restore", 2, RESTORE, options={})
    assert result.each("w") == [[1.0] * 3] * 2
    assert result.each("extra") == [0, 0]


SAVE_LARGE = """
malt.init()
dtypes = ("int8", "int32", "int64", "uint8", "uint64")
n = {d: np.array([np.iinfo(d).max, np.iinfo(d).min, np.iinfo(d).max - rank], d) for d in dtypes}
s = malt.sparse_vector(9, capacity=9, dtype="int64")
s.set([1, 2, 3], n["int64"])
if LOADS:
    for array in n.values(): array[:] = 1
    s.set([], [])
    malt.restore("../c", {**n, "s": s})
    tell(n={d: a.tolist() for d, a in n.items()}, s=s.values.tolist())
else:
    malt.save("../c", {**n, "s": s})
"""


def test_an_average_of_integers_is_exact_however_large_they_are(tmp_path: Path) -> None:
    run_job(tmp_path / "save", 3, SAVE_LARGE, LOADS=False)
    result = run_job(tmp_path / "restore", 2, SAVE_LARGE, LOADS=True)
    for n, s in zip(result.each("n"), result.each("s"), strict=True):
        for name, values in n.items():
            limits = np.iinfo(name)
            assert values == [limits.max, limits.min, limits.max - 1], name
        assert s == n["int64"]


def test_restore_on_more_ranks_refuses_booleans_as_they_have_no_mean(tmp_path: Path) -> None:
    body = """
malt.init()
tell(error=error_of(call, "../c", {"mask": np.array([True])}))
"""
    run_job(tmp_path / "save", 2, "call = malt.save\n" + body.replace("call,", "malt.save,"))
    result = run_job(tmp_path / "restore", 3, body.replace("call,", "malt.restore,"))
    assert all(error.says("bool", "no mean", "wrap") for error in result.each("error"))


def test_all_ranks_go_back_when_one_finds_damage(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_job(tmp_path / name, 3, SAVE, options={})
    file = tmp_path / "c/checkpoint-000002/rank-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    result = run_job(tmp_path / "restore", 3, RESTORE, options={})
    assert result.each("path") == ["../c/checkpoint-000001"] * 3
    assert result.output.count("rank-00002.safetensors is damaged") == 1
