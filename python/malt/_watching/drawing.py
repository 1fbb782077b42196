"""Pictures and tables of HTML pages that need no other file and no network: SVG as text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

WIDTH, LEFT, RIGHT = 960, 70, 20
COLOURS = ("#1b6ca8", "#d1603d", "#2a9d63", "#8f5aa8", "#b8860b", "#c2417c", "#3c8f9c", "#6b6b6b")
ROW, BOTTOM = 22, 30  # of a picture with a row for each rank
_MOST_POINTS = 1000  # of a line; no screen shows more
_NAMES_A_ROW = 9
# Charts draw values between these: floats far larger have no differences, and far smaller ones no
# logarithm.
_MOST_VALUE, _LEAST_VALUE = 1e290, 1e-290
_LEAST_HEIGHT = 1e-9  # of a chart, as a part of its values


class Line(NamedTuple):
    """A line of a chart."""

    name: str
    x: Any
    y: Any


def chart(lines: Sequence[Line], end: float, unit: str = " s", most: int = _MOST_POINTS) -> str:
    """Draw lines over x = 0 to `end`, each with at most `most` points: every n-th of more."""
    top = 12 + 12 * -(-len(lines) // _NAMES_A_ROW)
    height = 206 + BOTTOM + top
    lines = [line._replace(y=np.clip(line.y, -_MOST_VALUE, _MOST_VALUE)) for line in lines]
    low = min(0.0, *(float(line.y.min()) for line in lines))
    high = max(float(line.y.max()) for line in lines)
    if high - low <= -low * _LEAST_HEIGHT:  # they are all alike
        high = low + max(1.0, -low)
    high = max(high, low + _LEAST_VALUE)
    across = (WIDTH - LEFT - RIGHT) / max(end, 1e-9)
    up = (height - BOTTOM - top) / (high - low)
    parts = [axis(end, height - BOTTOM, unit)]
    for tick in _ticks(low, high):
        y = height - BOTTOM - (tick - low) * up
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for number, (name, xs, ys) in enumerate(lines):
        step = -(-len(ys) // most)
        points = " ".join(
            f"{LEFT + x * across:.1f},{height - BOTTOM - (y - low) * up:.1f}"
            for x, y in zip(xs[::step], ys[::step], strict=True)
        )
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<polyline points="{points}" stroke="{colour}"><title>{name}</title></polyline>'
        )
        x, y = LEFT + 10 + 90 * (number % _NAMES_A_ROW), 14 + 12 * (number // _NAMES_A_ROW)
        parts.append(f'<text x="{x}" y="{y}" style="fill:{colour}">{name}</text>')
    return svg(height, parts)


def _ticks(low: float, high: float) -> npt.NDArray[np.float64]:
    """Return about five round numbers."""
    raw = (high - low) / 5
    size = 10.0 ** np.floor(np.log10(raw))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw)
    ticks: npt.NDArray[np.float64] = np.round(
        np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step, 10
    )
    return ticks


def axis(end: float, y: float, unit: str = " s", begin: float = 0.0) -> str:
    """Draw the horizontal axis, from `begin` to `end` of this unit."""
    across = (WIDTH - LEFT - RIGHT) / max(end - begin, 1e-9)
    marks = "".join(
        f'<text x="{LEFT + (tick - begin) * across:.1f}" y="{y + 18}" text-anchor="middle">'
        f"{tick:g}{unit}</text>"
        for tick in _ticks(begin, max(end, begin + 1e-9))
    )
    return f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>{marks}'


def row_name(number: int, rank: int) -> str:
    """Name the row of a rank, left of it."""
    return f'<text x="{LEFT - 6}" y="{number * ROW + 15}" text-anchor="end">rank {rank}</text>'


def svg(height: float, parts: Iterable[str]) -> str:
    """Make a picture that scrolls where the window is too narrow to read it."""
    picture = f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
    return f'<div class="wide">{picture}</div>'


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Make a table; without a head if that is empty."""
    first = _row("th", head) if head else ""
    body = "".join(_row("td", row) for row in rows)
    return f'<div class="wide"><table>{first}{body}</table></div>'


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def page(title: str, body: str, style: str = "") -> str:
    """Make the page; `style` is CSS of its own."""
    return _PAGE.format(title=html.escape(title), body=body, style=style)


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 960px; margin: 2em auto;
  padding: 0 1em; }}
h1 {{ font-size: 1.4em; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.05em; margin: 1.8em 0 0.4em; }}
.wide {{ overflow-x: auto; }}
svg {{ width: 100%; min-width: 720px; height: auto; }}
svg text {{ font: 11px system-ui, sans-serif; fill: #555; }}
polyline {{ fill: none; stroke-width: 1.6; }}
.grid {{ stroke: #e6e6e6; }}
.axis {{ stroke: #888; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 0.2em 0.7em 0.2em 0; text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }}
th {{ border-bottom: 1px solid #888; }}
{style}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
