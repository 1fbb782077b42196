"""Reports on a training: a table, a page with pictures, a trace for Perfetto.

All are made from an estimator's `history_`. The page needs no other file and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._watching import document, gantt, trace_events

History = npt.NDArray[Any]

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
        at, lasts = (began - start) * 1e6, (ended - began) * 1e6
        events.append(trace_events.span(name, rank, at, lasts, arguments))

    for rank, steps in _by_rank(history).items():
        events.append(trace_events.thread(rank))
        for step in steps:
            add("train", rank, step["began"], step["trained"], step)
            add("exchange", rank, step["trained"], step["ended"], step)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def page(title: str, history: History, settings: Mapping[str, str]) -> str:
    """Make an HTML page: loss, bytes and exchanges against time, and when each rank waited."""
    start = history["began"].min()
    end = history["ended"].max() - start
    ranks = _by_rank(history)

    def chart(heading: str, y: str | None, value: Callable[[History], npt.NDArray[Any]]) -> Any:
        lines = [
            document.Line(f"rank {rank}", steps["ended"] - start, value(steps))
            for rank, steps in ranks.items()
        ]
        return document.chart(heading, lines, "seconds", y)

    head, *rows = _rows(sums(history))
    parts = [
        document.table("", head, rows),
        chart("Mean loss of the examples between two exchanges", None, lambda s: s["loss"]),
        chart("Megabytes sent", "MB", lambda s: s["bytes_out"] / 1e6),
        chart("Exchanges", None, lambda s: np.arange(1, len(s) + 1)),
        {"heading": "Computing, and exchanging or waiting"} | _gantt(ranks, start, end),
        document.table("Settings", (), settings.items()),
    ]
    return document.page(title, parts)


def _gantt(ranks: Mapping[int, History], start: float, end: float) -> dict[str, Any]:
    """Draw a row for each rank, as in MLlib*'s pictures (Zhang et al., ICDE 2019, figure 3)."""
    bars = []
    most = max(1, _MOST_BARS // len(ranks))
    for number, steps in enumerate(ranks.values()):
        together = -(-len(steps) // most)  # joins steps if there are more than one can see
        for at in range(0, len(steps), together):
            some = steps[at : at + together]
            waited = (some["ended"] - some["trained"]).sum()
            began, ended = some["began"][0] - start, some["ended"][-1] - start
            bars.append([number, "computing", began, ended - waited - began, None, -1])
            bars.append([number, "waiting", ended - waited, waited, None, -1])
    return gantt.picture(ranks, 0.0, end, bars=bars)
