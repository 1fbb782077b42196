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
    """A solver ends when the gap is at most `tol` times the objective, or after `passes`."""

    tol: float
    passes: int


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


class Solution(NamedTuple):
    """A solved problem."""

    weights: Array  # (features + 1, outputs): the last row are the intercepts
    alphas: Array | None  # of the dual solver: (rows,)
    looks: list[Look]
    has_converged: bool


def below_rounding(dtype: npt.DTypeLike) -> str:
    """Return words for a gap that cannot fall to `tol` because values of this type are rounded."""
    name = np.dtype(dtype).name
    return f"{name} allows no less; " + ("give X as float64" if name == "float32" else "raise tol")
