"""Checkpoints: what comes back, what a damaged or foreign file does, and kills at any moment."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy as published_safetensors
from jobs import run_job, start_job

import malt
from malt._checkpoint import safetensors
from malt._errors import DamagedError

RESUME = Path(__file__).resolve().parents[2] / "examples" / "resume.py"


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one rank, in this process."""
    with malt.init():
        yield


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def only_file(checkpoint: Path) -> Path:
    (file,) = checkpoint.iterdir()
    return file


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


# ---- Files of others, and files for others -------------------------------------------------------
def test_others_can_open_what_is_saved(alone: None, tmp_path: Path) -> None:
    arrays = {"w": np.arange(6.0).reshape(2, 3), "mask": np.array([True]), "n": np.array(3)}
    file = only_file(malt.save(tmp_path, arrays, {"step": 1}))
    loaded = published_safetensors.load_file(file)
    assert {name: a.tolist() for name, a in loaded.items()} == {
        name: a.tolist() for name, a in arrays.items()
    }


@pytest.mark.parametrize("kind", ["safetensors", "npz", "npy"])
def test_files_of_others_go_into_vectors_by_name(alone: None, tmp_path: Path, kind: str) -> None:
    path, saved = tmp_path / f"model.{kind}", np.arange(6, dtype=np.float32).reshape(2, 3)
    if kind == "safetensors":
        published_safetensors.save_file({"w": saved, "other": np.zeros(2)}, path)
    elif kind == "npz":
        np.savez_compressed(path, w=saved, other=np.array([{}], dtype=object))
    else:
        np.save(path, saved)
    v = malt.vector(np.zeros((2, 3), dtype=np.float32))
    restored = malt.restore(path, {"w": v})
    assert restored is not None
    assert (restored.path, restored.extra) == (path, {})
    assert v.array.tolist() == saved.tolist()


def test_one_ranks_file_of_a_checkpoint_is_such_a_file(alone: None, tmp_path: Path) -> None:
    file = only_file(malt.save(tmp_path, {"w": np.ones(2)}, {"step": 4}))
    restored = malt.restore(file)
    assert restored is not None
    assert restored.extra == {"step": 4}
    assert restored.arrays["w"].tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_pickles_are_refused(alone: None, tmp_path: Path, kind: str) -> None:
    path, poison = tmp_path / f"x.{kind}", np.array([{}], dtype=object)
    with path.open("wb") as file:
        np.savez(file, w=poison) if kind == "npz" else np.save(file, poison)
    with pytest.raises(malt.ConfigError, match="allow_pickle"):
        malt.restore(path, {"w": np.zeros(1)})


@pytest.mark.parametrize("kind", ["safetensors", "npz", "npy"])
@pytest.mark.parametrize("content", [b"", b"\0", b"PK\3\4 no more", b"\x93NUMPY\1\0"])
def test_file_of_another_kind_is_refused(
    alone: None, tmp_path: Path, kind: str, content: bytes
) -> None:
    path = tmp_path / f"x.{kind}"
    path.write_bytes(content)
    with pytest.raises(malt.ConfigError, match=re.escape(str(path))):
        malt.restore(path, {"w": np.zeros(1)})


def test_file_that_is_not_there_is_an_error(alone: None, tmp_path: Path) -> None:
    with pytest.raises(malt.ConfigError, match=r"No such file.*none\.npz"):
        malt.restore(tmp_path / "none.npz", {"w": np.zeros(1)})


