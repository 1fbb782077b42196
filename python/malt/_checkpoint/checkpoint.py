"""Checkpoints: a folder with one directory for each checkpoint, and in it one file for each rank.

The files are in the safetensors format. The ranks write a checkpoint as a draft under another name.
A rename makes it a checkpoint, once every rank has its file on the disk. So a kill at any moment
leaves a whole checkpoint or none.
"""

from __future__ import annotations

import errno
import json
import operator
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from malt._checkpoint import safetensors, vector_files
from malt._checkpoint.safetensors import Array
from malt._errors import ConfigError, DamagedError, Error
from malt._job import job as jobs
from malt._job import missed
from malt._job.agreement import Report, Together

_VERSION = 1  # of the note, and of the arrays' names
_NOTE = "malt"  # the note's name in a file's metadata
_EXTRA = "extra/"  # the prefix of the names of the extras' arrays
_CHECKPOINT = re.compile(r"checkpoint-(\d{6,})")
_DRAFT, _OLD = ".malt-draft-", ".malt-old-"
# Bytes/s that all ranks together write at least; by default ranks wait for one another that long.
_SLOW_DISK = 20e6


_Puts = list[Callable[[], None]]


@dataclass(frozen=True)
class Restored:
    """The data that malt.restore() has read.

    Attributes:
        path: of the checkpoint (a directory) or the file.
        extra: the saved extras; {} from a file that MALT has not written.
        arrays: by name, if restore() was given no vectors.
        damaged: newer checkpoints that were skipped because they are damaged.
    """

    path: Path
    extra: dict[str, Any]
    arrays: dict[str, Array] = field(default_factory=dict)
    damaged: tuple[Path, ...] = ()


# ---- Saving --------------------------------------------------------------------------------------
def save(
    path: str | os.PathLike[str],
    vectors: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    *,
    keep: int = 2,
    each_rank: bool = True,
    timeout: float | None = None,
) -> Path:
    """Save vectors in a new checkpoint. Collective.

    The checkpoint has every rank's values at the time of its call. When this returns, the whole
    checkpoint is on the disk; if processes are killed meanwhile, it is there as a whole or not at
    all. If a rank dies meanwhile, the checkpoint is made without that rank.

    Args:
        path: a directory on a file system that all ranks share; it is made if it does not exist.
            Only one job may save there at a time.
        vectors: by name, of malt.vector() or malt.sparse_vector(), or NumPy arrays of any shape.
        extra: further data to save: values that JSON has, and NumPy arrays.
        keep: how many of the newest checkpoints are kept, at least 1.
        each_rank: False if all ranks have the same values (BSP): the lowest rank's are saved.
        timeout: seconds to wait for other ranks, in each of three steps; if None, that of
            malt.init(), plus in the second step the time that a slow disk (20 MB/s) takes for all
            data.

    Returns:
        The checkpoint's directory, in `path`.

    Raises:
        ConfigError: saving failed on a rank (no space, not writable, a vector that cannot be
            saved); raised on every rank. Existing checkpoints stay.
        TimeoutError: the ranks that the error names did not come. Existing checkpoints stay.
    """
    folder = Path(path)
    call = Together("malt.save", timeout)
    made = None
    with jobs.current().turns.hold(call.call):
        missed.excuse_unexchanged()
        while made is None:
            made = _attempt(call, folder, vectors, extra or {}, keep, each_rank)
    return made


