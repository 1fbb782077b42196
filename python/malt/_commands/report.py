"""Reports on a training: a table, a page with pictures, a trace for Perfetto.

All are made from an estimator's `history_`. The page needs no other file and no network.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

History = npt.NDArray[Any]

_WIDTH, _LEFT, _RIGHT = 960, 70, 20
_COLOURS = ("#1b6ca8", "#d1603d", "#2a9d63", "#8f5aa8", "#b8860b", "#c2417c", "#3c8f9c", "#6b6b6b")
_MOST_POINTS = 1000  # of a line; no screen shows more
_MOST_BARS = 4000  # of the picture that shows when each rank waited


def _by_rank(history: History) -> dict[int, History]:
    return {int(rank): history[history["rank"] == rank] for rank in np.unique(history["rank"])}


def sums(history: History) -> dict[int, dict[str, float]]:
    """Return each rank's totals, for table(); JSON can express them."""
    return {rank: _sums(steps) for rank, steps in _by_rank(history).items()}


def _sums(steps: History) -> dict[str, float]:
    seconds = steps["ended"][-1] - steps["began"][0]
    waited = (steps["ended"] - steps["trained"]).sum()
    return {
        "examples": int(steps["examples"][-1]),
        "seconds": seconds,
        "rate": steps["examples"][-1] / max(seconds, 1e-9),
        "exchanging": waited / max(seconds, 1e-9),
        "megabytes": steps["bytes_out"][-1] / 1e6,
        "exchanges": len(steps),
        "staleness": int(steps["staleness"].max()),
        "loss": steps["loss"][-1],
    }


_COLUMNS = (
    ("rank", "{rank}"),
    ("examples", "{examples:,}"),
    ("examples/s", "{rate:,.0f}"),
    ("seconds", "{seconds:.2f}"),
    ("exchanging", "{exchanging:.1%}"),
    ("exchanges", "{exchanges:,}"),
    ("MB sent", "{megabytes:,.3f}"),
    ("staleness", "{staleness}"),
    ("loss", "{loss:.4f}"),
)


def _rows(ranks: Mapping[int, Mapping[str, float]]) -> list[list[str]]:
    names = [name for name, _ in _COLUMNS]
    return [names] + [
        [form.format(rank=rank, **done) for _, form in _COLUMNS] for rank, done in ranks.items()
    ]


def table(ranks: Mapping[int, Mapping[str, float]]) -> str:
    """Make a line for each rank: its examples, its speed, the part of its time in exchanges."""
    rows = _rows(ranks)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(lines)


