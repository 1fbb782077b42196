"""Rates of a rank, from two looks at what it has recorded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from malt._watching.sources import Look


class Rates(NamedTuple):
    """The rates of a rank between two looks."""

    rank: int
    state: str  # "runs", "waits", "stopped", "ended"
    iteration: int
    iterations: float  # a second
    bytes_out: float  # a second
    bytes_in: float  # a second
    waiting: float  # part of the time, 0 to 1
    waits_for: int | None  # the rank that took most of it
    waits_seconds: float  # of the wait in progress
    staleness: int  # of the oldest update among the last ones of the other ranks, in iterations
    epoch: int
    reports: dict[str, float]  # by name: the last value of malt.report()


def rates_of(before: Look, after: Look) -> Rates:
    """Return the rates between two looks at one process, or since its beginning if it is new."""
    seconds = max((after.time - before.time) / 1e9, 1e-9)

    def each(name: str) -> float:
        return max(0, after.totals[name] - before.totals[name]) / seconds

    waited, by_rank = _waits(before, after)
    waits_for = after.waits_for
    if waits_for is None and by_rank.any():
        waits_for = int(np.argmax(by_rank))
    folded = after.peers[:, 1] > 0
    state = after.state
    if state == "runs" and after.waits_seconds > 0:
        state = "waits"
    return Rates(
        rank=after.rank,
        state=state,
        iteration=after.totals["iteration"],
        iterations=each("scatters") + each("allreduces"),
        bytes_out=each("bytes_out"),
        bytes_in=each("bytes_in"),
        waiting=min(1.0, waited / seconds),
        waits_for=waits_for,
        waits_seconds=after.waits_seconds,
        staleness=int(after.peers[folded, 2].max(initial=0)),
        epoch=after.totals["epoch"],
        reports={name: point.value for name, point in after.reports.items()},
    )


def _waits(before: Look, after: Look) -> tuple[float, np.ndarray]:
    """Return the seconds waited between two looks, in all and by the rank waited for.

    A wait that is in progress counts as far as it has come.
    """
    by_rank = after.peers[:, 0].astype(np.float64) / 1e9 - before.peers[:, 0] / 1e9
    waited = (after.totals["waited"] - before.totals["waited"]) / 1e9
    for look, sign in ((before, -1.0), (after, 1.0)):
        waited += sign * look.waits_seconds
        if look.waits_for is not None:
            by_rank[look.waits_for] += sign * look.waits_seconds
    return max(0.0, waited), np.maximum(by_rank, 0.0)
