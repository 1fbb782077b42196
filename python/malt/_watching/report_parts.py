"""The part of one host in the page about a run, as bytes that another host's collector reads."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from malt._watching.run_report import MOST_BARS_A_RANK, Process
from malt._watching.series import Point, Series
from malt._watching.timeline import Columns, Timeline

_COLUMNS = ("spent", "sent", "staleness")


def pack(processes: Sequence[Process]) -> bytes:
    """Return the processes of this host's ranks; of their newest events those that are drawn."""
    heads: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for number, one in enumerate(processes):
        line = one.timeline
        series = one.reported.items()
        heads.append(
            {
                "rank": line.rank,
                "origin": line.origin,
                "began": line.began,
                "ended": line.ended,
                "events": line.events,
                "marks": line.marks,
                "dropped_marks": line.dropped_marks,
                "width": line.columns.width,
                "missed": one.missed,
                "totals": dict(one.totals),
                "reported": [[name, of.count, list(of.last)] for name, of in series],
            }
        )
        named: dict[str, Any] = dict(zip(_COLUMNS, line.columns[1:], strict=True))
        named |= {"newest": one.newest[-MOST_BARS_A_RANK:], "peers": one.peers}
        named |= {f"points{at}": np.array(of.points) for at, (_, of) in enumerate(series)}
        arrays |= {f"{number}.{name}": values for name, values in named.items()}
    file = io.BytesIO()
    np.savez_compressed(file, heads=np.frombuffer(json.dumps(heads).encode(), np.uint8), **arrays)
    return file.getvalue()


def unpack(packed: bytes, origin: int, shift: int) -> list[Process]:
    """Return what another host has packed, in this host's time.

    Args:
        packed: the bytes.
        origin: the time at which the columns are to begin.
        shift: what to add to the other host's clock to get this one's, in nanoseconds.

    Raises:
        ValueError: the bytes are no such part.
    """
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            heads = json.loads(arrays["heads"].tobytes())
            return [
                _process(head, arrays, f"{number}.", origin, shift)
                for number, head in enumerate(heads)
            ]
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError("no part of a report") from error


def _process(head: dict[str, Any], arrays: Any, at: str, origin: int, shift: int) -> Process:
    line = Timeline(int(head["rank"]), origin, int(head["began"]) + shift)
    line.ended = int(head["ended"]) + shift
    line.events, line.dropped_marks = int(head["events"]), int(head["dropped_marks"])
    line.marks = [{**mark, "began": int(mark["began"]) + shift} for mark in head["marks"]]
    columns = Columns(int(head["width"]), *(arrays[at + name] for name in _COLUMNS))
    line.columns = columns.moved(int(head["origin"]) + shift - origin)
    newest = arrays[at + "newest"].copy()
    if newest.dtype.names:
        newest["began"] += shift
    reported = {}
    for number, (name, count, last) in enumerate(head["reported"]):
        series = reported[name] = Series()
        points = arrays[f"{at}points{number}"].tolist()
        series.points = [Point(int(time) + shift, int(update), x) for time, update, x in points]
        series.count, series.last = count, Point(int(last[0]) + shift, *last[1:])
    totals = {name: int(total) for name, total in head["totals"].items()}
    return Process(line, newest, int(head["missed"]), totals, arrays[at + "peers"], reported)
