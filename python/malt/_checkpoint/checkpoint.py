"""Checkpoints: a folder with one directory for each checkpoint, and in it one file for each rank.

The files are in the safetensors format. The ranks write a checkpoint as a draft under another name.
A rename makes it a checkpoint, once every rank has its file on the disk. So a kill at any moment
leaves a whole checkpoint or none.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from malt._alike import check_alike
from malt._arguments import whole
from malt._checkpoint import safetensors, spread, vector_files
from malt._checkpoint.layout import (
    EXTRA,
    NOTE,
    SLOW_DISK,
    VERSION,
    check_named,
    checkpoint_name,
    file_name,
    is_checkpoint,
    numbers_in,
    path_of,
)
from malt._checkpoint.safetensors import Array, Later
from malt._errors import ConfigError, Error
from malt._job import job as jobs
from malt._job.agreement import Report, Together
from malt._mistakes import missed
from malt._system_limits import reason

_DRAFT, _OLD = ".malt-draft-", ".malt-old-"


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
        path: a directory on a file system that all ranks share, and the same path on all ranks; it
            is made if it does not exist. Only one job may save there at a time.
        vectors: by name, of malt.vector() or malt.sparse_vector(), or NumPy arrays of any shape.
            Also tables of malt.ps, of which each rank saves its part: all pushes that the ranks
            made before this call, but at staleness 0 only those before their last clock().
        extra: further data to save: values that JSON has, and NumPy arrays.
        keep: how many of the newest checkpoints are kept, at least 1.
        each_rank: False if all ranks have the same values (BSP): the lowest rank's are saved.
            Tables are saved as they always are.
        timeout: seconds that all waits for other ranks may together take; if None, that of
            malt.init(), and the time that a slow disk (20 MB/s) takes for all data. All waits for
            rows of a table may together take as long, and the time that a slow disk takes for the
            table. In a job whose ranks rejoin, each of three steps has this limit.

    Returns:
        The checkpoint's directory, in `path`.

    Raises:
        ConfigError: saving failed on a rank (no space, not writable, a vector that cannot be
            saved, lost rows of a table), or the ranks give different paths, `each_rank` or tables;
            raised on every rank. Existing checkpoints stay.
        TimeoutError: the ranks that the error names did not come. Existing checkpoints stay.
    """
    call = Together("malt.save", timeout)
    made = None
    with jobs.current().turns.hold(call.call), call:
        missed.excuse_unexchanged()
        while made is None:
            made = _attempt(call, path, vectors, extra or {}, keep, each_rank)
    return made


def _attempt(
    call: Together,
    path: str | os.PathLike[str],
    vectors: Mapping[str, Any],
    extra: Mapping[str, Any],
    keep: int,
    each_rank: bool,
) -> Path | None:
    """Try to save; None if a rank has died meanwhile and another attempt is needed without it."""

    def start() -> tuple[tuple[_Content, Report], Report]:
        folder = path_of(path)
        content = _Content.of(folder, vectors, extra, keep, call.timeout)
        for rows in content.tables.values():
            rows.await_pushes()
        clocks = spread.clocks_of(content.tables)
        given = {"path": str(folder), "each_rank": bool(each_rank)}
        return (content, given), {
            "given": given,
            "bytes": content.size,
            "draft": secrets.token_hex(8),
            "clocks": clocks,
        }

    (content, given), reports = call.step("start", start, may_differ=True)
    told = {rank: report["given"] for rank, report in reports.items()}
    check_alike(call.call, told)
    ranks = sorted(reports)
    me, lead = call.group.rank, ranks[0]
    folder = Path(told[me]["path"])
    savers = ranks if each_rank else [lead]  # of vectors
    writers = ranks if content.tables else savers
    clocks = {rank: report["clocks"] for rank, report in reports.items()}
    # A random name: a rank of an earlier job that still runs on another host cannot use it.
    draft = folder / (_DRAFT + reports[lead]["draft"])
    if call.timeout is None:
        in_all = sum(reports[rank]["bytes"] for rank in savers)
        in_all += sum(rows.size for rows in content.tables.values())
        call.allow(in_all / SLOW_DISK)

    def write() -> tuple[None, Report]:
        call.check_repeated(given, told[me])
        spread.check_alike(clocks)
        if me in writers:
            whole = content if me in savers else content.without_vectors()
            _write_draft(whole.with_rows(clocks), draft, me, savers, writers)
        return None, {"editions": spread.editions_of(content.tables)}

    def commit() -> tuple[None, Report]:
        # Only the lead decides whether all files are there: ranks on different hosts may differ
        # about a rank that dies just now.
        if me != lead or sorted(written) != ranks or not spread.are_of_one_edition(written):
            return None, {}
        return None, {"number": _commit(draft, writers)}

    try:
        _, written = call.step("write", write)
        _, reports = call.step("commit", commit)
    except BaseException as error:
        # The failed draft may be what fills the disk. If no file system is shared, the lead does
        # not see the others' drafts. After a ConfigError, which all ranks get, it commits none.
        if me == lead or isinstance(error, ConfigError):
            shutil.rmtree(draft, ignore_errors=True)
        raise
    made = reports.get(lead, {}).get("number")
    if made is None:
        return None
    if me == lead:
        _drop_old(folder, keep)
    return folder / checkpoint_name(made)


