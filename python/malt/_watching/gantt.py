"""When each rank computed, sent, folded and waited.

As in MLlib*'s pictures (Zhang et al., ICDE 2019, figure 3): a row for each rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._watching import drawing
from malt._watching.timeline import COLUMNS, SPENT, Columns, Timeline
from malt._watching.trace import ALLREDUCE, DEATH, FOLD, GATHER, SCATTER, WAIT

_CLASSES = {
    SCATTER: "scatter",
    GATHER: "gather",
    ALLREDUCE: "allreduce",
    FOLD: "fold",
    WAIT: "wait",
}
STYLE = """\
.compute { fill: #1b6ca8; }
.scatter { fill: #2a9d63; }
.gather { fill: #c9a7dc; }
.fold { fill: #8f5aa8; }
.allreduce { fill: #3c8f9c; }
.wait { fill: #f2a33a; }
.death { stroke: #c0221b; stroke-width: 2.5; }
.whom { fill: #222; pointer-events: none; }
.hover { fill: transparent; }
.key { display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.3em; }
.named { display: inline-block; margin-right: 1em; }
.key.compute { background: #1b6ca8; }
.key.scatter { background: #2a9d63; }
.key.gather { background: #c9a7dc; }
.key.fold { background: #8f5aa8; }
.key.allreduce { background: #3c8f9c; }
.key.wait { background: #f2a33a; }
.key.death { background: #c0221b; width: 0.25em; }"""
KEY = "<p>{}</p>".format(
    "".join(
        f'<span class="named"><span class="key {kind}"></span>{name}</span> '
        for kind, name in (
            ("compute", "outside MALT: computing"),
            ("scatter", "scatter"),
            ("gather", "gather"),
            ("fold", "fold"),
            ("allreduce", "allreduce"),
            ("wait", "waiting"),
            ("death", "death or eviction"),
        )
    )
)
_MOST_COLUMNS = 4096  # of a picture, all ranks together
_PLOT = drawing.WIDTH - drawing.LEFT - drawing.RIGHT
_DIGIT_WIDTH = 14  # a wait that is drawn as wide says for whom it is
_HIGH = drawing.ROW - 4


def whole(rows: Mapping[int, Sequence[Timeline]], origin: int, start: int, end: int) -> str:
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
    seconds = (end - start) / 1e9
    across = _PLOT / max(end - start, 1)
    parts = [drawing.axis(seconds, drawing.ROW * len(rows))]
    for number, (rank, timelines) in enumerate(rows.items()):
        parts.append(drawing.row_name(number, rank))
        paths: dict[str, list[str]] = {}
        hovers = []
        for timeline in timelines:
            shares = _shares(timeline, origin, width)
            for column in np.flatnonzero(shares.sum(axis=0) > 0).tolist():
                left = max(origin + column * width, start)
                right = min(origin + (column + 1) * width, end)
                x, wide = drawing.LEFT + (left - start) * across, (right - left) * across
                y = float(number * drawing.ROW + 2 + _HIGH)
                for kind, share in zip(("compute", *_KINDS), shares[:, column], strict=True):
                    if high := share * _HIGH:
                        y -= high
                        paths.setdefault(kind, []).append(
                            f"M{x:.1f} {y:.1f}h{wide:.1f}v{high:.1f}h-{wide:.1f}z"
                        )
                hovers.append(
                    f'<rect class="hover" x="{x:.1f}" y="{number * drawing.ROW}" '
                    f'width="{wide:.1f}" height="{drawing.ROW}"><title>rank {rank}, '
                    f"{(left - start) / 1e9:.3f} to {(right - start) / 1e9:.3f} s: "
                    f"{_percents(shares[:, column])}</title></rect>"
                )
        parts += [f'<path class="{kind}" d="{"".join(of)}"/>' for kind, of in paths.items()]
        parts += hovers
    parts += _deaths(rows, start, start, across)
    return drawing.svg(drawing.ROW * len(rows) + drawing.BOTTOM, parts)


_KINDS = [_CLASSES[kind] for kind in SPENT]


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


def _percents(shares: npt.NDArray[np.float64]) -> str:
    names = ("computing", *_KINDS)
    named = [
        f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True) if share >= 0.005
    ]
    return ", ".join(named)


def _deaths(
    rows: Mapping[int, Sequence[Timeline]], start: int, left: int, across: float
) -> Iterator[str]:
    """Mark, in the row of a rank, when another one first learnt that it is no longer a member."""
    places = {rank: number for number, rank in enumerate(rows)}
    for rank, at in deaths([one for of_rank in rows.values() for one in of_rank]):
        if rank in places and at >= left:
            x, y = drawing.LEFT + (at - left) * across, places[rank] * drawing.ROW
            yield (
                f'<line class="death" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + drawing.ROW}">'
                f"<title>rank {rank} is gone at {(at - start) / 1e9:.3f} s</title></line>"
            )


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
) -> str:
    """Draw every call between two times, a bar each; time 0 is `start`.

    Args:
        rows: by rank, the timeline and the events of each of its processes.
        start: the time that the picture calls 0.
        left: the time at which it begins.
        end: the time at which it ends.
    """
    across = _PLOT / max(end - left, 1)
    height = drawing.ROW * len(rows)
    parts = [drawing.axis((end - start) / 1e9, height, begin=(left - start) / 1e9)]
    for number, (rank, processes) in enumerate(rows.items()):
        y = number * drawing.ROW
        parts.append(drawing.row_name(number, rank))
        for timeline, events in processes:
            lived = max(timeline.began, left), min(timeline.ended, end)
            if lived[0] < lived[1]:
                parts.append(_bar("compute", y, lived, left, across))
            # Calls first: a wait or a fold is drawn upon the call that contains it.
            for kind in SPENT:
                of_kind = events[events["kind"] == kind] if len(events) else events
                for row in of_kind[of_kind["began"] >= left] if len(of_kind) else ():
                    parts += _event(kind, rank, y, row, start, left, across)
    timelines = {rank: [one for one, _ in processes] for rank, processes in rows.items()}
    parts += _deaths(timelines, start, left, across)
    return drawing.svg(height + drawing.BOTTOM, parts)


def _event(
    kind: int, rank: int, y: int, row: Any, start: int, left: int, across: float
) -> Iterator[str]:
    began, lasted = int(row["began"]), int(row["lasted"])
    name = _CLASSES[kind]
    if kind == WAIT and row["rank"] >= 0:
        name = f"waiting for rank {row['rank']}"
    title = (
        f"rank {rank}, {name}: {(began - start) / 1e9:.6f} s, for {lasted / 1e3:,.1f} us, "
        f"iteration {row['iteration']}"
    )
    yield _bar(_CLASSES[kind], y, (began, began + lasted), left, across, title)
    if kind == WAIT and row["rank"] >= 0 and lasted * across >= _DIGIT_WIDTH:
        x = drawing.LEFT + (began + lasted / 2 - left) * across
        place = f'class="whom" x="{x:.1f}" y="{y + 15}" text-anchor="middle"'
        yield f"<text {place}>{row['rank']}</text>"


def _bar(
    kind: str, y: int, span: tuple[int, int], left: int, across: float, title: str = ""
) -> str:
    x, wide = drawing.LEFT + (span[0] - left) * across, (span[1] - span[0]) * across
    inside = f"<title>{title}</title>" if title else ""
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y + 2}" width="{wide:.2f}" height="{_HIGH}">'
        f"{inside}</rect>"
    )
