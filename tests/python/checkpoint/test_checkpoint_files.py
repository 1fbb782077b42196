"""The files of a checkpoint: those of others, for others, damaged ones, and malformed ones."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy as published_safetensors
from saved_files import names, only_file

import malt
from malt import _npy
from malt._checkpoint import safetensors
from malt._errors import DamagedError


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
    with pytest.raises(malt.ConfigError, match="never unpickled"):
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


def test_an_array_that_is_larger_than_its_vector_is_not_read(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, large = tmp_path / "x.npz", np.zeros(1 << 22, np.int32)
    np.savez_compressed(path, **{"w": large, "s/indices": large, "s/dim": np.array(9)})
    with pytest.raises(malt.ConfigError, match="has 4194304 elements, and the one it is for a cap"):
        malt.restore(path, {"s": malt.sparse_vector(9, capacity=2)})
    monkeypatch.setattr(_npy, "read_into", lambda *_: pytest.fail("it is read"))
    with pytest.raises(malt.ConfigError, match=r"'w' is int32 of shape \(4194304,\), and the ve"):
        malt.restore(path, {"w": np.zeros(2, np.int32)})


def test_arrays_that_do_not_fit_into_memory_are_not_read(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_npy, "available_bytes", lambda: 30_000_000)
    np.savez_compressed(tmp_path / "x.npz", w=np.zeros(1 << 22))
    np.save(tmp_path / "x.npy", np.zeros(1 << 22))
    published_safetensors.save_file({"w": np.zeros(1 << 22)}, tmp_path / "x.safetensors")
    for kind in ("npz", "npy", "safetensors"):
        with pytest.raises(malt.ConfigError, match=rf"x\.{kind}.* takes 32 MiB, and 28 MiB are"):
            malt.restore(tmp_path / f"x.{kind}")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_without_a_limit_is_refused(alone: None, tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as file:
        file.writestr("w.npy", b"")
    with pytest.raises(malt.ConfigError, match=f"w.npy is compressed by method {method}; it may"):
        malt.restore(tmp_path / "x.npz", {"w": np.zeros(2)})


def test_a_header_of_gigabytes_is_not_read(alone: None, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("w.npy", b"\x93NUMPY\2\0" + struct.pack("<I", 1 << 24) + bytes(1 << 24))
    with pytest.raises(malt.ConfigError, match="header of 16,777,216 bytes; it may have 10,000"):
        malt.restore(tmp_path / "x.npz", {"w": np.zeros(2)})


def test_checksums_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.write(path, {"w": np.zeros(1)}, {"malt_checksums": "[" * 5000})
    with pytest.raises(DamagedError, match="its checksums are no JSON"):
        safetensors.SafetensorsFile(path)


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
    with pytest.raises(malt.ConfigError, match=f"{re.escape(str(path))} has a damaged header"):
        malt.restore(path, {"w": np.zeros(2)})


# ---- Damage --------------------------------------------------------------------------------------
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
    assert "restoring checkpoint-000001, the one before it" in caplog.records[-1].message


def test_every_missing_end_is_noticed(two: Path) -> None:
    file = only_file(two / "checkpoint-000002")
    for length in reversed(range(file.stat().st_size)):
        os.truncate(file, length)
        restored = malt.restore(two, {"w": np.zeros(3)})
        assert restored is not None
        assert restored.extra == {"step": 1}


def test_missing_file_is_noticed(two: Path) -> None:
    file = only_file(two / "checkpoint-000002")
    file.rename(file.with_name("rank-00001.safetensors"))
    restored = malt.restore(two, {"w": np.zeros(3)})
    assert restored is not None
    assert restored.extra == {"step": 1}
    assert restored.damaged == (two / "checkpoint-000002",)


def test_all_damaged_is_an_error_and_changes_nothing(
    two: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for checkpoint in two.iterdir():
        with only_file(checkpoint).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
    w = np.zeros(3)
    with pytest.raises(malt.ConfigError, match=r"every checkpoint in .* damaged.*checksum"):
        malt.restore(two, {"w": w})
    assert w.tolist() == [0, 0, 0]
    (warning,) = caplog.records  # none is before the first
    assert "restoring checkpoint-000001, the one before it" in warning.message


def make_junk(folder: Path) -> list[str]:
    """Make entries that are no checkpoints; return the names of those that look like one."""
    (folder / "checkpoint-000009").write_text("notes")
    (folder / "checkpoint-000010").symlink_to(folder / "none")
    (folder / "checkpoint-000011").mkdir()
    (folder / "checkpoint-000012" / "rank-00000.safetensors").mkdir(parents=True)
    (folder / "checkpoint-000013").mkdir()
    (folder / "checkpoint-000013" / "notes").write_text("x")
    looking = [f"checkpoint-{number:06d}" for number in range(9, 14)]
    for name in ("checkpoint-abc", "checkpoint-0000014"):
        (folder / name).mkdir()
    return looking


def test_entries_that_are_no_checkpoint_are_passed_over(
    two: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looking, w = make_junk(two), np.zeros(3)
    restored = malt.restore(two, {"w": w})
    assert restored is not None
    assert (restored.path.name, restored.damaged, w[0]) == ("checkpoint-000002", (), 2)
    warned = [record.message for record in caplog.records]
    assert warned == [
        f"{two / name} is no checkpoint: it has no files of ranks; passing over it"
        for name in reversed(looking)
    ]


def test_save_neither_counts_nor_removes_entries_that_are_no_checkpoint(
    two: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_junk(two)
    junk = set(names(two)) - {"checkpoint-000001", "checkpoint-000002"}
    assert malt.save(two, {"w": np.zeros(3)}, keep=2).name == "checkpoint-000014"
    assert set(names(two)) == junk | {"checkpoint-000002", "checkpoint-000014"}
    assert not caplog.records


def test_nothing_is_restored_where_there_is_no_checkpoint(alone: None, tmp_path: Path) -> None:
    looking, w = make_junk(tmp_path), np.ones(3)
    assert malt.restore(tmp_path, {"w": w}) is None
    for name in looking:
        with pytest.raises(malt.ConfigError, match=f"{name} is no checkpoint: it has no files"):
            malt.restore(tmp_path / name, {"w": w})
    assert w.tolist() == [1, 1, 1]


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


@pytest.mark.parametrize("suffix", [".safetensors", ".npy", ".npz"])
def test_a_pipe_is_refused(tmp_path: Path, alone: None, suffix: str) -> None:
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    v = malt.vector(np.ones(3))
    with pytest.raises(malt.ConfigError, match="is no file, but a pipe"):
        malt.restore(pipe, {"v": v})


def test_a_file_of_another_kind_is_named(tmp_path: Path, alone: None) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no arrays")
    with pytest.raises(malt.ConfigError, match=r"notes\.txt is neither a directory of checkp.*npz"):
        malt.restore(path)
    with pytest.raises(malt.ConfigError, match=r"notes\.txt"):
        malt.save(path, {"w": np.zeros(3)})
    assert path.read_text() == "no arrays"


@pytest.mark.parametrize("shape", [[1] * 65, [10**4000] * 3, [2**63]])
def test_shapes_beyond_numpys_are_damage(tmp_path: Path, shape: list[int]) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(DamagedError):
        safetensors.SafetensorsFile(path)
