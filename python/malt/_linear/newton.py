"""Solving a linear model with few features by Newton's method, where the dual ascent is slow.

With many more rows than features and a large C, rows undo each other's steps in the dual. There the
problem in the weights is small: a step solves (features + 1) equations.

Losses with a kink get Newton's method within the method of multipliers (Li, Sun and Toh, SIAM J.
Optim. 2018, for Lasso). Each loss is replaced by its Moreau envelope around what the row's alpha
says. An envelope bends where the loss has a kink, over a certain width. The weights that minimise
the sum of the envelopes give the next alphas; then the envelopes are made narrower. Smooth losses
need none of this, and one round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import expit, xlogy

from malt._linear.problem import Look, Problem, Stopping
from malt._linear.sums import RankLostError, Sums

Array = npt.NDArray[Any]

FEW = 6  # numbers that `few` adds up at once
_KINKED = ("hinge", "epsilon_insensitive")
_FIRST_WIDTH = 0.3  # of an envelope, in standard deviations of the targets
_NARROWER = 3.0  # each round
_LEAST_WIDTH = 1e-12
_FEW_STEPS, _MANY_STEPS = 8, 20  # of a round; then envelopes get narrower, or wider
_FLAT = 0.1  # of the slope at the beginning of a step, at its end
_MOST_TRIALS = 20  # of the length of a step
_INNER = 0.1  # of the gap: what a round may leave to be gained
_DAMPING = 1e-10  # of the intercept's equation, which may have no solution of its own


class Rows(NamedTuple):
    """This rank's rows."""

    X: Any  # float64, an array or a CSR matrix; with an intercept, the last column is 1
    targets: Array
    costs: Array  # c times the weight of each row

    @staticmethod
    def of(X: Any, targets: Array, weights: Array | None, problem: Problem) -> Rows:
        costs = np.full(X.shape[0], problem.c)
        if weights is not None:
            costs *= weights
        return Rows(
            _with_ones(X) if problem.intercept else X.astype(np.float64, copy=False),
            targets.astype(np.float64, copy=False),
            costs,
        )


def _with_ones(X: Any) -> Any:
    """Return X as float64, with one more column, of ones."""
    if sparse.issparse(X):
        return sparse.hstack([X.astype(np.float64, copy=False), np.ones((X.shape[0], 1))], "csr")
    wider = np.empty((X.shape[0], X.shape[1] + 1))
    wider[:, :-1] = X
    wider[:, -1] = 1
    return wider


class _Bent(NamedTuple):
    """The rows' envelopes, or smooth losses, at some decision values."""

    alphas: Array  # minus their first derivatives
    bends: Array  # their second derivatives


class _Point(NamedTuple):
    """Sums over the rows of all ranks, at some weights."""

    weights: Array
    decisions: Array  # of this rank's rows
    bent: _Bent
    slopes: Array  # of |w|^2 / 2 + the sum of the envelopes, which a round minimises
    primal: float
    dual: float  # a bound if the slope of the intercept is 0
    left: float  # the gap is at most so much larger than at the round's minimum


