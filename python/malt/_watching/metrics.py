"""Counters of ranks, and the text of them that Prometheus reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from malt._watching.sources import Look

_NOT_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
# The name of a counter, how it is made of a rank's totals, and what it says.
_COUNTERS = (
    ("scatters", "scatters", 1, "calls of scatter"),
    ("gathers", "gathers", 1, "calls of gather"),
    ("allreduces", "allreduces", 1, "calls of allreduce"),
    ("updates_folded", "folded", 1, "updates of other ranks that gathers have folded"),
    ("bytes_sent", "bytes_out", 1, "payload sent, once for each receiver"),
    ("bytes_folded", "bytes_in", 1, "payload of updates folded"),
    ("wait_seconds", "waited", 1e-9, "time in waits that have ended"),
)


class Metric(NamedTuple):
    """A counter, which only grows, or a gauge; each value with its labels."""

    name: str
    is_counter: bool
    what: str
    values: Sequence[tuple[Mapping[str, str], float]]


def _number(value: float) -> str:
    return f"{value:.15g}" if math.isfinite(value) else _NOT_FINITE[f"{value:g}"]


def metrics_of(looks: Sequence[Look]) -> list[Metric]:
    """Return what is known of all ranks of this host."""
    found: list[Metric] = []

    def of_ranks(name: str, is_counter: bool, what: str, values: Sequence[float]) -> None:
        labels = [{"rank": str(look.rank)} for look in looks]
        found.append(Metric(name, is_counter, what, list(zip(labels, values, strict=True))))

    for name, total, unit, what in _COUNTERS:
        counts = [look.totals[total] * unit for look in looks]
        of_ranks(name, True, f"Number or amount of: {what}.", counts)
    iterations = [look.totals["iteration"] for look in looks]
    of_ranks("iteration", False, "Of the last scatter.", iterations)
    epochs = [look.totals["epoch"] for look in looks]
    of_ranks("epoch", False, "The epoch on which the ranks agree.", epochs)
    are_up = [int(look.state != "ended") for look in looks]
    of_ranks("up", False, "1 while the rank's process is there.", are_up)
    waits = [look.waits_seconds for look in looks]
    of_ranks("waiting_seconds", False, "Of the wait in progress.", waits)
    peers = [(look.rank, peer, row) for look in looks for peer, row in enumerate(look.peers)]
    waited = [
        ({"rank": str(rank), "waited_for": str(peer)}, int(row[0]) * 1e-9)
        for rank, peer, row in peers
        if peer != rank
    ]
    what = "Waits that this rank was last to end."
    found.append(Metric("waited_for_seconds", True, what, waited))
    stale = [
        ({"rank": str(rank), "sender": str(peer)}, int(row[2]))
        for rank, peer, row in peers
        if row[1] > 0
    ]
    what = "Iterations by which the last update folded was old."
    found.append(Metric("staleness", False, what, stale))
    reports = [
        ({"rank": str(look.rank), "name": name}, point.value)
        for look in looks
        for name, point in look.reports.items()
    ]
    what = "The last value that the program gave to malt.report()."
    found.append(Metric("report", False, what, reports))
    return found


def text_of(metrics: Sequence[Metric]) -> str:
    """Return the page that Prometheus reads."""
    lines: list[str] = []
    for metric in metrics:
        name = f"malt_{metric.name}_total" if metric.is_counter else f"malt_{metric.name}"
        kind = "counter" if metric.is_counter else "gauge"
        lines.extend((f"# HELP {name} {metric.what}", f"# TYPE {name} {kind}"))
        for labels, value in metric.values:
            text = ",".join(f'{label}="{of}"' for label, of in labels.items())
            lines.append(f"{name}{{{text}}} {_number(value)}")
    return "\n".join(lines) + "\n"