def entry(begin: Any, end: Any, shape: Any = (1,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BAD_HEADERS: dict[str, Any] = {
    "overlap": {"w": entry(0, 4), "x": entry(0, 4)},
    "partly": {"w": entry(0, 8, (2,)), "x": entry(4, 8)},
    "hole": {"w": entry(4, 8)},
    "rest": {"w": entry(0, 4)},
    "beyond": {"w": entry(0, 4000, (1000,))},
    "backwards": {"w": entry(8, 0)},
    "negative": {"w": entry(-4, 4)},
    "too small": {"w": entry(0, 8, (3,))},
    "fraction": {"w": entry(0, 8, (2.0,))},
    "true": {"w": entry(False, 8, (2,))},
    "huge": {"w": entry(0, 8, (2**62, 2**62))},
    "huge nothing": {"w": entry(0, 0, (0, 2**70)), "x": entry(0, 8, (2,))},
    "many dimensions": {"w": entry(0, 8, (1,) * 99 + (2,))},
    "no place": {"w": {"dtype": "F32", "shape": [2]}},
    "no dtype": {"w": entry(0, 8, (2,), None)},
    "unknown dtype": {"w": entry(0, 8, (2,), "BF16")},
    "no object": {"w": 3},
    "metadata": {"__metadata__": {"a": 1}, "w": entry(0, 8, (2,))},
    "list": [1],
    "twice": b'{"w":' + json.dumps(entry(0, 8, (2,))).encode() + b',"w":3}',
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "huge number": b'{"w":' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_bad_header_is_refused(alone: None, tmp_path: Path, what: str) -> None:
    header, path = BAD_HEADERS[what], tmp_path / "x.safetensors"
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(malt.ConfigError, match=re.escape(str(path))):
        malt.restore(path, {"w": np.zeros(2, dtype=np.float32)})


def test_header_longer_than_the_file_is_refused(alone: None, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(malt.ConfigError, match="9223372036854775808 bytes, of a file of 10"):
        malt.restore(path)


BAD_NOTES: dict[str, object] = {
    "no JSON": "{",
    "deep": "[" * 100_000,
    "list": [1],
    "no version": {"ranks": [0], "extra": {}},
    "no ranks": {"version": 1, "extra": {}},
    "empty ranks": {"version": 1, "ranks": [], "extra": {}},
    "named ranks": {"version": 1, "ranks": ["a"], "extra": {}},
    "no extra": {"version": 1, "ranks": [0]},
}


@pytest.mark.parametrize("what", BAD_NOTES)
def test_bad_note_is_refused(alone: None, tmp_path: Path, what: str) -> None:
    note, folder = BAD_NOTES[what], tmp_path / "checkpoint-000001"
    folder.mkdir()
    path = folder / "rank-00000.safetensors"
    text = note if isinstance(note, str) else json.dumps(note)
    safetensors.write(path, {"w": np.zeros(2)}, {"malt": text})
    with pytest.raises(malt.ConfigError, match=f"{re.escape(str(path))} is damaged: MALT's note"):
        malt.restore(folder, {"w": np.zeros(2)})


def test_npy_whose_header_has_no_end_is_refused(alone: None, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(2))
    path.write_bytes(path.read_bytes().replace(b"}", b" "))
    with pytest.raises(malt.ConfigError, match=f"{re.escape(str(path))} cannot be read"):
        malt.restore(path, {"w": np.zeros(2)})


# ---- Damage --------------------------------------------------------------------------------------
@pytest.fixture
def two(alone: None, tmp_path: Path) -> Path:
    """A directory with two checkpoints, of 1.0 and of 2.0."""
    for value in (1.0, 2.0):
        malt.save(tmp_path / "c", {"w": np.full(3, value)}, {"step": int(value)})
    return tmp_path / "c"


def test_every_flipped_byte_is_noticed(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = only_file(two / "checkpoint-000002")
    good, w = file.read_bytes(), np.zeros(3)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        file.write_bytes(bad)
        restored = malt.restore(two, {"w": w})
        assert restored is not None
        assert (restored.path.name, w[0], at) == ("checkpoint-000001", 1, at)
        assert restored.damaged == (two / "checkpoint-000002",)
    assert "checkpoint-000002" in caplog.records[-1].message
    assert "restoring the checkpoint before it" in caplog.records[-1].message


def test_every_missing_end_is_noticed(two: Path) -> None:
    file = only_file(two / "checkpoint-000002")
    for length in reversed(range(file.stat().st_size)):
        os.truncate(file, length)
        restored = malt.restore(two, {"w": np.zeros(3)})
        assert restored is not None
        assert restored.extra == {"step": 1}


def test_missing_file_is_noticed(two: Path) -> None:
    only_file(two / "checkpoint-000002").unlink()
    restored = malt.restore(two, {"w": np.zeros(3)})
    assert restored is not None
    assert restored.extra == {"step": 1}


def test_all_damaged_is_an_error_and_changes_nothing(two: Path) -> None:
    for checkpoint in two.iterdir():
        with only_file(checkpoint).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
    w = np.zeros(3)
    with pytest.raises(malt.ConfigError, match=r"every checkpoint in .* damaged.*checksum"):
        malt.restore(two, {"w": w})
    assert w.tolist() == [0, 0, 0]


def test_saving_goes_on_behind_a_damaged_checkpoint(two: Path) -> None:
    only_file(two / "checkpoint-000002").write_bytes(b"")
    made = malt.save(two, {"w": np.full(3, 3.0)})
    assert made.name == "checkpoint-000003"
    w = np.zeros(3)
    malt.restore(two, {"w": w})
    assert w[0] == 3


def test_checkpoint_of_another_version_is_refused(two: Path) -> None:
    file = only_file(two / "checkpoint-000002")
    file.unlink()
    note = {"version": 2, "ranks": [0], "extra": {}}
    safetensors.write(file, {"w": np.zeros(3)}, {"malt": json.dumps(note)})
    with pytest.raises(malt.ConfigError, match=r"rank-00000.* version 2, .*reads version 1"):
        malt.restore(two, {"w": np.zeros(3)})


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
def test_what_cannot_be_saved_is_refused(
    alone: None, tmp_path: Path, arguments: tuple[Any, ...], message: str
) -> None:
    path, *rest = arguments
    with pytest.raises(malt.ConfigError, match=message):
        malt.save(tmp_path / path, *rest)
    assert names(tmp_path) == []


def test_at_least_one_checkpoint_is_kept(alone: None, tmp_path: Path) -> None:
    with pytest.raises(malt.ConfigError, match="keep is 0"):
        malt.save(tmp_path, {}, keep=0)


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


def test_what_has_no_mean_says_so(tmp_path: Path) -> None:
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


# ---- Failures ------------------------------------------------------------------------------------
FAIL = """
import resource
malt.init(timeout=60)
w = np.full(100_000, float(rank))
malt.save("c", {"w": w})
path, arrays, options = "c", {"w": w}, {}
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank in bad:
    exec(harm)
error = error_of(malt.save, path, arrays, **options)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
left = sorted(os.listdir("c"))
malt.barrier()
tell(error=error, left=left, again=str(malt.save("c", {"w": w})))
"""
HARMS = {
    "full": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limit[1]))",
        ("File too large", "'w' need 800002 bytes"),
    ),
    "gone": ("path = '/proc/none/c'", ("/proc/none",)),
    "file": ("path = 'script.py/c'", ("script.py/c", "every rank may write")),
    "type": ("arrays = {'w': 'text'}", ("vectors['w'] is a str",)),
    "no mapping": ("arrays = 3", ("int",)),
}


@pytest.mark.parametrize("bad", [(0,), (2,), (1, 2)])
@pytest.mark.parametrize("harm", HARMS)
def test_failure_of_one_rank_is_all_ranks_failure(
    tmp_path: Path, harm: str, bad: tuple[int, ...]
) -> None:
    code, parts = HARMS[harm]
    result = run_job(tmp_path, 3, FAIL, harm=code, bad=bad)
    for error in result.each("error"):
        assert error.kind == "ConfigError"
        assert error.says(f"malt.save: rank {bad[0]}: ", *parts), error.text
        assert ("and also rank 2" in error.text) == (len(bad) > 1)
        assert error.seconds < 15
    assert result.told[0]["left"][-1] == "checkpoint-000001"
    assert result.each("again") == ["c/checkpoint-000002"] * 3
    assert names(tmp_path / "c") == ["checkpoint-000001", "checkpoint-000002"]


def test_restore_that_fails_on_one_rank_changes_nothing_on_any(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
malt.save("c", {"w": np.zeros(3), "x": np.zeros(3)})
w, x = np.ones(3), np.ones(3 if rank != 1 else 4)
tell(error=error_of(malt.restore, "c", {"w": w, "x": x}), w=w.tolist())
""",
    )
    for error in result.each("error"):
        assert error.says("rank 1", "'x'", "(4,)")
        assert error.seconds < 15
    assert result.each("w") == [[1, 1, 1]] * 3


def test_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
malt.save("c", {"w": np.zeros(3)})
if rank == 1:
    await_flag(0)
    await_flag(2)
    os._exit(0)
tell(error=error_of(malt.save, "c", {"w": np.ones(3)}, timeout=1))
raise_flag(rank)
""",
        "--keep-going",
        code=None,
    )
    for rank in (0, 2):
        error = result.told[rank]["error"]
        assert (error.kind, error.ranks) == ("TimeoutError", (1,))
        assert error.seconds < 15
    assert names(tmp_path / "c") == ["checkpoint-000001"]


@pytest.mark.parametrize(("transport", "victim"), [("shm", 0), ("shm", 2), ("tcp", 2)])
def test_others_save_without_a_rank_that_dies_meanwhile(
    tmp_path: Path, transport: str, victim: int
) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=30)
w = np.zeros(200_000)
if rank == victim:
    moment = 0.2 + np.random.default_rng().random()
    threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
alone = 0
while alone < 5:
    w += 1
    saved = malt.save("c", {"w": w}, {"step": w[0]})
    alone += len(list(saved.iterdir())) < 3  # the same on both, unlike whom each takes for alive
tell(step=w[0])
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        environ={"MALT_TRANSPORT": transport},
        victim=victim,
    )
    others = [rank for rank in range(3) if rank != victim]
    newest = tmp_path / "c" / names(tmp_path / "c")[-1]
    assert names(newest) == [f"rank-{rank:05d}.safetensors" for rank in others]
    for rank in others:
        file = safetensors.File(newest / f"rank-{rank:05d}.safetensors")
        assert json.loads(file.notes["malt"])["ranks"] == others
        assert np.all(file["w"] == file["w"][0])
    steps = {result.told[rank]["step"] for rank in others}
    assert len(names(tmp_path / "c")) == 2
    assert len(steps) <= 2


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """The whole job is killed while it does nothing but save; what is found is never a mixture."""
    before = 0
    for attempt in range(10):
        with start_job(
            tmp_path / f"run-{attempt}",
            3,
            """
malt.init()
w, x = np.zeros(300_000), np.zeros(10)
got = malt.restore("../c", {"w": w, "x": x})
if got: assert got.extra["step"] == w.min() == w.max() == x.min() == x.max()
tell(step=int(w[0]), damaged=len(got.damaged) if got else 0)
while True:
    w += 1
    x += 1
    malt.save("../c", {"w": w, "x": x}, {"step": int(w[0])})
""",
        ) as job:
            steps = job.await_told("step")
            assert len(set(steps)) == 1
            assert steps[0] >= before
            before = steps[0]
            assert job.await_told("damaged") == [0, 0, 0]
            time.sleep(random.uniform(0, 0.3))
    assert before > 0


