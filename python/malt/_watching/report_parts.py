"""The part of one host in the page about a run, as bytes that another host's collector reads."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._npy import Npz
from malt._rendezvous.wire import MAX_RANKS
from malt._watching.run_report import MOST_BARS_A_RANK, Process
from malt._watching.series import MOST_POINTS, Point, Series
from malt._watching.timeline import MOST_MARKS, Columns, Timeline

_COLUMNS = ("spent", "sent", "staleness")
_DRAWN = ("kind", "began", "lasted", "iteration", "rank")  # of an event
_MOST_UNPACKED = 1 << 29  # bytes; a process takes some hundred kB
_MOST_VALUE = 2.0**63  # of a column
_MOST_TIME = 1 << 58  # nanoseconds from the beginning of this host's job, or of a span: 9 years


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
        arrays = Npz(io.BytesIO(packed), "it")
        _need(sum(map(arrays.size_of, arrays)) <= _MOST_UNPACKED)
        heads = json.loads(arrays["heads"].tobytes())
        return [
            _process(head, arrays, f"{number}.", origin, shift) for number, head in enumerate(heads)
        ]
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError("no part of a report") from error


def _process(head: dict[str, Any], arrays: Npz, at: str, origin: int, shift: int) -> Process:
    line = Timeline(_whole(head["rank"], MAX_RANKS - 1), origin, 0)
    line.began, line.ended = (_time(head[name], origin, shift) for name in ("began", "ended"))
    _need(line.began <= line.ended)
    line.events, line.dropped_marks = _whole(head["events"]), _whole(head["dropped_marks"])
    _need(len(head["marks"]) <= MOST_MARKS)
    line.marks = [_mark(mark, origin, shift) for mark in head["marks"]]
    columns = Columns(_whole(head["width"], _MOST_TIME), *(arrays[at + name] for name in _COLUMNS))
    for values, like in zip(columns[1:], line.columns[1:], strict=True):
        _need(values.dtype == like.dtype and values.shape == like.shape)
        _need(bool((np.abs(values) <= _MOST_VALUE).all()))
    _need(columns.width > 0)
    line.columns = columns.moved(_time(head["origin"], origin, shift) - origin)
    _need(isinstance(head["totals"], dict))
    totals = {str(name): _whole(total) for name, total in head["totals"].items()}
    peers = arrays[at + "peers"]
    _need(peers.dtype == np.uint64 and peers.ndim == 2 and peers.shape[1] >= 1)
    return Process(
        line,
        _events(arrays[at + "newest"], origin, shift),
        _whole(head["missed"]),
        totals,
        peers,
        dict(
            _series(arrays[f"{at}points{number}"], one, origin, shift)
            for number, one in enumerate(head["reported"])
        ),
    )


def _need(is_so: bool) -> None:
    if not is_so:
        raise ValueError("it is none")


def _whole(number: Any, most: int = 2**63 - 1) -> int:
    _need(type(number) is int and 0 <= number <= most)
    return int(number)


def _time(given: Any, origin: int, shift: int) -> int:
    """Return a time in this host's clock."""
    _need(type(given) is int and abs(given + shift - origin) <= _MOST_TIME)
    return int(given) + shift


def _mark(mark: dict[str, Any], origin: int, shift: int) -> dict[str, int]:
    found = {name: int(mark[name]) for name in ("kind", "rank", "iteration", "count")}
    return {"began": _time(mark["began"], origin, shift), **found}


def _events(newest: npt.NDArray[Any], origin: int, shift: int) -> npt.NDArray[Any]:
    """Return the events that are drawn; a process that has none sends them without a dtype."""
    if len(newest) == 0:
        return np.empty(0)
    _need(newest.ndim == 1 and len(newest) <= MOST_BARS_A_RANK)
    fields: Mapping[str, Any] = newest.dtype.fields or {}
    _need(all(fields[name][0].kind in "iu" for name in _DRAWN))
    for began, lasted in zip(newest["began"].tolist(), newest["lasted"].tolist(), strict=True):
        _time(began, origin, shift)
        _whole(lasted, _MOST_TIME)
    newest["began"] += shift
    return newest


def _series(
    points: npt.NDArray[Any], told: Sequence[Any], origin: int, shift: int
) -> tuple[str, Series]:
    name, count, last = told
    _need(points.dtype == np.float64 and points.ndim == 2 and 0 < len(points) <= MOST_POINTS)

    def point(time: float, update: float, value: float) -> Point:
        return Point(_time(int(time), origin, shift), _whole(int(update)), float(value))

    series = Series()
    series.points = [point(*one) for one in points.tolist()]
    series.count, series.last = _whole(count), point(*last)
    return str(name), series