class Newton:
    """One rank's part of the method.

    Attributes:
        weights, alphas: what it begins with, and has found.
        looks: the measured gaps.
        has_converged: whether the last one is small enough.
    """

    def __init__(
        self,
        rows: Rows,
        problem: Problem,
        stopping: Stopping,
        sums: tuple[Sums, Sums],
        start: tuple[Array, Array],
        passes: float,
        rounding: float,
        watch: Callable[[Look], object],
    ) -> None:
        """Prepare the method.

        `sums` add FEW numbers, and the square of X's columns; `passes` were made before; gaps below
        `rounding` times the objective cannot be told from none.
        """
        self._rows, self._problem, self._stopping = rows, problem, stopping
        self._few, self._wide = sums
        self.weights, self.alphas = start
        self.passes = passes
        self._rounding = rounding
        self._watch = watch
        self._penalised = np.ones(rows.X.shape[1])
        if problem.intercept:
            self._penalised[-1] = 0
        self.looks: list[Look] = []
        self.has_converged = False

    def run(self) -> None:
        is_kinked = self._problem.loss in _KINKED
        width = _FIRST_WIDTH
        spread: float | None = None
        while width > _LEAST_WIDTH:
            try:
                spread = self._spread() if spread is None else spread
                steps = self._round(width * spread)
            except RankLostError as lost:
                self._few.ranks = self._wide.ranks = lost.ranks
                continue
            last = self.looks[-1]
            self.has_converged = last.gap <= self._stopping.tol * last.primal
            is_over = self.passes >= self._stopping.passes or last.gap <= last.rounding
            if self.has_converged or is_over or not is_kinked:
                return
            if steps <= _FEW_STEPS:
                width /= _NARROWER
            elif steps > _MANY_STEPS:
                width *= _NARROWER

    def _spread(self) -> float:
        """Return the unit of an envelope's width: the targets' standard deviation; of labels, 1."""
        targets = self._rows.targets
        count, total, square, *_ = self._few.add_few(
            len(targets), float(targets.sum()), float(targets @ targets)
        )
        if self._problem.loss == "hinge":
            return 1.0
        return float(np.sqrt(max(0.0, square / count - (total / count) ** 2))) or 1.0

    def _round(self, width: float) -> float:
        """Minimise over the weights, with envelopes of this width; return the number of steps."""
        begin = self.passes
        point = self._at(self.weights, self._rows.X @ self.weights, width)
        while self.passes < self._stopping.passes:
            gap = max(0.0, point.primal - point.dual)
            if point.left <= _INNER * max(self._stopping.tol * point.primal, gap):
                break
            further = self._step(point, width)
            if further is None:
                break
            point = further
        self.weights, self.alphas = point.weights, point.bent.alphas
        self._look(point.primal)
        return self.passes - begin

    def _step(self, point: _Point, width: float) -> _Point | None:
        """Take a step of Newton's method; return None if it does not go downhill."""
        step = self._direction(point)
        along = self._rows.X @ step

        def slope(length: float) -> float:
            bent = self._bend(point.decisions + length * along, width)
            weights = self._penalised * (point.weights + length * step)
            of_rows, of_weights, *_ = self._few.add_few(
                float(bent.alphas @ along), self._part(weights @ step)
            )
            return of_weights - of_rows

        length = _flattest(slope)
        if length == 0:
            return None
        return self._at(point.weights + length * step, point.decisions + length * along, width)

    def _direction(self, point: _Point) -> Array:
        """Return Newton's step; all ranks get the same bits, whatever their processors."""
        X, bends = self._rows.X, point.bent.bends
        bent = np.flatnonzero(bends)
        part, roots = X[bent], np.sqrt(bends[bent, None])
        if sparse.issparse(X):
            part = part.multiply(roots)
        else:
            part *= roots
        matrix = part.T @ part  # of one array with itself: NumPy computes half of it
        columns = len(point.weights)
        self._wide.array[:] = np.ravel(matrix.toarray() if sparse.issparse(matrix) else matrix)
        matrix = self._wide.add_up().reshape(columns, columns) + np.diag(self._penalised)
        if self._problem.intercept:
            # Without a bend in any row's loss, the intercept moves by 1.
            matrix[-1, -1] += _DAMPING * matrix[-1, -1] or abs(point.slopes[-1]) or 1.0
        self._wide.array[:] = 0
        self._wide.array[:columns] = -np.linalg.solve(matrix, point.slopes)
        step: Array = self._wide.add_up()[:columns] / self._wide.ranks
        return step

    def _at(self, weights: Array, decisions: Array, width: float) -> _Point:
        """Visit all rows."""
        self.passes += 1
        bent = self._bend(decisions, width)
        of_alphas = self._product(bent.alphas)
        slopes = self._penalised * weights - of_alphas
        free = slopes * self._penalised
        left = float(free @ free) / 2
        if self._problem.intercept:  # what _look() costs, which makes the alphas sum to 0
            left += abs(float(slopes[-1])) * (1 + abs(float(weights[-1])))
        losses, duals, penalty, of_dual, left, *_ = self._few.add_few(
            float((self._rows.costs * self._losses(decisions)).sum()),
            float(self._duals(bent.alphas).sum()),
            self._part((self._penalised * weights) @ weights / 2),
            self._part((self._penalised * of_alphas) @ of_alphas / 2),
            self._part(left),
        )
        return _Point(weights, decisions, bent, slopes, penalty + losses, duals - of_dual, left)

    def _part(self, number: Any) -> float:
        """Return this rank's part of a number that all ranks have.

        The sum of the parts has the same bits on all ranks, even if their processors round the
        number differently. So all ranks come to the same decisions.
        """
        return float(number) / self._few.ranks

    def _product(self, alphas: Array) -> Array:
        """Return the sum of alpha x over the rows of all ranks."""
        columns = len(self._penalised)
        self._wide.array[:] = 0
        self._wide.array[:columns] = self._rows.X.T @ alphas
        return np.array(self._wide.add_up()[:columns])

    def _look(self, primal: float) -> None:
        """Measure the gap of the weights and alphas."""
        alphas = self.alphas
        if self._problem.intercept:  # the dual demands that they sum to 0
            positive = float(alphas[alphas > 0].sum())
            negative = float(-alphas[alphas < 0].sum())
            positive, negative, *_ = self._few.add_few(positive, negative)
            kept = min(positive, negative)
            if positive > kept:
                alphas = np.where(alphas > 0, alphas * (kept / positive), alphas)
            elif negative > kept:
                alphas = np.where(alphas < 0, alphas * (kept / negative), alphas)
            self.alphas = alphas
        of_alphas = self._penalised * self._product(alphas)
        duals, of_dual, *_ = self._few.add_few(
            float(self._duals(alphas).sum()), self._part(of_alphas @ of_alphas / 2)
        )
        dual = duals - of_dual
        self.looks.append(Look(self.passes, primal, dual, time.time(), primal * self._rounding))
        self._watch(self.looks[-1])

    # The losses

    def _bend(self, decisions: Array, width: float) -> _Bent:
        _, targets, costs = self._rows
        loss, epsilon = self._problem.loss, self._problem.epsilon
        if loss == "log_loss":
            margins = targets * decisions
            share = expit(-margins)
            return _Bent(costs * targets * share, costs * share * (1 - share))
        if loss == "squared_error":
            errors = targets - decisions
            return _Bent(costs * errors, costs)
        if loss == "squared_hinge":
            beyond = np.maximum(0, 1 - targets * decisions)
            return _Bent(2 * costs * targets * beyond, 2 * costs * (beyond > 0))
        if loss == "squared_epsilon_insensitive":
            errors = targets - decisions
            beyond = np.maximum(0, np.abs(errors) - epsilon)
            return _Bent(2 * costs * np.sign(errors) * beyond, 2 * costs * (beyond > 0))
        steep = costs / width
        around = decisions - self.alphas / np.where(steep > 0, steep, 1)
        if loss == "hinge":
            short = 1 - targets * around
            move = targets * np.clip(short, 0, width)
            is_bent = (short > 0) & (short < width)
        else:
            errors = targets - around
            short = np.abs(errors) - epsilon
            move = np.sign(errors) * np.clip(short, 0, width)
            is_bent = (short > 0) & (short < width)
        return _Bent(steep * move, np.where(is_bent, steep, 0.0))

    def _losses(self, decisions: Array) -> Array:
        """Return each row's loss."""
        targets = self._rows.targets
        loss, epsilon = self._problem.loss, self._problem.epsilon
        if loss == "log_loss":
            return np.asarray(np.logaddexp(0, -targets * decisions))
        if loss == "squared_error":
            return np.asarray((targets - decisions) ** 2 / 2)
        if loss in ("hinge", "squared_hinge"):
            beyond = np.maximum(0, 1 - targets * decisions)
        else:
            beyond = np.maximum(0, np.abs(targets - decisions) - epsilon)
        return np.asarray(beyond**2 if loss.startswith("squared") else beyond)

    def _duals(self, alphas: Array) -> Array:
        """Return each row's part of the dual objective (dual_at() in learn/dual_step.hpp)."""
        _, targets, costs = self._rows
        loss = self._problem.loss
        linear = alphas * targets
        if loss == "log_loss":
            share = np.clip(linear / np.where(costs > 0, costs, 1), 0, 1)
            return np.asarray(-costs * (xlogy(share, share) + xlogy(1 - share, 1 - share)))
        if loss.endswith("epsilon_insensitive"):
            linear = linear - self._problem.epsilon * np.abs(alphas)
        if loss.startswith("squared"):
            curvature = 2 if loss == "squared_error" else 4
            linear = linear - alphas**2 / (curvature * np.where(costs > 0, costs, 1))
        return np.asarray(linear)


def _flattest(slope: Callable[[float], float]) -> float:
    """Return the length from 0 to 1 where a rising slope is about 0; 0 if it is so at the start.

    By false position, with half the weight for an end that stays (the Illinois method).
    """
    at_start = slope(0.0)
    if not (at_start < 0 and np.isfinite(at_start)):
        return 0.0
    at_end = slope(1.0)
    if at_end <= _FLAT * -at_start:
        return 1.0
    low, high, at_low, at_high = 0.0, 1.0, at_start, at_end
    for _ in range(_MOST_TRIALS):
        length = low - at_low * (high - low) / (at_high - at_low)
        found = slope(length)
        if abs(found) <= _FLAT * -at_start:
            return length
        if found < 0:
            low, at_low, at_high = length, found, at_high / 2
        else:
            high, at_high, at_low = length, found, at_low / 2
    return low
