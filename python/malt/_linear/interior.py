"""Solving a linear model whose loss has a kink by a primal-dual interior point method.

A loss with a kink is c max(0, t) of one margin t = g - s p of each row, or of two: s is the label
or the sign of the error, p the decision value. The dual has an a from 0 to c for each, and
w = sum of a s x. At the optimum t = high - low, low a = 0 and high (c - a) = 0. The method follows
low a = high (c - a) = mu to mu = 0 (Mehrotra 1992). A step solves equations like Newton's
(equations.py); some twenty suffice, however the rows are scaled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._job import job as jobs
from malt._linear import equations
from malt._linear.losses import Losses, balanced
from malt._linear.newton_products import Rows
from malt._linear.problems import Look, Stopping
from malt._linear.rank_sums import Sums

Array = npt.NDArray[Any]

_NEARLY = 0.995  # of the way to where an a, a low or a high would be 0
_NARROWS = 0.9  # the gap, by a step,
_MOST_IN_VAIN = 8  # or by one of so many in turn
_EPS = float(np.finfo(np.float64).eps)


class _Margins(NamedTuple):
    """This rank's margins: one or two for each row."""

    signs: Array  # (margins, rows)
    gains: Array
    costs: Array


class _Point(NamedTuple):
    """Of this rank's margins and rows; the weights and slopes are those of all ranks."""

    a: Array
    low: Array
    high: Array
    alphas: Array  # the sum of a s of each row, which would be rounded too much
    weights: Array
    slopes: Array  # w - the sum of alpha x, and minus the sum of alpha
    decisions: Array