# ---- Resuming ------------------------------------------------------------------------------------
def model_of(output: str) -> str:
    models = set(re.findall(r"model ([0-9a-f]{16})", output))
    assert len(models) == 1, output
    return models.pop()


@pytest.mark.timeout(900)
def test_training_killed_again_and_again_ends_with_the_same_model(tmp_path: Path) -> None:
    def command(path: str) -> list[str]:
        knobs = [str(tmp_path / path), "--steps", "4000", "--every", "5"]
        return [sys.executable, "-m", "malt", "run", "-n", "2", str(RESUME), *knobs]

    whole = subprocess.run(command("whole"), capture_output=True, text=True, timeout=300)
    assert whole.returncode == 0, whole.stdout + whole.stderr

    kills, output = 0, ""
    while kills < 8:
        with (tmp_path / "output").open("w+b") as log:
            job = subprocess.Popen(
                command("killed"), stdout=log, stderr=log, start_new_session=True
            )
            deadline = time.monotonic() + 60
            while not (output := (tmp_path / "output").read_text()) and job.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.3))
            assert job.poll() is None, f"it ended before kill {kills + 1}:\n{output}"
            os.killpg(job.pid, signal.SIGKILL)  # its guard ends the ranks
            job.wait()
            kills += 1

    last = subprocess.run(command("killed"), capture_output=True, text=True, timeout=300)
    assert last.returncode == 0, last.stdout + last.stderr
    assert "goes on at step" in last.stdout
    assert model_of(last.stdout) == model_of(whole.stdout)
    assert len(names(tmp_path / "killed")) == 2


def test_a_checkpoint_that_was_moved_and_linked_back_is_no_obstacle(
    tmp_path: Path, alone: None, caplog: pytest.LogCaptureFixture
) -> None:
    v = malt.vector(np.ones(3))
    first = malt.save(tmp_path / "saved", {"v": v})
    moved = first.rename(tmp_path / "moved")
    first.symlink_to(moved)
    for _ in range(4):
        malt.save(tmp_path / "saved", {"v": v}, keep=1)
    assert not caplog.records
    assert len(names(tmp_path / "saved")) == 1
    assert list(moved.iterdir())  # its owner's


@pytest.mark.parametrize("suffix", [".safetensors", ".npy", ".npz"])
def test_a_pipe_is_refused(tmp_path: Path, alone: None, suffix: str) -> None:
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    v = malt.vector(np.ones(3))
    with pytest.raises(malt.ConfigError, match="is no file, but a pipe"):
        malt.restore(pipe, {"v": v})


@pytest.mark.parametrize("shape", [[1] * 65, [10**4000] * 3, [2**63]])
def test_shapes_beyond_numpys_are_damage(tmp_path: Path, shape: list[int]) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(DamagedError):
        safetensors.File(path)
