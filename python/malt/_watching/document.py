"""A report as one HTML page that needs no other file and no network: its data as JSON.

A page is a list of parts, each a dictionary: a heading, and a text, list, table, chart or `times`
(of gantt.py), which `page/report.js` shows.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from malt._watching.page import assembled

_MOST_POINTS = 1000  # of a line; no screen shows more
_PLAIN = (1e-12, 1e15)  # uPlot gives axes to larger and smaller values only in another unit
_LEAST = 1e-290  # no float is a power of ten that would make less readable


class Line(NamedTuple):
    """A line of a chart."""

    name: str
    x: Any
    y: Any


def chart(
    heading: str, lines: Iterable[Line], x: str, y: str | None = None, most: int = _MOST_POINTS
) -> dict[str, Any]:
    """Draw lines, each with at most `most` points: every n-th of more.

    `x` and `y` name what the axes show, with its unit.
    """
    shown = [[line.name, *_thinned(line, most)] for line in lines]
    largest = max(float(np.abs(ys).max()) for _, _, ys in shown)
    if largest >= _LEAST and not _PLAIN[0] < largest < _PLAIN[1]:
        power = math.floor(math.log10(largest))
        y = f"{y or ''} in 1e{power}"
        shown = [[name, xs, ys / 10.0**power] for name, xs, ys in shown]
    texts = [[name, _numbers(xs), _numbers(ys)] for name, xs, ys in shown]
    return {"heading": heading, "chart": {"x": x, "y": y, "lines": texts}}


def _thinned(line: Line, most: int) -> list[Any]:
    step = -(-len(line.x) // most)
    return [np.asarray(values[::step], np.float64) for values in line[1:]]


def _numbers(values: Any) -> list[float]:
    return [float(f"{value:.7g}") for value in values]


def table(heading: str, head: Sequence[str], rows: Iterable[Iterable[str]]) -> dict[str, Any]:
    """Make a table; without a head if that is empty."""
    return {"heading": heading, "table": {"head": head, "rows": [list(row) for row in rows]}}


def page(title: str, parts: Iterable[dict[str, Any]]) -> str:
    """Make the page."""
    data = json.dumps({"title": title, "parts": list(parts)}, allow_nan=False)
    made = assembled("report.html").replace("MALT report", html.escape(title), 1)
    return made.replace("<!-- data -->", data.replace("<", "\\u003c"))