class Interior:
    """One rank's part of the method.

    Attributes:
        weights: the best found, as `rows` multiply them.
        alphas: one for each row; with an intercept they sum to 0.
        looks: the gap after each step.
    """

    def __init__(
        self,
        rows: Rows,
        losses: Losses,
        stopping: Stopping,
        sums: tuple[Sums, Sums, Sums],
        passes: float,
        watch: Callable[[Look], object],
    ) -> None:
        """Prepare the method.

        `sums` add a few numbers, what equations.py exchanges, and one number of each rank.
        """
        self._rows, self._losses, self._stopping = rows, losses, stopping
        self._watch = watch
        self._few, self._wide, self._each = sums
        self._rank = jobs.rank() if len(self._each.array) > 1 else 0
        self._intercept = losses.problem.intercept
        self._equations = equations.formed(rows, self._few, self._wide, intercept=self._intercept)
        self._features = rows.columns - self._intercept
        self._margins = self._margins_of(losses)
        self.passes = passes
        self.weights, self.alphas = np.zeros(rows.columns), np.zeros(rows.count)
        self._primal, self._dual = np.inf, -np.inf
        self.looks: list[Look] = []

    def _margins_of(self, losses: Losses) -> _Margins:
        targets, costs = losses.targets, losses.costs
        if losses.problem.loss == "hinge":
            return _Margins(targets[np.newaxis], np.ones((1, len(targets))), costs[np.newaxis])
        epsilon = losses.problem.epsilon
        signs = np.ones((2, len(targets)))
        signs[1] = -1
        return _Margins(signs, signs * targets - epsilon, np.stack([costs, costs]))

    def run(self) -> None:
        """Follow the path until the gap is small enough, or does not narrow any more."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            point: _Point | None = self._start()
            in_vain = 0
            while point is not None and in_vain < _MOST_IN_VAIN:
                narrowest = self._primal - self._dual
                look = self._look(point)
                is_over = self.passes >= self._stopping.passes or look.gap <= look.rounding
                if self._stopping.ends(look) or is_over:
                    return
                in_vain = 0 if look.primal - look.dual < _NARROWS * narrowest else in_vain + 1
                point = self._step(point)

    def _start(self) -> _Point:
        """Begin halfway between all bounds, with a sum of 0 and with t = high - low."""
        signs, gains, costs = self._margins
        a = costs / 2
        if self._intercept:
            a = signs * balanced(signs * a, self._few)
        point = self._at(a, a, a, (signs * a).sum(0), None)
        short = gains - signs * point.decisions
        size = self._most(1 + float(np.abs(short).max(initial=0)))
        return point._replace(low=size - short / 2, high=size + short / 2)

    def _at(self, a: Array, low: Array, high: Array, alphas: Array, weights: Any) -> _Point:
        """Visit all rows."""
        self.passes += 1
        if self._intercept:
            alphas = balanced(alphas, self._few)
        of_alphas = equations.added(self._wide, self._rows.transposed(alphas))
        if weights is None or self._equations.follows_alphas:
            intercept = 0.0 if weights is None else weights[-1]
            weights = of_alphas.copy()
            if self._intercept:
                weights[-1] = intercept
        slopes = -of_alphas
        slopes[: self._features] += weights[: self._features]
        return _Point(a, low, high, alphas, weights, slopes, self._rows.times(weights))

    def _look(self, point: _Point) -> Look:
        """Measure the gap; that of the best weights and alphas so far counts."""
        body = point.weights[: self._features]
        of_alphas = body - point.slopes[: self._features]
        losses = float(self._losses.costs @ self._losses.values(point.decisions))
        duals = float(self._losses.duals(point.alphas).sum())
        primal, dual, *_ = self._few.add_few(
            losses + float(body @ body) / 2 / self._few.ranks,
            duals - float(of_alphas @ of_alphas) / 2 / self._few.ranks,
        )
        if dual > self._dual:
            self._dual, self.alphas = dual, point.alphas
        if primal < self._primal:
            self._primal, self.weights = primal, point.weights
        rounding = self._primal * _EPS
        self.looks.append(Look(self.passes, self._primal, self._dual, time.time(), rounding))
        self._watch(self.looks[-1])
        return self.looks[-1]

    def _step(self, point: _Point) -> _Point | None:
        signs, gains, costs = self._margins
        a, low, high = point[:3]
        up = costs - a
        loose = 1 / (low / a + high / up)
        of_rows = loose.sum(0)
        rest = signs * point.decisions - gains - low + high
        is_spent = not (np.isfinite(loose).all() and np.isfinite(rest).all() and of_rows.all())
        mean, count, spent, *_ = self._few.add_few(
            float((a * low + up * high).sum()), 2.0 * a.size, is_spent
        )
        if spent:  # the numbers have become too small
            return None
        mean /= max(1.0, count)
        move = self._equations.coupled(of_rows)
        centre, of_low, of_high = 0.0, 0.0, 0.0
        for is_last in (False, True):  # a predictor, then a step
            to_low = (centre - of_low) / a - low
            to_high = (centre + of_high) / up - high
            pulls = to_low - to_high - rest
            pull = (signs * loose * pulls).sum(0) / of_rows
            alphas, step = move(pull, point.slopes)
            # loose * (pulls - signs * decisions), without a difference of large numbers
            of_a = loose * (pulls - signs * pull) + signs * (loose / of_rows * alphas)
            to_low -= low / a * of_a
            to_high += high / up * of_a
            length = self._longest((a, of_a), (up, -of_a), (low, to_low), (high, to_high))
            if not is_last:
                of_lows = (a + length * of_a) * (low + length * to_low)
                of_highs = (up - length * of_a) * (high + length * to_high)
                ahead, *_ = self._few.add_few(float((of_lows + of_highs).sum()))
                ahead /= max(1.0, count)
                centre = (ahead / mean) ** 3 * mean
                of_low, of_high = of_a * to_low, of_a * to_high
        if not np.isfinite(length) or length <= 0:
            return None
        return self._at(
            a + length * of_a,
            low + length * to_low,
            high + length * to_high,
            point.alphas + length * alphas,
            point.weights + length * step,
        )

    def _longest(self, *moves: tuple[Array, Array]) -> float:
        """Return how far all may move, up to 1, so that none is below 0."""
        own = 1.0
        for values, changes in moves:
            falls = changes < 0
            own = min(own, float(np.min(values[falls] / -changes[falls], initial=np.inf)) * _NEARLY)
            own = own if np.isfinite(changes).all() else 0.0
        return 1 / self._most(1 / own if own > 0 else np.inf)

    def _most(self, number: float) -> float:
        """Return the largest of the ranks' numbers, which are above 0."""
        self._each.array[:] = 0
        self._each.array[self._rank] = number
        return float(self._each.add_up().max())
