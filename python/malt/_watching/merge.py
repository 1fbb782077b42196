"""Merges the traces that several hosts of a job wrote into one, with their clocks aligned.

Files are read a line at a time, twice: for the bounds on the clocks, and to be copied.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from malt._errors import ConfigError, describe_ranks
from malt._watching import trace_events
from malt._watching.clocks import Sent, Shift, shifts_of

_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)  # of a compressed file


class Fold(NamedTuple):
    """A fold: when it ended, and the lowest iteration of its updates."""

    ended: float
    iteration: int
    senders: list[int]


class Part:
    """Events of one file by which clocks are aligned. Times are microseconds.

    Attributes:
        began: the file's time 0, in nanoseconds since 1970.
        size: of the job.
        ranks: those that the file has.
        incomplete: those of them whose first events are not in the file.
        has_changes: the members of the job changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        head = _head(path)
        other = head.get("otherData", {})
        try:
            self.began = int(other["nanoseconds_since_1970"])
            self.size = int(other["size"])
            self.incomplete = set(map(int, other["incomplete"]))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(_foreign(path, "its otherData are others")) from None
        self.ranks: set[int] = set()
        self.has_changes = False
        self.scatters: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.folds: dict[int, list[Fold]] = defaultdict(list)
        # By rank and members: beginnings and ends, in their order.
        self.allreduces: dict[tuple[int, tuple[int, ...]], list[tuple[float, float]]]
        self.allreduces = defaultdict(list)
        for event in events_of(path):
            try:
                self._take(event)
            except (KeyError, TypeError, ValueError):
                raise ConfigError(_foreign(path, f"it has the event {event}")) from None

    def _take(self, event: dict[str, Any]) -> None:
        rank = int(event["tid"])
        self.ranks.add(rank)
        if event["ph"] == "i" and "update" not in event["args"]:  # no value of malt.report()
            self.has_changes = True
        if event["ph"] != "X":
            return
        arguments, began = event["args"], float(event["ts"])
        ended = began + float(event["dur"])
        match event["name"]:
            case "scatter":
                self.scatters[rank].append((began, int(arguments["iteration"])))
            case "fold":
                oldest = int(arguments["iteration"]) - int(arguments["staleness"])
                self.folds[rank].append(Fold(ended, oldest, list(arguments["ranks"])))
            case "allreduce":
                members = tuple(sorted({rank, *arguments["ranks"]}))
                self.allreduces[rank, members].append((began, ended))


def merge(paths: Sequence[Path], out: Path, absent: Sequence[str] = ()) -> list[str]:
    """Write one trace of several; return what there is to say about it.

    Args:
        paths: of the traces; the clocks are aligned to the first one's.
        out: the new file.
        absent: why other hosts' parts are not there, for the reader of the file.

    Raises:
        ConfigError: a file is no trace of `malt run`, or the files are of different jobs.
        OSError: a file cannot be read or written.
    """
    parts = [Part(path) for path in paths]
    for part in parts[1:]:
        if part.size != parts[0].size:
            raise ConfigError(
                f"{part.path} is of a job of {part.size} ranks, {parts[0].path} of one of "
                f"{parts[0].size}: give the files of one run"
            )
    start = min(part.began for part in parts)
    shifts = shifts_of(_bounds(parts, start))
    missing = set(range(parts[0].size)) - set().union(*(part.ranks for part in parts))
    other = {"missing_ranks": sorted(missing), "absent": list(absent)}
    _write(out, parts, shifts, start, other)
    return [*_remarks(parts, shifts), *_missing(missing)]