def _attempt(
    call: Together,
    folder: Path,
    vectors: Mapping[str, Any],
    extra: Mapping[str, Any],
    keep: int,
    each_rank: bool,
) -> Path | None:
    """Try to save; None if a rank has died meanwhile and another attempt is needed without it."""

    def start() -> tuple[_Content, Report]:
        content = _Content.of(folder, vectors, extra, keep)
        return content, {"bytes": content.size, "draft": secrets.token_hex(8)}

    content, reports = call.step("start", start)
    ranks = sorted(reports)
    me, lead = call.group.rank, ranks[0]
    writers = ranks if each_rank else [lead]
    # A random name: a rank of an earlier job that still runs on another host cannot use it.
    draft = folder / (_DRAFT + reports[lead]["draft"])
    patience = None
    if call.timeout is None:
        in_all = sum(reports[rank]["bytes"] for rank in writers)
        patience = jobs.current().settings.timeout + in_all / _SLOW_DISK

    def write() -> tuple[None, Report]:
        if me in writers:
            _write_draft(content, draft, me, writers)
        return None, {}

    def commit() -> tuple[None, Report]:
        # Only the lead decides whether all files are there: ranks on different hosts may differ
        # about a rank that dies just now.
        if me != lead or sorted(written) != ranks:
            return None, {}
        return None, {"number": _commit(draft, writers)}

    try:
        _, written = call.step("write", write, patience)
        _, reports = call.step("commit", commit)
    except Error:
        if me == lead:  # the failed draft may be what fills the disk
            shutil.rmtree(draft, ignore_errors=True)
        raise
    made = reports.get(lead, {}).get("number")
    if made is None:
        return None
    if me == lead:
        _drop_old(folder, keep)
    return folder / _checkpoint_name(made)


@dataclass(frozen=True)
class _Content:
    """The data that a rank saves. Nothing is copied, except values that must be converted."""

    arrays: dict[str, Array]
    extra: dict[str, Any]
    size: int  # bytes

    @staticmethod
    def of(
        folder: Path, vectors: Mapping[str, Any], extra: Mapping[str, Any], keep: int
    ) -> _Content:
        if folder.suffix in vector_files.SUFFIXES:
            raise ConfigError(
                f"path is {folder}; checkpoints are saved in a directory: leave out {folder.suffix}"
            )
        if operator.index(keep) < 1:
            raise ConfigError(f"keep is {keep}; it must be at least 1")
        _check_named("vectors", vectors)
        _check_named("extra", extra)
        arrays: dict[str, Array] = {}
        named = [vector_files.arrays_of(name, vector) for name, vector in vectors.items()]
        named.append({_EXTRA + k: v for k, v in extra.items() if isinstance(v, np.ndarray)})
        for name, array in ((n, a) for one in named for n, a in one.items()):
            if name in arrays or name == "__metadata__":
                raise ConfigError(f"two arrays would be named {name!r}; rename a vector")
            safetensors.check_dtype(name, array)
            arrays[name] = array
        plain = {k: v for k, v in extra.items() if not isinstance(v, np.ndarray)}
        try:
            text = json.dumps(plain, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"extra has what JSON has not: {error}; it takes numbers, texts, lists, "
                "dictionaries, True, False, None and NumPy arrays"
            ) from error
        return _Content(arrays, plain, len(text) + sum(a.nbytes for a in arrays.values()))

    def write(self, path: Path, writers: list[int]) -> None:
        note = {"version": _VERSION, "ranks": writers, "extra": self.extra}
        safetensors.write(path, self.arrays, {_NOTE: json.dumps(note, default=_plain)})


def _plain(value: Any) -> Any:
    """Convert a NumPy number for json."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__}")


def _write_draft(content: _Content, draft: Path, rank: int, writers: list[int]) -> None:
    """Write this rank's file; the first of the writers also prepares the folder."""
    folder = draft.parent
    try:
        _make_directory(folder)
        if rank == writers[0]:
            _sweep(folder, but=draft)
        draft.mkdir(exist_ok=True)
        content.write(draft / _file_name(rank), writers)
    except OSError as error:
        there = next(p for p in (folder, *folder.parents) if p.exists())
        raise ConfigError(
            f"cannot write in {folder}: {error}; arrays {vector_files.listed(content.arrays)} need "
            f"{content.size} bytes, and {shutil.disk_usage(there).free} are free there; make room, "
            "or save where every rank may write. The checkpoints that are there stay"
        ) from error


