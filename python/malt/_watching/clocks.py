"""By how much the clocks of hosts differ, from what their ranks received from one another.

An update is folded after its scatter began, and an allreduce ends after every member has begun it.
Each such pair of events on two hosts bounds the difference of their clocks on one side, and pairs
in the other direction bound it on the other side. Bounds add up along paths of hosts: they are
difference constraints, which Floyd and Warshall's shortest paths solve (Cormen et al., Introduction
to Algorithms, chapter on single-source shortest paths). A network that is faster in one direction
than in the other biases nothing here but the middle of the bounds: the true difference is always
between them, if the clocks run equally fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Shift(NamedTuple):
    """The difference from the times of a host to those of the first one; in microseconds."""

    by: float
    error: float | None  # the true shift is at most so far off; None: that is not known
    drift: float  # 0, or by how much the bounds contradict one another: the clocks drift


def shifts_of(most: Floats) -> list[Shift]:
    """Return the shift of each host.

    If the bounds are on one side only, the shift is the nearest to 0 within them: the hosts'
    own clocks are believed as far as they can be.

    Args:
        most: hosts x hosts: the shift of host b is at most that of host a + most[a, b]; infinity:
            no such bound.
    """
    nearest = most.copy()
    np.fill_diagonal(nearest, 0.0)
    for via in range(len(nearest)):
        nearest = np.minimum(nearest, nearest[:, via, None] + nearest[None, via, :])
        np.fill_diagonal(nearest, 0.0)  # contradictory bounds would make it negative
    return [_between(-float(nearest[at, 0]), float(nearest[0, at])) for at in range(len(nearest))]


def _between(low: float, high: float) -> Shift:
    if low > high:
        return Shift((low + high) / 2, None, low - high)
    if math.isfinite(low) and math.isfinite(high):
        return Shift((low + high) / 2, (high - low) / 2, 0.0)
    return Shift(min(max(0.0, low), high), None, 0.0)


class Sent:
    """Scatters of one rank, for finding when an update began at the earliest.

    Args:
        began: times of its scatters, in their order.
        iterations: of these scatters.
        is_complete: no scatter is missing.
    """

    def __init__(
        self, began: Sequence[float], iterations: Sequence[int], is_complete: bool
    ) -> None:
        order = np.argsort(np.asarray(began), kind="stable")
        self._began = np.asarray(began, np.float64)[order]
        numbers = np.asarray(iterations, np.int64)[order]
        # Several vectors count iterations of their own: then the earliest that has come so far.
        self._reached = np.maximum.accumulate(numbers) if len(numbers) else numbers
        self._first = -1  # updates up to this iteration may be of scatters that are missing
        if not is_complete and len(numbers):
            is_one_count = bool(np.all(np.diff(numbers) >= 0))
            self._first = int(numbers[0]) if is_one_count else int(numbers.max())

    def begins(self, iterations: npt.NDArray[np.int64]) -> Floats:
        """Return when the first scatter of at least each iteration began; -inf: not known.

        An update of that iteration or a later one cannot have been scattered before.
        """
        at = np.searchsorted(self._reached, iterations)
        is_known = (at < len(self._reached)) & (iterations > self._first)
        found = np.full(len(iterations), -math.inf)
        found[is_known] = self._began[at[is_known]]
        return found