def trace(history: History) -> dict[str, Any]:
    """Make a trace in Chrome's trace-event format, for ui.perfetto.dev: one thread a rank."""
    start = history["began"].min()
    events: list[dict[str, Any]] = []

    def add(name: str, rank: int, began: float, ended: float, step: Any) -> None:
        arguments = {name: step[name].item() for name in ("examples", "loss", "staleness")}
        events.append(
            {
                "name": name,
                "ph": "X",
                "pid": 0,
                "tid": rank,
                "ts": (began - start) * 1e6,
                "dur": (ended - began) * 1e6,
                "args": arguments,
            }
        )

    for rank, steps in _by_rank(history).items():
        name = {"name": f"rank {rank}"}
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": name})
        for step in steps:
            add("train", rank, step["began"], step["trained"], step)
            add("exchange", rank, step["trained"], step["ended"], step)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def page(title: str, history: History, settings: Mapping[str, str]) -> str:
    """Make an HTML page: loss, bytes and exchanges against time, and when each rank waited."""
    start = history["began"].min()
    end = history["ended"].max() - start
    ranks = _by_rank(history)

    def lines(value: Callable[[History], npt.NDArray[Any]]) -> list[tuple[str, Any, Any]]:
        return [
            (f"rank {rank}", steps["ended"] - start, value(steps)) for rank, steps in ranks.items()
        ]

    pictures = [
        (
            "Mean loss of the examples between two exchanges",
            _chart(lines(lambda s: s["loss"]), end),
        ),
        ("Megabytes sent", _chart(lines(lambda s: s["bytes_out"] / 1e6), end)),
        ("Exchanges", _chart(lines(lambda s: np.arange(1, len(s) + 1)), end)),
        ("Training (blue) and exchanging or waiting (orange)", _gantt(ranks, start, end)),
    ]
    body = "".join(f"<h2>{html.escape(name)}</h2>{svg}" for name, svg in pictures)
    head, *rows = _rows(sums(history))
    return _PAGE.format(
        title=html.escape(title),
        pictures=body,
        table=_html_row("th", head) + "".join(_html_row("td", row) for row in rows),
        settings="".join(_html_row("td", pair) for pair in settings.items()),
    )


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _chart(lines: list[tuple[str, Any, Any]], end: float) -> str:
    """Draw lines over time, each (name, seconds, values)."""
    height, bottom, top = 260, 30, 24
    low = min(0.0, *(values.min() for _, _, values in lines))
    high = max(values.max() for _, _, values in lines)
    high = high if high > low else low + 1
    across = (_WIDTH - _LEFT - _RIGHT) / max(end, 1e-9)
    up = (height - bottom - top) / (high - low)
    parts = [_axes(end, height - bottom, across)]
    for tick in _ticks(low, high):
        y = height - bottom - (tick - low) * up
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for number, (name, seconds, values) in enumerate(lines):
        step = -(-len(values) // _MOST_POINTS)
        points = " ".join(
            f"{_LEFT + s * across:.1f},{height - bottom - (v - low) * up:.1f}"
            for s, v in zip(seconds[::step], values[::step], strict=True)
        )
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'<polyline points="{points}" stroke="{colour}"><title>{name}</title></polyline>'
        )
        x, y = _LEFT + 10 + 90 * (number % 9), 14 + 12 * (number // 9)
        parts.append(f'<text x="{x}" y="{y}" style="fill:{colour}">{name}</text>')
    return _svg(height, parts)


def _gantt(ranks: Mapping[int, History], start: float, end: float) -> str:
    """Draw a row for each rank, as in MLlib*'s pictures (Zhang et al., ICDE 2019, figure 3)."""
    row, bottom = 22, 30
    height = row * len(ranks) + bottom
    across = (_WIDTH - _LEFT - _RIGHT) / max(end, 1e-9)
    parts = [_axes(end, height - bottom, across)]
    most = max(1, _MOST_BARS // len(ranks))
    for number, (rank, steps) in enumerate(ranks.items()):
        y = number * row
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 15}" text-anchor="end">rank {rank}</text>')
        together = -(-len(steps) // most)  # joins steps if there are more than one can see
        for at in range(0, len(steps), together):
            some = steps[at : at + together]
            began, ended = some["began"][0] - start, some["ended"][-1] - start
            waited = (some["ended"] - some["trained"]).sum()
            for kind, left, right in (
                ("train", began, ended - waited),
                ("wait", ended - waited, ended),
            ):
                x, width = _LEFT + left * across, (right - left) * across
                parts.append(
                    f'<rect class="{kind}" x="{x:.2f}" y="{y + 3}" width="{width:.2f}" '
                    f'height="{row - 6}"><title>rank {rank}, {kind}: {left:.3f} to {right:.3f} s'
                    "</title></rect>"
                )
    return _svg(height, parts)


def _ticks(low: float, high: float) -> npt.NDArray[np.float64]:
    """Return about five round numbers."""
    raw = (high - low) / 5
    size = 10.0 ** np.floor(np.log10(raw))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw)
    ticks: npt.NDArray[np.float64] = np.round(
        np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step, 10
    )
    return ticks


def _axes(end: float, y: float, across: float) -> str:
    marks = "".join(
        f'<text x="{_LEFT + tick * across:.1f}" y="{y + 18}" text-anchor="middle">{tick:g} s</text>'
        for tick in _ticks(0, max(end, 1e-9))
    )
    return f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>{marks}'


def _svg(height: float, parts: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 960px; margin: 2em auto; }}
h1 {{ font-size: 1.4em; }}
h2 {{ font-size: 1.05em; margin: 1.8em 0 0.4em; }}
svg {{ width: 100%; height: auto; }}
svg text {{ font: 11px system-ui, sans-serif; fill: #555; }}
polyline {{ fill: none; stroke-width: 1.6; }}
.grid {{ stroke: #e6e6e6; }}
.axis {{ stroke: #888; }}
.train {{ fill: #1b6ca8; }}
.wait {{ fill: #f2a33a; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 0.2em 1em 0.2em 0; text-align: right; font-variant-numeric: tabular-nums; }}
th {{ border-bottom: 1px solid #888; }}
</style>
</head>
<body>
<h1>{title}</h1>
<table>{table}</table>
{pictures}
<h2>Settings</h2>
<table>{settings}</table>
</body>
</html>
"""
