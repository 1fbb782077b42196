"""Merges the traces that several hosts of a job wrote into one, with their clocks aligned.

Files are read a line at a time, twice: for the bounds on the clocks, and to be copied.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from malt._errors import ConfigError, describe_ranks
from malt._npy import check_room
from malt._rendezvous.wire import MAX_RANKS
from malt._watching import trace_events
from malt._watching.clocks import Sent, Shift, shifts_of

_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)  # of a compressed file
_MOST_HEAD_BYTES = 1 << 24  # the head may name all ranks of a job
_MOST_EVENT_BYTES = 1 << 14
_MOST_TIME = 2**53  # microseconds: larger ones are not exact, and it is beyond 285 years
_MOST_ITERATION = 2**62
_MOST_NAMED = 64  # ranks of an event
_SCALARS = (str, int, float, type(None))
# The arguments that are computed with, by the event's name.
_ARGUMENTS = {
    "scatter": ("iteration",),
    "fold": ("iteration", "staleness", "ranks"),
    "allreduce": ("ranks",),
}
# After each so many events, the memory that as many more may take must be free.
_KEPT_AT_ONCE, _KEPT_BYTES = 1 << 17, 1 << 11


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
        has_joins: a rank has joined the job, or rejoined it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        other = _head(path).get("otherData")
        if not _is_heading(other):
            raise ConfigError(
                _foreign(
                    path,
                    "its otherData are not a time, a size of at most "
                    f"{MAX_RANKS:,} ranks, and those of them that are incomplete",
                )
            )
        self.began: int = other["nanoseconds_since_1970"]
        self.size: int = other["size"]
        self.incomplete = set(other["incomplete"])
        self.ranks: set[int] = set()
        self.has_joins = False
        self._members: dict[int, int] = {}  # by rank: of the job, after the last change there
        self._gone: dict[int, int] = defaultdict(int)  # by rank: ranks that are gone since
        self.scatters: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.folds: dict[int, list[Fold]] = defaultdict(list)
        # By rank and members: beginnings and ends, in their order.
        self.allreduces: dict[tuple[int, tuple[int, ...]], list[tuple[float, float]]]
        self.allreduces = defaultdict(list)
        self._kept = 0
        for event in events_of(path):
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        rank = event["tid"]
        arguments = event.get("args", {})
        named = arguments["ranks"] if "ranks" in _needs(event) else []
        if (highest := max([rank, *named])) >= self.size:
            raise ConfigError(
                _foreign(self.path, f"it names rank {highest}, of a job of {self.size} ranks")
            )
        self.ranks.add(rank)
        if event["ph"] == "i" and "update" not in arguments:  # no value of malt.report()
            self._note_change(rank, arguments)
        if event["ph"] != "X":
            return
        began = float(event["ts"])
        ended = began + float(event["dur"])
        match event["name"]:
            case "scatter":
                self.scatters[rank].append((began, arguments["iteration"]))
            case "fold":
                oldest = arguments["iteration"] - arguments["staleness"]
                self.folds[rank].append(Fold(ended, oldest, arguments["ranks"]))
            case "allreduce":
                members = tuple(sorted({rank, *arguments["ranks"]}))
                self.allreduces[rank, members].append((began, ended))
        self._kept += 1
        if self._kept % _KEPT_AT_ONCE == 0:
            check_room(f"the rest of {self.path}", _KEPT_AT_ONCE * _KEPT_BYTES)

    def _note_change(self, rank: int, arguments: dict[str, Any]) -> None:
        if "epoch" in arguments:  # "rank 3 is gone"
            self._gone[rank] += 1
            return
        members = arguments.get("members")
        left = self._members.get(rank, self.size) - self._gone.pop(rank, 0)
        if members != left:
            self.has_joins = True
        self._members[rank] = left


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
    # The rounds of the same members are counted from the first one, which a joined rank has not.
    has_joins = any(part.has_joins for part in parts)
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
        for (rank, members), spans in () if has_joins else part.allreduces.items():
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
    with contextlib.closing(_lines(path)) as lines:
        text = next(lines, b"")
    try:
        head = json.loads(text.decode().rstrip() + "]}")
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("traceEvents") != []:
        raise ConfigError(_foreign(path, "it begins otherwise"))
    return head


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a trace that `malt run` wrote, one a line.

    Raises:
        ConfigError: an event is not as `malt run` writes it, or the file ends before its end.
    """
    for line in itertools.islice(_lines(path), 1, None):
        text = line.strip().removesuffix(b",")
        if text == b"]}":
            return
        if not text:
            continue
        try:
            event = json.loads(text.decode(), parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise ConfigError(_foreign(path, f"it has the line {line[:60]!r}"))
        if not _is_event(event):
            raise ConfigError(_foreign(path, f"it has the event {line[:200]!r}"))
        yield event
    raise ConfigError(f"{path} is cut off: let the job write it to its end")


def _lines(path: Path) -> Generator[bytes, None, None]:
    """Read the lines of a file, compressed or not."""
    most = _MOST_HEAD_BYTES
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            while line := file.readline(most + 1):
                if len(line) > most:
                    raise ConfigError(_foreign(path, f"it has a line of more than {most:,} bytes"))
                yield line
                most = _MOST_EVENT_BYTES
        except _DAMAGED:
            raise ConfigError(f"{path} is cut off, or damaged") from None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


def _is_heading(other: Any) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(other, dict)
        and _is_whole(other.get("nanoseconds_since_1970"), 2**63 - 1)
        and _is_whole(other.get("size"), MAX_RANKS)
        and _are_ranks(other.get("incomplete"), MAX_RANKS, other["size"])
    )


def _is_event(event: dict[str, Any]) -> bool:
    """Return whether an event has what is computed with, and is no more deeply nested than ours."""
    arguments = event.get("args", {})
    return (
        isinstance(event.get("name"), str)
        and isinstance(event.get("ph"), str)
        and _is_whole(event.get("tid"), MAX_RANKS - 1)
        and _is_time(event.get("ts", 0))
        and isinstance(arguments, dict)
        and all(isinstance(of, _SCALARS) for key, of in event.items() if key != "args")
        and all(
            isinstance(of, _SCALARS)
            or (isinstance(of, list) and all(isinstance(one, _SCALARS) for one in of))
            for of in arguments.values()
        )
        and (event["ph"] != "X" or _is_span(event, arguments))
    )


def _needs(event: dict[str, Any]) -> tuple[str, ...]:
    return _ARGUMENTS.get(event["name"], ()) if event["ph"] == "X" else ()


def _is_span(event: dict[str, Any], arguments: dict[str, Any]) -> bool:
    need = _needs(event)
    return (
        "ts" in event
        and _is_time(event.get("dur"))
        and event["dur"] >= 0
        and all(_is_whole(arguments.get(name), _MOST_ITERATION) for name in need if name != "ranks")
        and ("ranks" not in need or _are_ranks(arguments.get("ranks"), _MOST_NAMED))
    )


def _is_whole(number: Any, most: int) -> bool:
    return type(number) is int and 0 <= number <= most


def _is_time(number: Any) -> bool:
    return type(number) in (int, float) and abs(number) <= _MOST_TIME


def _are_ranks(found: Any, most: int, size: int = MAX_RANKS) -> bool:
    is_list = isinstance(found, list) and len(found) <= most
    return is_list and all(_is_whole(one, size - 1) for one in found)


def _foreign(path: Path, why: str) -> str:
    return f"{path} is no trace of `malt run` or MALT_TRACE ({why}); give the files as written"
