"""Forecasts of the dual ascent's gap: after a sweep, and after some more passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from malt._core_import import forecast_gap
from malt._linear.problems import Look, Stopping

_MOST_CORRECTED = 4.0
_TINY = 1e-300
# A gap below this share of the objective that has not fallen since half of the passes is due to
# rounding.
_ROUNDING = {"float32": 1e-4, "float64": 1e-11}


class Forecast:
    """A forecast of the gap after each sweep, from the ascent's estimates.

    A measured gap corrects it.

    Attributes:
        gap: the forecast.
        correction: of forecasts, by the last measured gap.
        falls: whether the last estimate was below that before.
    """

    def __init__(self) -> None:
        self.gap = np.inf
        self.falls = True
        self.correction = 1.0
        self._before = np.inf

    def add(self, estimate: float) -> None:
        estimate = max(0.0, estimate)  # a sum of numbers above 0, but for rounding
        self.falls = estimate < self._before
        self.take(forecast_gap(estimate, self._before))
        self._before = estimate

    def take(self, gap: float) -> None:
        """Take a forecast that is not corrected."""
        self.gap = self.correction * gap

    def learn(self, gap: float) -> None:
        """Correct the forecasts by a measured gap."""
        if self.gap > 0 and math.isfinite(self.gap):
            self.correction *= min(max(gap / self.gap, 1 / _MOST_CORRECTED), _MOST_CORRECTED)


def may_end_within(passes: float, looks: Sequence[Look], stopping: Stopping) -> bool:
    """Whether the gap is small enough after so many more passes, if it falls as it did last."""
    if len(looks) < 2:
        return True
    before, now = looks[-2:]
    falls = math.log(before.gap / now.gap) / (now.passes - before.passes)
    due = math.log(now.gap / max(stopping.tol * now.primal, _TINY))
    return falls * passes >= due


def is_rounding(looks: Sequence[Look], dtype: npt.DTypeLike) -> bool:
    """Whether the gap has stopped to fall, as numbers of this type are rounded."""
    now = looks[-1]
    before = [look for look in looks if look.passes <= now.passes / 2]
    is_small = now.gap <= _ROUNDING[np.dtype(dtype).name] * now.primal
    return len(before) > 2 and is_small and now.gap >= 0.9 * before[-1].gap