@dataclass(frozen=True)
class _Content:
    """The data that a rank saves. Nothing is copied, except values that must be converted."""

    arrays: Mapping[str, Array | Later]
    extra: dict[str, Any]
    size: int  # bytes, without those of tables until with_rows()
    tables: spread.Tables
    tables_note: Report = field(default_factory=dict)

    @staticmethod
    def of(
        folder: Path,
        vectors: Mapping[str, Any],
        extra: Mapping[str, Any],
        keep: int,
        limit: float | None,
    ) -> _Content:
        if folder.suffix in vector_files.SUFFIXES:
            raise ConfigError(
                f"path is {folder}; checkpoints are saved in a directory: leave out {folder.suffix}"
            )
        whole("keep", keep, 1)
        check_named("vectors", vectors)
        check_named("extra", extra)
        arrays: dict[str, Array] = {}
        tables = spread.tables_in(vectors, limit)
        named = [vector_files.arrays_of(n, v) for n, v in vectors.items() if n not in tables]
        named.append({EXTRA + k: v for k, v in extra.items() if isinstance(v, np.ndarray)})
        for name, array in ((n, a) for one in named for n, a in one.items()):
            _check_name(name, arrays)
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
        size = len(text) + sum(a.nbytes for a in arrays.values())
        return _Content(arrays, plain, size, tables)

    def without_vectors(self) -> _Content:
        return replace(self, arrays={}, extra={})

    def with_rows(self, clocks: Mapping[int, Report]) -> _Content:
        """Return it with this rank's part of the tables; `clocks` by live rank."""
        arrays = spread.arrays_of(self.tables, clocks)
        for name in arrays:
            _check_name(name, self.arrays)
        note = spread.note_of(self.tables, clocks)
        whole: dict[str, Array | Later] = {**self.arrays, **arrays}
        size = self.size + sum(each.nbytes for each in arrays.values())
        return replace(self, arrays=whole, size=size, tables_note=note)

    def write(self, path: Path, savers: list[int]) -> None:
        note = {"version": VERSION, "ranks": savers, "extra": self.extra}
        if self.tables:
            note["tables"] = self.tables_note
        safetensors.write(path, self.arrays, {NOTE: json.dumps(note, default=_plain)})


def _check_name(name: str, others: Mapping[str, Any]) -> None:
    if name in others or name == "__metadata__":
        raise ConfigError(f"two arrays would be named {name!r}; rename a vector")


def _plain(value: Any) -> Any:
    """Convert a NumPy number for json."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__}")


def _write_draft(
    content: _Content, draft: Path, rank: int, savers: list[int], writers: list[int]
) -> None:
    """Write this rank's file; the first of the writers also prepares the folder."""
    folder = draft.parent
    try:
        _make_directory(folder)
        if rank == writers[0]:
            _sweep(folder, but=draft)
        draft.mkdir(exist_ok=True)
        content.write(draft / file_name(rank), savers)
    except Error:  # malt's PeerError and TimeoutError are OSErrors too
        raise
    except OSError as error:
        if error.errno == errno.ENOENT and folder.is_dir() and not draft.exists():
            raise ConfigError(
                f"{draft} was removed while this rank wrote it: the call timed out or was "
                "interrupted on another rank; repeat it on all ranks"
            ) from error
        need = f"arrays {vector_files.listed(content.arrays)} need {content.size} bytes"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            there = next(p for p in (folder, *folder.parents) if p.exists())
            need += f", and {shutil.disk_usage(there).free} are free there; make room"
        elif error.errno != errno.EFBIG:
            need = "save where every rank may write"
        raise ConfigError(
            f"cannot write in {folder}: {reason(error)}; {need}. The checkpoints that are there "
            "stay"
        ) from error


def _commit(draft: Path, writers: list[int]) -> int:
    """Make the draft the newest checkpoint; return its number."""
    missing = [rank for rank in writers if not (draft / file_name(rank)).exists()]
    if missing:
        raise ConfigError(
            f"rank {missing[0]} has written into {draft}, and it is not there for the rank that "
            "looked; path must be on a file system that all ranks share"
        )
    _sync(draft)
    number = max(numbers_in(draft.parent), default=0) + 1
    draft.rename(draft.parent / checkpoint_name(number))
    _sync(draft.parent)
    return number


def _drop_old(folder: Path, keep: int) -> None:
    """Remove all but the newest, renamed first: a half-removed directory is no checkpoint."""
    try:
        paths = [folder / checkpoint_name(number) for number in sorted(numbers_in(folder))]
        for path in list(filter(is_checkpoint, paths))[:-keep]:
            path.rename(folder / (_OLD + path.name))
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
