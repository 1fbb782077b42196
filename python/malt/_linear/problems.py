"""The problems that the exact solvers solve, and what they find."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Problem(NamedTuple):
    """|w|^2 / 2 + c * sum of (weight * loss), with an unpenalised intercept or none."""

    loss: str
    c: float
    intercept: bool
    epsilon: float = 0.0


class Stopping(NamedTuple):
    """A solver ends when the gap is at most `tol` times the objective, or after `passes`.

    An objective of at most `least` is rounding: all but 0.
    """

    tol: float
    passes: int
    least: float = 0.0

    def ends(self, look: Look) -> bool:
        """Whether the measured gap is small enough."""
        return look.gap <= self.tol * look.primal or look.primal <= self.least


class Look(NamedTuple):
    """A measured gap: the optimum is between dual and primal."""

    passes: float  # rows visited, over all rows
    primal: float
    dual: float
    time: float  # seconds since 1970

    rounding: float = 0.0  # smaller gaps cannot be told from the rounding of sums

    @property
    def gap(self) -> float:
        return max(self.rounding, self.primal - self.dual)

    @property
    def share(self) -> float:
        """The gap, as a share of the objective."""
        return self.gap / self.primal if self.primal > 0 else np.inf if self.gap > 0 else 0.0


class Solution(NamedTuple):
    """A solved problem."""

    weights: Array  # (features + 1, outputs): the last row are the intercepts
    alphas: Array | None  # of the dual solver: (rows,)
    looks: list[Look]
    has_converged: bool


def below_rounding(dtype: npt.DTypeLike, easier: str) -> str:
    """Return words for a gap that cannot fall to `tol` because values of this type are rounded.

    `easier`: what makes the problem easier, such as "lower C".
    """
    if np.dtype(dtype) == np.float32:
        return "float32 allows no less; give X as float64"
    return f"float64 allows no less; scale the features, {easier}, or raise tol"
