"""Restoring: the newest undamaged checkpoint is found, checked on all ranks, and put in place."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from malt._alike import check_alike
from malt._checkpoint import safetensors, spread, vector_files
from malt._checkpoint.layout import (
    CHECKPOINT,
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
from malt._checkpoint.safetensors import Array
from malt._errors import ConfigError, DamagedError
from malt._job import job as jobs
from malt._job.agreement import Report, Together
from malt._mistakes import missed

_Puts = list[Callable[[], None]]

_NO_CHECKPOINT = "is no checkpoint: it has no files of ranks"


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
            or .npy, from which every rank gets the same. The same path on all ranks.
        vectors: as in save(), of the same names, dtypes and shapes; if None, arrays are returned.
            A table gets the rows, the state of its rule and the clocks that were saved, on any
            number of ranks and with any `replicas`; what its ranks hold back is dropped.
        resized: what a rank gets if another number of ranks saved: "average", the mean of all that
            saved (sparse vectors too; integers are rounded toward zero), or "wrap", the values of
            the rank at this one's position modulo their number. The extras and, without vectors,
            the arrays are always those of the latter.
        timeout: seconds that all waits for other ranks may together take; if None, that of
            malt.init(), and the time that a slow disk (20 MB/s) takes for the tables. All waits for
            rows of a table may together take as long, and the time that a slow disk takes for the
            table. In a job whose ranks rejoin, each step has this limit.

    Returns:
        The data read; None if there is no checkpoint in `path`.

    Raises:
        ConfigError: on every rank: a vector is missing, or has another dtype or size; all
            checkpoints are damaged; the file is; or the ranks give different paths or tables. The
            vectors are unchanged.
        PeerError: a rank died while tables were restored: call it again.
        TimeoutError: the ranks that the error names did not come.
    """
    call = Together("malt.restore", timeout)
    with jobs.current().turns.hold(call.call), call:
        missed.excuse_unexchanged()
        return _restore(call, path, vectors, resized)


def _raise_if_all_damaged(source: Path, errors: list[DamagedError]) -> None:
    if errors:
        raise ConfigError(
            f"every checkpoint in {source} is damaged; remove them to start over. "
            f"The newest: {errors[0]}"
        )


def _restore(
    call: Together,
    path: str | os.PathLike[str],
    vectors: Mapping[str, Any] | None,
    resized: str,
) -> Restored | None:
    damaged: list[Path] = []
    errors: list[DamagedError] = []  # of `damaged`
    number: int | None = None

    def choose() -> tuple[tuple[_Targets, list[Path], Report], Report]:
        if resized not in ("average", "wrap"):
            raise ConfigError(f"resized is {resized!r}; it is 'average' or 'wrap'")
        source = path_of(path)
        chosen: int | None = None
        others: list[Path] = []
        if CHECKPOINT.fullmatch(source.name):
            if not is_checkpoint(source):
                raise ConfigError(f"{source} {_NO_CHECKPOINT}")
        elif source.suffix not in vector_files.SUFFIXES:
            chosen, others = _newest_in(source, number)
        targets = _Targets.of(vectors, resized, call.timeout)
        given = {"path": str(source)}
        report = {"given": given, "number": chosen, "tables": list(targets.tables)}
        return (targets, others, given), report

    while True:
        # A rank that repeats the call from its first step cannot meet others in a later one.
        step = "choose" if number is None else f"choose below {number}"
        (targets, others, given), reports = call.step(step, choose, may_differ=True)
        told = {rank: report["given"] for rank, report in reports.items()}
        check_alike(call.call, told)
        call.check_repeated(given, told[call.group.rank])
        source = Path(path)
        ranks = sorted(reports)
        is_lead = call.group.rank == ranks[0]
        number = reports[ranks[0]]["number"]
        for each in others if is_lead else ():
            jobs.log.warning("%s %s; passing over it", each, _NO_CHECKPOINT)
        if number == 0:
            _raise_if_all_damaged(source, errors)
            return None
        origin = source if number is None else source / checkpoint_name(number)
        if errors and is_lead:
            jobs.log.warning("%s; restoring %s, the one before it", errors[-1], origin.name)
        named = {rank: report["tables"] for rank, report in reports.items()}
        read = partial(_read, origin, call.group.rank, targets, named)
        if targets.tables and call.timeout is None:
            in_all = sum(rows.size for rows in targets.tables.values())
            call.allow(in_all / SLOW_DISK)
        try:
            (puts, saved, restored), _ = call.step("read", read)
        except DamagedError as error:
            if number is None:
                raise
            errors.append(error)
            damaged.append(origin)
            continue
        if targets.tables:
            spread.restore(call, targets.tables, saved, ranks)
        for put in puts:
            put()
        return Restored(origin, restored.extra, restored.arrays, tuple(damaged))


