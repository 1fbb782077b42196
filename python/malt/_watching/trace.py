"""Writes the events that ranks have recorded as a trace for ui.perfetto.dev."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._watching import trace_events
from malt._watching.sources import Source

SCATTER, GATHER, WAIT, FOLD, ALLREDUCE, DEATH, EPOCH = range(1, 8)
_NAMES = {SCATTER: "scatter", GATHER: "gather", FOLD: "fold", ALLREDUCE: "allreduce"}
# A rank at 20 us a round makes 200,000 events a second, of 150 bytes each in the file.
MOST_EVENTS = 250_000
# Of a job of several hosts, so that they can be sent and merged within a minute.
_MOST_IN_ALL = 1_000_000


def most_events(size: int, nnodes: int) -> int:
    """Return how many events of each process a trace has, in a job of so many ranks and hosts."""
    return MOST_EVENTS if nnodes == 1 else min(MOST_EVENTS, max(1, _MOST_IN_ALL // size))


class Kept:
    """The newest events of one process, at most `most` and one read more."""

    def __init__(self, source: Source, most: int) -> None:
        self.rank = source.rank
        # From the events' clock to the time since 1970.
        self.wall_offset = source.recording.wall_offset
        self.series = source.series
        self.dropped = 0
        self._most = most
        self._parts: deque[npt.NDArray[Any]] = deque()
        self._count = 0

    def add(self, events: npt.NDArray[Any]) -> None:
        if len(events) == 0:
            return
        self._parts.append(events)
        self._count += len(events)
        while self._count - len(self._parts[0]) >= self._most:
            gone = len(self._parts.popleft())
            self._count -= gone
            self.dropped += gone

    @property
    def events(self) -> npt.NDArray[Any]:
        """All of them, by the time of their beginning; empty without a dtype if there are none."""
        if not self._parts:
            return np.empty(0)
        joined = np.concatenate(list(self._parts))
        return joined[np.argsort(joined["began"], kind="stable")]


def write(path: Path, ranks: list[Kept], size: int, incomplete: set[int]) -> None:
    """Write one trace of all ranks; its time 0 is the first event's.

    Args:
        path: of the file.
        ranks: the processes of this host's ranks.
        size: of the job.
        incomplete: ranks that have more events than are here.

    Raises:
        OSError: the file cannot be written.
    """
    events = {kept: kept.events for kept in ranks}
    # They have one clock. A rank that was held up between its looks at the two clocks has a larger
    # offset than the others.
    wall_offset = min((kept.wall_offset for kept in ranks), default=0)
    times = [int(found["began"][0]) for found in events.values() if len(found)]
    times += [one.points[0].time for kept in ranks for one in kept.series.values()]
    first = min(times, default=0)
    start = first + wall_offset if times else 0
    other = {"nanoseconds_since_1970": start, "size": size, "incomplete": sorted(incomplete)}
    with trace_events.writing(path, other) as add:
        for kept, found in events.items():
            for line in _lines(kept, found, first):
                add(line)


def _lines(kept: Kept, found: npt.NDArray[Any], first: int) -> Iterator[dict[str, Any]]:
    yield trace_events.thread(kept.rank)
    names = found.dtype.names or ()
    for row in found.tolist():
        event = dict(zip(names, row, strict=True))
        yield _line(kept.rank, event, (event["began"] - first) / 1e3)
    for name, series in kept.series.items():
        for point in series.points:
            at = (point.time - first) / 1e3
            if math.isfinite(point.value):
                curve = f"{name} of rank {kept.rank}"
                yield trace_events.counter(curve, kept.rank, at, point.value)
            else:  # JSON has no such number
                text = f"{name} is {point.value:g}"
                yield trace_events.mark(text, kept.rank, at, {"update": point.update})


def _line(rank: int, event: Mapping[str, int], at: float) -> dict[str, Any]:
    kind = event["kind"]
    if kind == DEATH:
        return trace_events.mark(
            f"rank {event['rank']} is gone", rank, at, {"epoch": event["iteration"]}
        )
    if kind == EPOCH:
        members = {"members": event["count"]}
        return trace_events.mark(f"epoch {event['iteration']}", rank, at, members)
    arguments: dict[str, object] = {"iteration": event["iteration"]}
    name = _NAMES.get(kind, "wait")
    if kind == WAIT:
        if event["rank"] >= 0:
            name = f"wait for rank {event['rank']}"
            # The set holds ranks below 64 only.
            arguments["ranks"] = ranks_of(event["ranks"]) or [event["rank"]]
    else:
        arguments |= {"bytes": event["bytes"], "ranks": ranks_of(event["ranks"])}
    if kind in (GATHER, FOLD):
        arguments |= {"updates": event["count"], "staleness": event["staleness"]}
    return trace_events.span(name, rank, at, event["lasted"] / 1e3, arguments)


def ranks_of(set_: int) -> list[int]:
    """Return the ranks of a set of bits."""
    return [rank for rank in range(64) if set_ >> rank & 1]
