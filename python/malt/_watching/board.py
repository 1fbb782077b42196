"""The dashboard's contents: a sample of all ranks a second, and curves of what was sampled."""

from __future__ import annotations

import math
import os
import socket
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from malt._watching.rates import Rates, rates_of
from malt._watching.series import Point, Series
from malt._watching.sources import Look, Source

SAMPLE_SECONDS = 1.0
_MOST_CHANGES = 100
# Curves of the board's own. No name of malt.report() has a space.
_CURVES = ("exchanges a second", "bytes sent a second", "memory in bytes")
Sent = dict[tuple[int, str], int]  # by process and name: the time of the last point sent
Points = tuple[int, str, int, list[Point]]  # rank, name, what to add for the time since 1970


class Curve(NamedTuple):
    """Values that one process has told under one name."""

    key: int  # of the process, other than those of all others
    rank: int
    name: str
    wall_offset: int  # added to the points' times, it gives the time since 1970
    points: list[Point]


class Board:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._sampled = -math.inf
        self._sources: list[Source] = []
        self._looks: dict[int, Look] = {}  # by process: the last sample
        self._curves: dict[tuple[int, str], Series] = {}  # by process and name
        self._newest: dict[int, tuple[int, str]] = {}  # by rank: its last process, and its state
        self._epoch = 0
        self._changes: deque[dict[str, Any]] = deque(maxlen=_MOST_CHANGES)
        self._state: dict[str, Any] = {"ranks": [], "pairs": [], "changes": [], "size": 0}
        self._host = socket.gethostname()

    def sample(self, sources: Sequence[Source]) -> None:
        """Look at all ranks, if the last look was SAMPLE_SECONDS ago."""
        if time.monotonic() - self._sampled < SAMPLE_SECONDS:
            return
        self._sampled = time.monotonic()
        self._sources = list(sources)
        newest = {source.rank: source for source in sources}
        before = self._looks
        self._looks = {}
        ranks, pairs = [], []
        for rank in sorted(newest):
            look = newest[rank].look()
            self._looks[look.process] = look
            rates = rates_of(before.get(look.process, look), look)
            memory = resident_bytes(look.process)
            ranks.append(_row(look, rates, memory))
            pairs += _pairs(look)
            self._note_state(look)
            if look.process in before and look.state != "ended":
                self._add_to_curves(look, (rates.iterations, rates.bytes_out, float(memory)))
        self._note_epoch(max((look.totals["epoch"] for look in self._looks.values()), default=0))
        size = max((source.size for source in sources), default=0)
        changes = list(self._changes)
        self._state = {"ranks": ranks, "pairs": pairs, "changes": changes, "size": size}

    def _add_to_curves(self, look: Look, values: tuple[float, ...]) -> None:
        for name, value in zip(_CURVES, values, strict=True):
            curve = self._curves.setdefault((look.process, name), Series())
            curve.add(Point(look.time, look.totals["iteration"], value))

    def _note_state(self, look: Look) -> None:
        process, state = self._newest.get(look.rank, (0, ""))
        self._newest[look.rank] = (look.process, look.state)
        if process not in (0, look.process):
            self._note(f"rank {look.rank} has come back as process {look.process}")
        elif state not in ("", look.state):
            now = {"ended": "has ended", "stopped": "is stopped", "runs": "runs again"}
            self._note(f"rank {look.rank} {now[look.state]}")

    def _note_epoch(self, epoch: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            self._note(f"the ranks have agreed on new members: epoch {epoch}")

    def _note(self, text: str) -> None:
        self._changes.append({"time": time.time(), "text": text})

    def state(self) -> dict[str, Any]:
        """Return the last sample, ready for JSON."""
        return {**self._state, "host": self._host, "hosts": []}

    def curves(self) -> list[Curve]:
        """Return what the programs have reported, and the curves of the board's own."""
        found = []
        for source in self._sources:
            process, offset = source.recording.process, source.recording.wall_offset
            own = [(name, self._curves.get((process, name), Series())) for name in _CURVES]
            for name, series in [*source.series.items(), *own]:
                found.append(Curve(process, source.rank, name, offset, series.points))
        return found


def unsent(curves: Iterable[Curve], sent: Sent, most: int | None = None) -> list[Points]:
    """Return the points since those `sent`, which is brought up to date.

    At most `most` of a curve, spread evenly; the newest is one of them.
    """
    found = []
    for curve in curves:
        last = sent.get((curve.key, curve.name), -1)
        points = curve.points[bisect_right(curve.points, last, key=lambda point: point.time) :]
        if points:
            sent[curve.key, curve.name] = points[-1].time
            stride = 1 if most is None else -(-len(points) // most)
            found.append((curve.rank, curve.name, curve.wall_offset, points[::-stride][::-1]))
    return found


def points_for_json(found: Iterable[Points]) -> list[Any]:
    """Return curves as [rank, name, [seconds since 1970, …], [update, …], [value or None, …]]."""
    return [
        [
            rank,
            name,
            [round((point.time + offset) / 1e9, 3) for point in points],
            [point.update for point in points],
            [point.value if math.isfinite(point.value) else None for point in points],
        ]
        for rank, name, offset, points in found
    ]


def resident_bytes(process: int) -> int:
    """Return the memory that a process has in RAM, or 0 if it has ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGESIZE")


def _row(look: Look, rates: Rates, memory: int) -> dict[str, Any]:
    row = rates._asdict()
    row["reports"] = {
        name: value if math.isfinite(value) else f"{value:g}"  # JSON has no such number
        for name, value in rates.reports.items()
    }
    return {**row, "process": look.process, "memory": memory}


def _pairs(look: Look) -> list[list[int]]:
    """Return [receiver, sender, updates folded, staleness of the last] for each sender."""
    return [
        [look.rank, sender, int(folded), int(staleness)]
        for sender, (_, folded, staleness, *_) in enumerate(look.peers)
        if folded > 0
    ]