def _newest_in(folder: Path, below: int | None) -> tuple[int, list[Path]]:
    """Return the highest number of a checkpoint, below `below`; 0 if there is none.

    Also the entries with higher numbers that are none.
    """
    others: list[Path] = []
    for number in sorted(numbers_in(folder), reverse=True):
        if below is None or number < below:
            path = folder / checkpoint_name(number)
            if is_checkpoint(path):
                return number, others
            others.append(path)
    return 0, others


@dataclass(frozen=True)
class _Targets:
    """Destinations of the data."""

    vectors: Mapping[str, Any] | None  # None: they are returned
    tables: spread.Tables
    resized: str

    @staticmethod
    def of(given: Mapping[str, Any] | None, resized: str, limit: float | None) -> _Targets:
        if given is None:
            return _Targets(None, {}, resized)
        check_named("vectors", given)
        tables = spread.tables_in(given, limit)
        return _Targets({n: v for n, v in given.items() if n not in tables}, tables, resized)


_Read = tuple[_Puts, dict[str, spread.SavedRows], Restored]


def _read(
    origin: Path, rank: int, targets: _Targets, named: Mapping[int, list[str]]
) -> tuple[_Read, Report]:
    """Read the data for this rank; `named`: by live rank, the tables that it restores."""
    spread.check_alike(named)
    ranks = sorted(named)
    vectors = targets.vectors
    if origin.suffix in vector_files.SUFFIXES:
        if targets.tables:
            raise ConfigError(
                f"{origin} is one file; a table is restored from a checkpoint's directory. Push "
                "the values of a file with malt.ps.Assign()"
            )
        with vector_files.opened(origin, vectors or []) as file:
            extra = {}
            if isinstance(file, safetensors.SafetensorsFile) and NOTE in file.notes:
                extra = _extra_of(file, _note_of(file))
            return _take(origin, vectors, file, [file], extra, {})
    try:
        first = min(origin.glob("rank-*.safetensors"), default=origin / file_name(0))
        note = _note_of(safetensors.SafetensorsFile(first))
        saved, position = note["ranks"], ranks.index(rank)
        own = safetensors.SafetensorsFile(origin / file_name(saved[position % len(saved)]))
        sources: list[vector_files.Source] = [own]
        if len(saved) != len(ranks) and targets.resized == "average":
            sources = [safetensors.SafetensorsFile(origin / file_name(each)) for each in saved]
        tables = spread.open_saved(targets.tables, note.get("tables", {}), origin, ranks)
        return _take(origin, vectors, own, sources, _extra_of(own, _note_of(own)), tables)
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
    tables: dict[str, spread.SavedRows],
) -> tuple[_Read, Report]:
    if vectors is None:
        arrays = {name: own[name] for name in own if not name.startswith(EXTRA)}
        return ([], tables, Restored(origin, extra, arrays)), {}
    puts = vector_files.prepare(vectors, sources, origin)
    return (puts, tables, Restored(origin, extra)), {}


def _note_of(file: safetensors.SafetensorsFile) -> dict[str, Any]:
    """Return the note that MALT has written in a file whose checksums have been checked."""
    if not file.is_sealed or NOTE not in file.notes:
        raise DamagedError(f"{file.path} is damaged: what MALT notes in a checkpoint is missing")
    try:
        note = json.loads(file.notes[NOTE])
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{file.path} is damaged: MALT's note is no JSON: {error}") from error
    if not isinstance(note, dict) or "version" not in note:
        raise DamagedError(f"{file.path} is damaged: MALT's note has no version")
    if note["version"] != VERSION:
        raise ConfigError(
            f"{file.path} is a checkpoint of version {note['version']}, and this MALT reads "
            f"version {VERSION}; restore it with the MALT that saved it"
        )
    ranks, extra = note.get("ranks"), note.get("extra")
    if not ranks or not safetensors.are_sizes(ranks) or not isinstance(extra, dict):
        raise DamagedError(f"{file.path} is damaged: MALT's note lacks ranks, or extras")
    return note


def _extra_of(file: safetensors.SafetensorsFile, note: dict[str, Any]) -> dict[str, Any]:
    arrays = {name[len(EXTRA) :]: file[name] for name in file if name.startswith(EXTRA)}
    return {**note["extra"], **arrays}