def _bounds(parts: Sequence[Part], start: int) -> Any:
    """Return clocks.shifts_of()'s argument: each part's shift is bounded by each other's."""
    most = np.full((len(parts), len(parts)), np.inf)
    base = [(part.began - start) / 1e3 for part in parts]
    has_changes = any(part.has_changes for part in parts)
    places = defaultdict(list)
    for at, part in enumerate(parts):
        for rank in part.ranks:
            places[rank].append(at)
    # A rank that moved from one host to another has scatters in two files: it bounds nothing.
    only = {rank: at[0] for rank, at in places.items() if len(at) == 1}
    sent = {
        rank: Sent(
            [began + base[at] for began, _ in parts[at].scatters[rank]],
            [iteration for _, iteration in parts[at].scatters[rank]],
            rank not in parts[at].incomplete,
        )
        for rank, at in only.items()
    }
    for here, part in enumerate(parts):
        for folds in part.folds.values():
            by_sender = defaultdict(list)
            for ended, iteration, senders in folds:
                for sender in senders:
                    if only.get(sender, here) != here:
                        by_sender[sender].append((ended + base[here], iteration))
            for sender, found in by_sender.items():
                ends, iterations = np.array(found).T
                after = ends - sent[sender].begins(iterations.astype(np.int64))
                there = only[sender]
                most[here, there] = min(most[here, there], after.min())
        for (rank, members), spans in () if has_changes else part.allreduces.items():
            for other in members:
                there = only.get(other, here)
                theirs = parts[there].allreduces.get((other, members), [])
                if there == here or rank in part.incomplete or other in parts[there].incomplete:
                    continue
                for (_, ended), (began, _) in zip(spans, theirs, strict=False):
                    after = ended + base[here] - began - base[there]
                    most[here, there] = min(most[here, there], after)
    return most


def _write(
    out: Path, parts: Sequence[Part], shifts: Sequence[Shift], start: int, more: dict[str, Any]
) -> None:
    files = [
        {
            "file": part.path.name.removesuffix(".gz"),
            "shifted_us": round(shift.by, 3),
            "error_us": None if shift.error is None else round(shift.error, 3),
            "drift_us": round(shift.drift, 3),
        }
        for part, shift in zip(parts, shifts, strict=True)
    ]
    other = {"nanoseconds_since_1970": start, "size": parts[0].size, "files": files}
    with trace_events.writing(out, other | more) as add:
        for number, (part, shift) in enumerate(zip(parts, shifts, strict=True)):
            ahead = (part.began - start) / 1e3 + shift.by
            add(trace_events.process(number, part.path.name.removesuffix(".gz")))
            for event in events_of(part.path):
                event["pid"] = number
                if "ts" in event:
                    event["ts"] = round(event["ts"] + ahead, 3)
                add(event)


def _remarks(parts: Sequence[Part], shifts: Sequence[Shift]) -> Iterator[str]:
    for part, shift in list(zip(parts, shifts, strict=True))[1:]:
        moved = f"{part.path} is shifted by {shift.by:,.1f} us to fit {parts[0].path}"
        if shift.drift:
            yield (
                f"{moved}; these clocks do not run equally fast: no one shift fits all events, and "
                f"some are {shift.drift / 2:,.1f} us off or more"
            )
        elif shift.error is None:
            yield (
                f"{moved}; the error is not known: the files do not show that its ranks both sent "
                "to the others and folded what these sent, so the hosts' own clocks count"
            )
        else:
            yield f"{moved}, with an error of at most {shift.error:,.1f} us"


def _missing(ranks: set[int]) -> Iterator[str]:
    if ranks:
        yield f"no file has {describe_ranks(sorted(ranks))}"


def _head(path: Path) -> dict[str, Any]:
    """Return the file's first line, which opens the list of events."""
    try:
        with _open(path) as file:
            head = json.loads(file.readline().rstrip() + "]}")
    except (ValueError, *_DAMAGED):
        head = None
    if not isinstance(head, dict) or head.get("traceEvents") != []:
        raise ConfigError(_foreign(path, "it begins otherwise"))
    return head


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a trace that `malt run` wrote, one a line."""
    with _open(path) as file:
        for line in _whole(path, file):
            text = line.strip().removesuffix(",")
            if text == "]}":
                return
            try:
                event = json.loads(text) if text else None
            except ValueError:
                event = text
            if event is None:
                continue
            if not isinstance(event, dict):
                raise ConfigError(_foreign(path, f"it has the line {line.strip()[:60]!r}"))
            yield event
    raise ConfigError(f"{path} is cut off: let the job write it to its end")


def _open(path: Path) -> TextIO:
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()


def _whole(path: Path, file: TextIO) -> Iterator[str]:
    """Return the lines after the first."""
    try:
        file.readline()
        yield from file
    except _DAMAGED:
        raise ConfigError(f"{path} is cut off, or damaged") from None


def _foreign(path: Path, why: str) -> str:
    return f"{path} is no trace of `malt run` or MALT_TRACE ({why}); give the files as written"
