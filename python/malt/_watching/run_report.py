"""The page of `malt run --report`: what each rank of any program did, and for whom it waited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._drafted import drafted
from malt._watching import document, gantt
from malt._watching.document import Line
from malt._watching.series import Series
from malt._watching.table import size_text
from malt._watching.timeline import COLUMNS, SPENT, Timeline
from malt._watching.trace import EPOCH, WAIT

MOST_RANKS = 64  # with a row of their own
KEEPS = 4096  # newest events of a process, for the picture that shows each call
_MOST_BARS = 3000  # of that picture
MOST_BARS_A_RANK = 120  # of that picture; more could not be told apart
_MOST_POINTS = 4096  # of a chart, all lines together
_MOST_NAMES = 8  # of reported values
_MOST_MATRIX = 16  # ranks
_MOST_PAIRS = 40
_MOST_ROWS = 100  # of the table of deaths and epochs
_TOTALS = ("scatters", "gathers", "allreduces", "bytes_out", "bytes_in", "folded")


class Process(NamedTuple):
    """One process of a rank, as the collector knows it at the end of the run."""

    timeline: Timeline
    newest: npt.NDArray[Any]  # its newest events, by the time of their beginning
    missed: int  # events that were written over before they were read
    totals: Mapping[str, int]
    peers: npt.NDArray[np.uint64]  # as in Look
    reported: Mapping[str, Series]  # by name


def write(
    path: Path,
    command: str,
    origin: int,
    wall_offset: int,
    processes: list[Process],
    hosts: int = 1,
    absent: Sequence[str] = (),
) -> None:
    """Write the page.

    Args:
        path: of the file.
        command: what was run.
        origin: the time at which the columns of the timelines begin.
        wall_offset: from the processes' clock to the time since 1970, in nanoseconds.
        processes: of all ranks, by rank and age.
        hosts: how many hosts they are from.
        absent: why the ranks of each of the other hosts are not here.

    Raises:
        OSError: the file cannot be written.
    """
    if processes:
        parts = _Report(origin, wall_offset, processes, hosts, absent).parts()
    else:
        parts = [{"text": "No rank has called malt.init().", "list": list(absent)}]
    with drafted(path, "w") as file:
        file.write(document.page(f"malt run: {command}", parts))


class _Report:
    def __init__(
        self,
        origin: int,
        wall_offset: int,
        processes: list[Process],
        hosts: int,
        absent: Sequence[str],
    ) -> None:
        self._hosts = hosts
        self._origin = origin
        self._wall_offset = wall_offset
        self._of: dict[int, list[Process]] = {}
        for one in processes:
            self._of.setdefault(one.timeline.rank, []).append(one)
        self._start = min(one.timeline.began for one in processes)
        last = [one.last.time for process in processes for one in process.reported.values()]
        self._end = max([*(one.timeline.ended for one in processes), *last])
        self._shown = dict(list(self._of.items())[:MOST_RANKS])
        self._left_out = list(absent)  # contents that the page lacks

    def parts(self) -> list[dict[str, Any]]:
        rest = [*self._gantt(), *self._charts(), *self._waits(), *self._changes()]
        return [self._head() | self._table(), *rest, self._omissions()]

    def _head(self) -> dict[str, Any]:
        began = datetime.fromtimestamp((self._start + self._wall_offset) / 1e9)
        seconds = (self._end - self._start) / 1e9
        ranks = f"{len(self._of)} rank{'s' if len(self._of) > 1 else ''}"
        hosts = f"{self._hosts} hosts" if self._hosts > 1 else "this host"
        return {
            "text": f"Began {began:%Y-%m-%d %H:%M:%S}. {ranks} of {hosts}, {seconds:,.3f} s from "
            "the first malt.init() to the last call."
        }

    def _table(self) -> dict[str, Any]:
        """Make a row for each rank: the sums over its processes."""
        head = (
            *("rank", "processes", "seconds", "computing", "waiting", "scatters", "gathers"),
            *("allreduces", "sent", "folded", "updates", "stale"),
        )
        rows = []
        for rank, of in self._shown.items():
            lived = sum(one.timeline.ended - one.timeline.began for one in of)
            spent = sum(one.timeline.columns.spent.sum(axis=1) for one in of)
            waited = spent[SPENT.index(WAIT)]
            computed = max(0.0, 1 - float(spent.sum()) / max(lived, 1))
            total = {name: sum(one.totals.get(name, 0) for one in of) for name in _TOTALS}
            stale = int(max(one.timeline.columns.staleness.max() for one in of))
            rows.append(
                (
                    *(str(rank), str(len(of)), f"{lived / 1e9:,.3f}", f"{computed:.1%}"),
                    f"{waited / max(lived, 1):.1%}",
                    *(f"{total[name]:,}" for name in _TOTALS[:3]),
                    *(size_text(total["bytes_out"]), size_text(total["bytes_in"])),
                    *(f"{total['folded']:,}", str(stale) if stale >= 0 else ""),
                )
            )
        if more := len(self._of) - len(self._shown):
            self._left_out.append(
                f"{more:,} of {len(self._of):,} ranks have no row and no line: those above rank "
                f"{list(self._shown)[-1]}"
            )
        return document.table("", head, rows)

    # When

    def _gantt(self) -> Iterator[dict[str, Any]]:
        counts = [sum(one.timeline.events for one in of) for of in self._shown.values()]
        most = max(1, min(MOST_BARS_A_RANK, _MOST_BARS // len(self._shown)))
        if max(counts) <= most:
            left, title = self._start, "When each rank did what"
        else:
            timelines = {rank: [p.timeline for p in of] for rank, of in self._shown.items()}
            whole = gantt.whole(timelines, self._origin, self._start, self._end)
            yield {"heading": "When each rank did what: the whole run"} | whole
            left = max(
                int(one.newest["began"][-min(most, len(one.newest))])
                for of in self._shown.values()
                for one in of
                if len(one.newest)
            )
            title = f"The last {(self._end - left) / 1e9:.3g} s, call by call"
            self._left_out.append(
                f"of {sum(counts):,} calls, waits and folds the last picture has the newest; the "
                "whole run is drawn in columns, whose heights are the shares of the time"
            )
        rows = {rank: [(p.timeline, p.newest) for p in of] for rank, of in self._shown.items()}
        text = "A number in a wait is the rank that was last to come."
        exact = gantt.exact(rows, self._start, left, self._end)
        yield {"heading": title, "text": text} | exact

    # How much

    def _charts(self) -> Iterator[dict[str, Any]]:
        yield from self._reported()
        sent, stale = [], []
        most = max(2, _MOST_POINTS // len(self._shown))
        for rank, of in self._shown.items():
            times, sums = self._joined(of, "sent", most)
            sent.append(Line(f"rank {rank}", times, np.cumsum(sums) / 1e6))
            times, ages = self._joined(of, "staleness", most)
            folded = ages >= 0
            if ages.max() > 0:
                stale.append(Line(f"rank {rank}", times[folded], ages[folded]))
        yield document.chart("Megabytes sent", sent, "seconds", "MB")
        heading = "Staleness of the oldest update folded"
        if stale:
            yield document.chart(heading, stale, "seconds", "iterations")
        else:
            yield {"heading": heading, "text": "No update was older than the rank that folded it."}

    def _joined(self, of: Sequence[Process], name: str, most: int) -> tuple[Any, Any]:
        """Return a rank's values by column, and the columns' ends in seconds; at most `most`."""
        columns = [one.timeline.columns for one in of]
        width = max(one.width for one in columns)
        while width * (most - 1) < self._end - self._start:
            width *= 2
        for number, one in enumerate(columns):
            while one.width < width:
                one = one.halved()
            columns[number] = one
        values = [getattr(one, name) for one in columns]
        joined = np.sum(values, axis=0) if name == "sent" else np.max(values, axis=0)
        ends = self._origin + width * np.arange(1, COLUMNS + 1)
        lived = (ends > self._start) & (ends - width <= self._end)
        return (np.minimum(ends, self._end) - self._start)[lived] / 1e9, joined[lived]

    def _reported(self) -> Iterator[dict[str, Any]]:
        """Draw what the program reported (malt.report), against time and against updates."""
        processes = [(rank, one) for rank, of in self._shown.items() for one in of]
        names = sorted({name for _, one in processes for name in one.reported})
        if len(names) > _MOST_NAMES:
            self._left_out.append(f"reported, not drawn: {', '.join(names[_MOST_NAMES:])}")
        for name in names[:_MOST_NAMES]:
            series = [(rank, one.reported[name]) for rank, one in processes if name in one.reported]
            points = [(rank, np.array(one.points, np.float64)) for rank, one in series]
            finite = [(rank, of[np.isfinite(of[:, 2])]) for rank, of in points]
            drawn = [(rank, of) for rank, of in finite if len(of)]
            if bad := sum(map(len, (of for _, of in points))) - sum(len(of) for _, of in drawn):
                self._left_out.append(f"{bad:,} values of {name} that are not finite")
            if not drawn:
                continue
            most = max(2, _MOST_POINTS // len(drawn))
            count = sum(one.count for _, one in series)
            shown = sum(-(-len(of) // -(-len(of) // most)) for _, of in drawn)
            if shown + bad < count:
                self._left_out.append(
                    f"of {count:,} values of {name} {shown:,} are drawn, spread evenly"
                )
            by_time = [
                Line(f"rank {rank}", (of[:, 0] - self._start) / 1e9, of[:, 2]) for rank, of in drawn
            ]
            by_update = [Line(f"rank {rank}", of[:, 1], of[:, 2]) for rank, of in drawn]
            yield document.chart(f"{name} against time", by_time, "seconds", most=most)
            yield document.chart(f"{name} against updates", by_update, "updates", most=most)

    # For whom

    def _waits(self) -> Iterator[dict[str, Any]]:
        """Make the table of who waited for whom, in seconds."""
        size = max(len(one.peers) for of in self._of.values() for one in of)
        waited: dict[int, Any] = {rank: np.zeros(size) for rank in self._of}
        for rank, one in ((rank, one) for rank, of in self._of.items() for one in of):
            waited[rank][: len(one.peers)] += one.peers[:, 0] / 1e9
        heading = "Who waited for whom, in seconds"
        if size <= _MOST_MATRIX:
            yield document.table(
                heading,
                ("rank", *(f"for {peer}" for peer in range(size)), "together"),
                (
                    (str(rank), *(f"{x:.3f}" if x else "" for x in row), f"{row.sum():.3f}")
                    for rank, row in waited.items()
                ),
            )
            return
        pairs = [(x, rank, peer) for rank, row in waited.items() for peer, x in enumerate(row) if x]
        pairs.sort(reverse=True)
        if len(pairs) > _MOST_PAIRS:
            self._left_out.append(
                f"of {len(pairs):,} pairs of which one waited for the other, the table has the "
                f"{_MOST_PAIRS} with the longest waits"
            )
        yield document.table(
            heading,
            ("rank", "for rank", "seconds"),
            ((str(rank), str(peer), f"{x:.3f}") for x, rank, peer in pairs[:_MOST_PAIRS]),
        )

    def _changes(self) -> Iterator[dict[str, Any]]:
        """Make the table of deaths and epochs, as each rank learnt of them."""
        timelines = [one.timeline for of in self._of.values() for one in of]
        rows: list[tuple[int, str]] = [
            (at, f"rank {rank} is gone") for rank, at in gantt.deaths(timelines)
        ]
        epochs: dict[int, tuple[int, int]] = {}
        for mark in (mark for timeline in timelines for mark in timeline.marks):
            if mark["kind"] == EPOCH:
                known = epochs.get(mark["iteration"], (mark["began"], 0))
                epochs[mark["iteration"]] = min(mark["began"], known[0]), mark["count"]
        rows += [(at, f"epoch {one} of {count} ranks") for one, (at, count) in epochs.items()]
        rows.sort()
        if not rows:
            return
        dropped = sum(one.dropped_marks for one in timelines) + max(0, len(rows) - _MOST_ROWS)
        if dropped:
            self._left_out.append(f"{dropped:,} later deaths and epochs")
        yield document.table(
            "Deaths and epochs, when a rank first learnt of them",
            ("seconds", "change"),
            ((f"{(at - self._start) / 1e9:.3f}", what) for at, what in rows[:_MOST_ROWS]),
        )

    def _omissions(self) -> dict[str, Any]:
        missed = sum(one.missed for of in self._of.values() for one in of)
        if missed:
            self._left_out.append(
                f"{missed:,} events were written over before they could be read: the pictures lack "
                "them, the tables of totals and waits have them"
            )
        nothing = ["Nothing: every call, wait and fold is drawn."]
        return {"heading": "What this page leaves out", "list": self._left_out or nothing}
