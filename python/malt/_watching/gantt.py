"""When each rank computed, sent, folded and waited.

As in MLlib*'s pictures (Zhang et al., ICDE 2019, figure 3): a row for each rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._watching.timeline import COLUMNS, SPENT, Columns, Timeline
from malt._watching.trace import ALLREDUCE, DEATH, FOLD, GATHER, SCATTER, WAIT

_NAMES = {
    SCATTER: "scatter",
    GATHER: "gather",
    ALLREDUCE: "allreduce",
    FOLD: "fold",
    WAIT: "waiting",
}
_MOST_COLUMNS = 4096  # of a picture, all ranks together


def picture(
    ranks: Iterable[int],
    left: float,
    right: float,
    *,
    lived: Sequence[Any] = (),
    bars: Sequence[Any] = (),
    deaths: Sequence[Any] = (),
    begin: float = 0.0,
    width: float = 0.0,
    shares: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return a part of a page: a picture from one time to another. Times are seconds.

    Args:
        ranks: those that have a row.
        left: where the picture begins.
        right: where it ends.
        lived: row, beginning and end of each process.
        bars: row, name, beginning, length, iteration (or None) and the rank waited for (or -1).
        deaths: row and time.
        begin: where the first column begins.
        width: of a column.
        shares: by row and column: computing and each of SPENT, in percent.
    """
    times = {"ranks": list(ranks), "left": left, "right": right, "lived": lived, "bars": bars}
    times |= {"deaths": deaths, "begin": begin, "width": width, "shares": shares}
    return {"times": times}


def whole(
    rows: Mapping[int, Sequence[Timeline]], origin: int, start: int, end: int
) -> dict[str, Any]:
    """Draw the whole run in columns, whose heights are shares of the time.

    Args:
        rows: by rank, the timelines of its processes.
        origin: the time at which their columns begin.
        start: the time that the picture calls 0.
        end: the last time of the picture.
    """
    width = max(one.columns.width for of_rank in rows.values() for one in of_rank)
    while width * _MOST_COLUMNS < (end - origin) * len(rows):
        width *= 2
    last = min(COLUMNS, (end - origin) // width + 1)
    shares = []
    for processes in rows.values():
        sums = sum(_shares(one, origin, width) for one in processes)
        shares.append(np.rint(100 * np.asarray(sums)[:, :last]).astype(int).T.tolist())
    return picture(
        rows,
        0.0,
        _seconds(end - start),
        deaths=_deaths(rows, start, start),
        begin=_seconds(origin - start),
        width=_seconds(width),
        shares=shares,
    )


def _shares(timeline: Timeline, origin: int, width: int) -> npt.NDArray[np.float64]:
    """Return, by kind of time (computing first) and column of this width, the part of it."""
    columns: Columns = timeline.columns
    while columns.width < width:
        columns = columns.halved()
    edges = origin + width * np.arange(COLUMNS + 1)
    lived = np.diff(np.clip(edges, timeline.began, timeline.ended))
    spent = np.maximum(columns.spent, 0.0)
    # A call that a process was in when its last event came is not counted: rounding alone is.
    computed = np.maximum(lived - spent.sum(axis=0), 0.0)
    found: npt.NDArray[np.float64] = np.vstack([computed, spent]) / width
    found /= np.maximum(found.sum(axis=0), 1.0)
    return found


def _deaths(rows: Mapping[int, Sequence[Timeline]], start: int, left: int) -> list[Any]:
    """Return, by row, when another rank first learnt that this one is no longer a member."""
    places = {rank: number for number, rank in enumerate(rows)}
    found = deaths([one for of_rank in rows.values() for one in of_rank])
    return [
        [places[rank], _seconds(at - start)] for rank, at in found if rank in places and at >= left
    ]


def deaths(timelines: Iterable[Timeline]) -> list[tuple[int, int]]:
    """Return each rank that has gone, with the first time at which another one learnt of it."""
    first: dict[tuple[int, int], int] = {}
    for timeline in timelines:
        for mark in timeline.marks:
            if mark["kind"] == DEATH:
                key = (mark["rank"], mark["iteration"])  # the epoch that it is not in
                first[key] = min(mark["began"], first.get(key, mark["began"]))
    return [(rank, at) for (rank, _), at in sorted(first.items(), key=lambda item: item[1])]


def exact(
    rows: Mapping[int, Sequence[tuple[Timeline, npt.NDArray[Any]]]], start: int, left: int, end: int
) -> dict[str, Any]:
    """Draw every call between two times, a bar each; time 0 is `start`.

    Args:
        rows: by rank, the timeline and the events of each of its processes.
        start: the time that the picture calls 0.
        left: the time at which it begins.
        end: the time at which it ends.
    """
    lived, bars = [], []
    for number, processes in enumerate(rows.values()):
        for timeline, events in processes:
            began, ended = max(timeline.began, left), min(timeline.ended, end)
            if began < ended:
                lived.append([number, _seconds(began - start), _seconds(ended - start)])
            # Calls first: a wait or a fold is drawn upon the call that contains it.
            for kind in SPENT:
                of_kind = events[events["kind"] == kind] if len(events) else events
                for row in of_kind[of_kind["began"] >= left] if len(of_kind) else ():
                    at, lasted = _seconds(int(row["began"]) - start), _seconds(int(row["lasted"]))
                    whom = int(row["rank"]) if kind == WAIT else -1
                    bars.append([number, _NAMES[kind], at, lasted, int(row["iteration"]), whom])
    timelines = {rank: [one for one, _ in processes] for rank, processes in rows.items()}
    return picture(
        rows,
        _seconds(left - start),
        _seconds(end - start),
        lived=lived,
        bars=bars,
        deaths=_deaths(timelines, start, left),
    )


def _seconds(nanoseconds: float) -> float:
    return round(nanoseconds / 1e9, 9)