def _commit(draft: Path, writers: list[int]) -> int:
    """Make the draft the newest checkpoint; return its number."""
    missing = [rank for rank in writers if not (draft / _file_name(rank)).exists()]
    if missing:
        raise ConfigError(
            f"rank {missing[0]} has written into {draft}, and it is not there for the rank that "
            "looked; path must be on a file system that all ranks share"
        )
    _sync(draft)
    number = _newest(draft.parent) + 1
    draft.rename(draft.parent / _checkpoint_name(number))
    _sync(draft.parent)
    return number


def _check_named(what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{what} is a {type(given).__name__}; it is a dict by name: {{'w': vector}}"
        )


def _drop_old(folder: Path, keep: int) -> None:
    """Remove all but the newest, renamed first: a half-removed directory is no checkpoint."""
    try:
        for number in sorted(_numbers(folder))[:-keep]:
            name = _checkpoint_name(number)
            (folder / name).rename(folder / (_OLD + name))
        _sweep(folder)
    except OSError as error:
        jobs.log.warning("malt.save: cannot remove old checkpoints: %s", error)


def _sweep(folder: Path, but: Path | None = None) -> None:
    """Remove the directories that failed attempts have left."""
    for left in [*folder.glob(_DRAFT + "*"), *folder.glob(_OLD + "*")]:
        if left.is_symlink():  # its owner has moved that checkpoint elsewhere: it stays there
            left.unlink()
        elif left != but:
            shutil.rmtree(left)


def _make_directory(path: Path) -> None:
    """Make a directory and its parents, and wait until they are on the disk."""
    if path.is_dir():
        return
    if path.parent != path:
        _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- Restoring -----------------------------------------------------------------------------------
def restore(
    path: str | os.PathLike[str],
    vectors: Mapping[str, Any] | None = None,
    *,
    resized: str = "average",
    timeout: float | None = None,
) -> Restored | None:
    """Read the newest undamaged checkpoint into vectors. Collective.

    If as many ranks restore as have saved (ranks that are dead not counted), each gets the values
    of the rank in the same position. The call needs memory for a second copy of the vectors.

    Args:
        path: as in save(); or one checkpoint in that; or a file with the suffix .safetensors, .npz
            or .npy, from which every rank gets the same.
        vectors: as in save(), of the same names, dtypes and shapes; if None, arrays are returned.
        resized: what a rank gets if another number of ranks saved: "average", the mean of all that
            saved (sparse vectors too; integers are rounded toward zero), or "wrap", the values of
            the rank at this one's position modulo their number. The extras and, without vectors,
            the arrays are always those of the latter.
        timeout: seconds to wait for other ranks, in each step; that of malt.init() if None.

    Returns:
        The data read; None if there is no checkpoint in `path`.

    Raises:
        ConfigError: on every rank: a vector is missing, or has another dtype or size; all
            checkpoints are damaged; or the file is. The vectors are unchanged.
        TimeoutError: the ranks that the error names did not come.
    """
    call = Together("malt.restore", timeout)
    with jobs.current().turns.hold(call.call):
        missed.excuse_unexchanged()
        return _restore(call, Path(path), vectors, resized)


def _restore(
    call: Together, source: Path, vectors: Mapping[str, Any] | None, resized: str
) -> Restored | None:
    damaged: list[Path] = []
    newest: DamagedError | None = None
    number: int | None = None

    def choose() -> tuple[None, Report]:
        if resized not in ("average", "wrap"):
            raise ConfigError(f"resized is {resized!r}; it is 'average' or 'wrap'")
        if vectors is not None:
            _check_named("vectors", vectors)
        is_one = source.suffix in vector_files.SUFFIXES or _CHECKPOINT.fullmatch(source.name)
        return None, {"number": None if is_one else _newest(source, number)}

    while True:
        _, reports = call.step("choose", choose)
        ranks = sorted(reports)
        number = reports[ranks[0]]["number"]
        if number == 0:
            if newest is not None:
                raise ConfigError(
                    f"every checkpoint in {source} is damaged; remove them to start over. "
                    f"The newest: {newest}"
                )
            return None
        origin = source if number is None else source / _checkpoint_name(number)
        place = (ranks.index(call.group.rank), len(ranks))

        read = partial(_read, origin, place, vectors, resized)
        try:
            (puts, restored), _ = call.step("read", read)
        except DamagedError as error:
            if number is None:
                raise
            newest = newest or error
            if call.group.rank == ranks[0]:
                jobs.log.warning("%s; restoring the checkpoint before it", error)
            damaged.append(origin)
            continue
        for put in puts:
            put()
        return Restored(origin, restored.extra, restored.arrays, tuple(damaged))


