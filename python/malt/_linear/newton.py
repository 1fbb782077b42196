"""Solving a linear model with a smooth loss by Newton's method.

A step solves equations on the smaller side of the matrix (equations.py). The least squares of ridge
regression take one. No step goes uphill.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._linear import equations
from malt._linear.losses import Bent, Losses, balanced
from malt._linear.newton_products import Rows
from malt._linear.problems import Look, Stopping
from malt._linear.rank_sums import Sums

Array = npt.NDArray[Any]

_FLAT = 0.1  # of the slope at the beginning of a step, at its end
_MOST_TRIALS = 20  # of the length of a step
_INNER = 0.1  # of the gap that is asked for: what may be left for making the alphas sum to 0
_FORCING = 0.1  # of the slopes: what conjugate gradients may leave of them
_LEAST_BEND = 1e-12  # of a row's cost: rows whose losses are flat
_MOST_IN_VAIN = 3  # steps that change the objective by its rounding only
_FAR = 1e-4  # a share of a length: places below it are looked for after those above
_EPS = float(np.finfo(np.float64).eps)


class _Point(NamedTuple):
    """Sums over the rows of all ranks, at some weights."""

    weights: Array
    makers: Array  # with fewer rows than columns: the weights are the sum of these times x
    decisions: Array  # of this rank's rows
    bent: Bent
    slopes: Array
    primal: float
    left: float  # about the gap


class Newton:
    """One rank's part of the method.

    Attributes:
        weights: the best found, as `rows` multiply them.
        alphas: one for each row; with an intercept they sum to 0.
        looks: the measured gaps.
    """

    def __init__(
        self,
        rows: Rows,
        losses: Losses,
        stopping: Stopping,
        sums: tuple[Sums, Sums],
        start: tuple[Array, Array],
        passes: float,
        watch: Callable[[Look], object],
    ) -> None:
        """Prepare the method; `start`: weights and alphas.

        `sums` add a few numbers, and what equations.py exchanges.
        """
        self._rows, self._losses, self._stopping = rows, losses, stopping
        self._few, self._wide = sums
        self._watch = watch
        self._intercept = losses.problem.intercept
        self._features = rows.columns - self._intercept
        self._equations = equations.choose(
            rows, self._few, self._wide, self._visit, intercept=self._intercept
        )
        self.weights, self.alphas = start
        self.passes = passes
        self.looks: list[Look] = []

    def run(self) -> None:
        """Go downhill until the gap is small enough, or nothing is gained any more."""
        weights, makers = self.weights, self.alphas
        if self._is_by_row:
            weights = self._rows.transposed(makers)
            weights[self._features :] = self.weights[self._features :]
        decisions = self._rows.times(weights)
        point = self._at(weights, makers, decisions, self._losses.bend(decisions))
        goal, in_vain = _INNER * self._stopping.tol, 0
        while True:
            is_over = self.passes >= self._stopping.passes or in_vain >= _MOST_IN_VAIN
            is_close = point.left <= goal * point.primal or point.primal <= self._stopping.least
            if is_over or is_close:
                self._look(point)
                if is_over or self._stopping.ends(self.looks[-1]):
                    return
                goal /= 10
            further = self._step(point)
            if further is None:
                in_vain = _MOST_IN_VAIN
                continue
            falls = point.primal - further.primal > _EPS * abs(point.primal)
            in_vain = 0 if falls or further.left < point.left / 2 else in_vain + 1
            point = further

    @property
    def _is_by_row(self) -> bool:
        return isinstance(self._equations, equations.ByRow)

    def _step(self, point: _Point) -> _Point | None:
        """Take a step of Newton's method; return None if it does not go downhill."""
        if isinstance(self._equations, equations.ByRow):
            bends = np.maximum(point.bent.bends, _LEAST_BEND * self._losses.costs)
            slopes = np.append(np.zeros(self._features), -point.makers.sum())
            solve_rows = self._equations.coupled(bends)
            moves, step = solve_rows((point.bent.alphas - point.makers) / bends, slopes)
            return self._along(point, step, moves)
        square = float(point.slopes @ point.slopes)
        enough = max(_INNER * self._stopping.tol * point.primal, _FORCING**2 * square)
        if self._losses.problem.loss == "squared_error":  # the equations are the whole problem
            enough = _INNER * self._stopping.tol * point.primal
        most = int(self._stopping.passes - self.passes)
        for careful in (False, True):
            effort = equations.Effort(careful, enough, most)
            solve = self._equations.factored(point.bent.bends, point.slopes, effort)
            further = self._along(point, solve(point.slopes), np.zeros(0))
            if further is not None:
                return further
        return None

    def _along(self, point: _Point, step: Array, moves: Array) -> _Point | None:
        """Go along a step to where it is flat; return None if it leads uphill from here."""
        along = self._rows.times(step)
        free = step[: self._features]
        trials: dict[float, tuple[Array, Bent]] = {}

        def slope(length: float) -> tuple[float, float]:
            decisions = point.decisions + length * along
            bent = self._losses.bend(decisions)
            trials[length] = decisions, bent
            weights = point.weights[: self._features] + length * free
            found, rises, *_ = self._few.add_few(
                self._part(free @ weights) - float(bent.alphas @ along),
                self._part(free @ free) + float(bent.bends @ (along * along)),
            )
            return found, rises

        start = self._few.agree(float(point.slopes @ step))
        length = flattest(start, slope)
        if length == 0:
            return None
        makers = point.makers + length * moves if self._is_by_row else point.makers
        return self._at(point.weights + length * step, makers, *trials[length])

    def _visit(self) -> None:
        self.passes += 1

    def _at(self, weights: Array, makers: Array, decisions: Array, bent: Bent) -> _Point:
        """Visit all rows."""
        self._visit()
        slopes = -equations.added(self._wide, self._rows.transposed(bent.alphas))
        free, body = slopes[: self._features], weights[: self._features]
        free += body
        left = float(free @ free) / 2
        if self._intercept:  # the cost of _look(), which makes the alphas sum to 0
            left += abs(float(slopes[-1])) * (1 + abs(float(weights[-1])))
        primal, left, *_ = self._few.add_few(
            float(self._losses.costs @ self._losses.values(decisions))
            + self._part(body @ body / 2),
            self._part(left),
        )
        return _Point(weights, makers, decisions, bent, slopes, primal, left)

    def _part(self, number: Any) -> float:
        """Return this rank's part of a number that all ranks have.

        The sum of the parts has the same bits on all ranks, even if their processors round the
        number differently. So all ranks come to the same decisions.
        """
        return float(number) / self._few.ranks

    def _look(self, point: _Point) -> None:
        """Measure the gap, by the better one of two sets of alphas."""
        self.weights = point.weights
        best = -np.inf
        for given in (point.bent.alphas, point.makers)[: 1 + self._is_by_row]:
            alphas = self._losses.allowed(given)
            if self._intercept:
                alphas = balanced(alphas, self._few)
            of_alphas = equations.added(self._wide, self._rows.transposed(alphas))
            of_alphas = of_alphas[: self._features]
            dual, *_ = self._few.add_few(
                float(self._losses.duals(alphas).sum()) - self._part(of_alphas @ of_alphas / 2)
            )
            if dual >= best:
                best, self.alphas = dual, alphas
        rounding = point.primal * _EPS
        self.looks.append(Look(self.passes, point.primal, best, time.time(), rounding))
        self._watch(self.looks[-1])


def flattest(at_start: float, slope: Callable[[float], tuple[float, float]]) -> float:
    """Return the length from 0 to 1 where a rising slope is about 0; 0 if it is so at the start.

    `slope` returns the slope and its derivative. By Newton's method. If that leads out of what
    holds the place, half of it is taken, of the logarithms: slopes may be of very unlike sizes.
    """
    if not (at_start < 0 and np.isfinite(at_start)):
        return 0.0
    low, high, length = 0.0, 1.0, 1.0
    for _ in range(_MOST_TRIALS):
        found, rises = slope(length)
        if abs(found) <= _FLAT * -at_start or (found < 0 and length == 1):
            return length
        low, high = (length, high) if found < 0 else (low, length)
        length -= found / rises if rises > 0 else np.inf
        if not low < length < high:
            length = math.sqrt(max(low, _FAR * high) * high)
    return low