def _read(
    origin: Path, place: tuple[int, int], vectors: Mapping[str, Any] | None, resized: str
) -> tuple[tuple[_Puts, Restored], Report]:
    """Read the data for the rank at position place[0] of place[1]."""
    if origin.suffix in vector_files.SUFFIXES:
        with vector_files.opened(origin, vectors or []) as file:
            extra = {}
            if isinstance(file, safetensors.SafetensorsFile) and _NOTE in file.notes:
                extra = _extra_of(file, _note_of(file))
            return _take(origin, vectors, file, [file], extra)
    try:
        first = min(origin.glob("rank-*.safetensors"), default=origin / _file_name(0))
        saved = _note_of(safetensors.SafetensorsFile(first))["ranks"]
        own = safetensors.SafetensorsFile(origin / _file_name(saved[place[0] % len(saved)]))
        sources: list[vector_files.Source] = [own]
        if len(saved) != place[1] and resized == "average":
            sources = [safetensors.SafetensorsFile(origin / _file_name(rank)) for rank in saved]
        return _take(origin, vectors, own, sources, _extra_of(own, _note_of(own)))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        raise DamagedError(f"{origin} is damaged: {error}") from error


def _take(
    origin: Path,
    vectors: Mapping[str, Any] | None,
    own: vector_files.Source,
    sources: list[vector_files.Source],
    extra: dict[str, Any],
) -> tuple[tuple[_Puts, Restored], Report]:
    if vectors is None:
        arrays = {name: own[name] for name in own if not name.startswith(_EXTRA)}
        return ([], Restored(origin, extra, arrays)), {}
    return (vector_files.prepare(vectors, sources, origin), Restored(origin, extra)), {}


def _note_of(file: safetensors.SafetensorsFile) -> dict[str, Any]:
    """Return the note that MALT has written in a file whose checksums have been checked."""
    if not file.is_sealed or _NOTE not in file.notes:
        raise DamagedError(f"{file.path} is damaged: what MALT notes in a checkpoint is missing")
    try:
        note = json.loads(file.notes[_NOTE])
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{file.path} is damaged: MALT's note is no JSON: {error}") from error
    if not isinstance(note, dict) or "version" not in note:
        raise DamagedError(f"{file.path} is damaged: MALT's note has no version")
    if note["version"] != _VERSION:
        raise ConfigError(
            f"{file.path} is a checkpoint of version {note['version']}, and this MALT reads "
            f"version {_VERSION}; restore it with the MALT that saved it"
        )
    ranks, extra = note.get("ranks"), note.get("extra")
    if not ranks or not safetensors.are_sizes(ranks) or not isinstance(extra, dict):
        raise DamagedError(f"{file.path} is damaged: MALT's note lacks ranks, or extras")
    return note


def _extra_of(file: safetensors.SafetensorsFile, note: dict[str, Any]) -> dict[str, Any]:
    arrays = {name[len(_EXTRA) :]: file[name] for name in file if name.startswith(_EXTRA)}
    return {**note["extra"], **arrays}


# ---- Names ---------------------------------------------------------------------------------------
def _checkpoint_name(number: int) -> str:
    return f"checkpoint-{number:06d}"


def _file_name(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def _numbers(folder: Path) -> list[int]:
    if not folder.exists():
        return []
    matches = (_CHECKPOINT.fullmatch(entry.name) for entry in folder.iterdir())
    return [int(match[1]) for match in matches if match]


def _newest(folder: Path, below: int | None = None) -> int:
    """Return the highest number of a checkpoint, below `below`; 0 if there is none."""
    return max((n for n in _numbers(folder) if below is None or n < below), default=0)
