"""Solving a multinomial problem over rows in memory by Newton's method.

A step is found by conjugate gradients, whose products read the rows twice; they are preconditioned
by each class's own block of the second derivatives.

The gap without intercepts: the objective P is strongly convex with modulus 1 because of the penalty
|w|^2 / 2, so P - optimum <= |slope of P|^2 / 2 (Nesterov 2004, section 2.1.3).

The gap with intercepts: P - D. The dual D takes shares p that add up, over the rows and with their
costs, to the rows of each class: D = sum of costs * entropy(p) - |A' costs (own - p)|^2 / 2, with
`own` 1 for a row's own class. The shares at a point do so once the intercepts are at their best.
Others are mixed with shares that are alike for all rows, as few of these as make up for what is
missing. Once the penalised weights are at their best, the intercepts alone are moved to theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import xlog1py, xlogy
from threadpoolctl import threadpool_limits

from malt._job import joining
from malt._linear.equations import MOST_DIRECT, added, conjugate_gradients, solver_of
from malt._linear.newton import flattest
from malt._linear.newton_products import Rows, column_means, decisions
from malt._linear.problems import Look, Solution, Stopping
from malt._linear.rank_sums import RankLostError, Sums

Array = npt.NDArray[Any]

FEW = 3
_FORCING = 0.2  # of the slopes: what conjugate gradients may leave of them
_INNER = 0.5  # of the gap that is asked for
_MOST_COLUMNS = 500  # of blocks
_MOST_MOVES = 50  # of the intercepts alone, by 1 at most
_LONG = 12  # steps of conjugate gradients, after which the blocks are computed anew
_MOST_IN_VAIN = 3  # steps that change the objective by its rounding only
_EPS = float(np.finfo(np.float64).eps)


class Classes(NamedTuple):
    """Each row's class, and the cost of its loss."""

    numbers: Array
    costs: Array


class _Point(NamedTuple):
    weights: Array  # (columns, classes)
    decisions: Array  # (rows, classes), of this rank
    shares: Array  # the probabilities of the classes
    slopes: Array
    primal: float
    gap: float
    left: float  # the gap, if the intercepts are at their best


class _Sums(NamedTuple):
    """Sums of the rows with their costs, over all ranks."""

    of_classes: Array  # (columns, classes): of each class's own rows
    of_all: Array  # (columns,)


def solve(
    X: Any,
    classes: Classes,
    stopping: Stopping,
    start: Array,
    watch: Callable[[Look], object],
    *,
    intercept: bool,
) -> Solution:
    """Solve the problem over the rows of all ranks of this job. Collective.

    `start`: (features + 1, classes). The weights are of X's type if that is precise enough, or else
    of float64.
    """
    job = joining.company()
    rows = Rows(X, column_means(X, job) if intercept else None)
    few = Sums(job, FEW, np.float64)
    columns, outputs = rows.columns, start.shape[1]
    length = max(columns, outputs) * outputs
    if columns <= _MOST_COLUMNS:
        length = max(length, columns**2)
    wide = Sums(job, length, np.float64)
    sums = few, wide
    try:
        with nullcontext() if job is None else threadpool_limits(1, "blas"):
            weights = rows.moved(start)
            passes = 0
            if few.ranks == 1 and 2 * rows.count <= columns and rows.count <= MOST_DIRECT:
                narrow, back = rows.narrowed()
                begin = np.zeros((narrow.columns, outputs))
                search = _Search(narrow, classes, stopping, sums, watch, 0, intercept=intercept)
                weights = back(search.run(begin).weights)
                passes = search.passes
            search = _Search(rows, classes, stopping, sums, watch, passes, intercept=intercept)
            return _finish(X, rows, classes, stopping, few, search, weights)
    finally:
        few.close()
        wide.close()


def _finish(
    X: Any,
    rows: Rows,
    classes: Classes,
    stopping: Stopping,
    few: Sums,
    search: _Search,
    weights: Array,
) -> Solution:
    while True:
        try:
            point = search.run(weights)
            weights = point.weights
            found, primal = _rounded(X, rows, classes, few, point, stopping)
        except RankLostError as lost:  # go on with the rows that are left
            search.set_ranks(lost.ranks)
            continue
        dual = point.primal - point.gap
        last = Look(search.passes, primal, dual, time.time(), primal * _EPS)
        return Solution(found, None, [*search.looks[:-1], last], stopping.ends(last))


def _rounded(
    X: Any, rows: Rows, classes: Classes, few: Sums, point: _Point, stopping: Stopping
) -> tuple[Array, float]:
    """Return the weights as fit() returns them, and the objective there."""
    exact = rows.moved_back(point.weights)
    for dtype in (X.dtype, np.dtype(np.float64)):
        weights = exact.astype(dtype)
        losses, *_ = _softmax(decisions(X, weights), classes)
        body = weights[:-1].astype(np.float64)
        primal, *_ = few.add_few(losses + float(np.vdot(body, body)) / 2 / few.ranks)
        if primal - point.primal + point.gap <= stopping.tol * primal:
            break
    return weights, primal


def _softmax(values: Array, classes: Classes) -> tuple[float, Array, Array]:
    """Return the sum of the losses, the shares, in place of the values, and those of all others.

    Others: than a row's own class. Their sum keeps its digits where the own share is nearly 1.
    """
    values -= values.max(1, keepdims=True)
    own = np.arange(len(values)), classes.numbers
    of_rows = -values[own]
    np.exp(values, out=values)
    of_own = values[own]
    values[own] = 0
    others = values.sum(1)
    values[own] = of_own
    of_rows += np.where(of_own == 1, np.log1p(others), np.log(of_own + others))
    totals = of_own + others
    values /= totals[:, np.newaxis]
    return float(classes.costs @ of_rows), values, others / totals


class _Search:
    """One rank's part of a search."""

    def __init__(
        self,
        rows: Rows,
        classes: Classes,
        stopping: Stopping,
        sums: tuple[Sums, Sums],
        watch: Callable[[Look], object],
        passes: int,
        *,
        intercept: bool,
    ) -> None:
        self._rows, self._classes, self._stopping = rows, classes, stopping
        self._few, self._wide = sums
        self._watch = watch
        self._intercept = intercept
        self._penalised = np.ones((rows.columns, 1))
        if intercept:
            self._penalised[-1] = 0
        self._precondition: Callable[[Array], Array] | None = None
        self._sums: _Sums | None = None
        self.passes = passes
        self.looks: list[Look] = []

    def set_ranks(self, ranks: int) -> None:
        self._few.ranks = self._wide.ranks = ranks
        self._sums = None

    def run(self, weights: Array) -> _Point:
        point = self._at(weights, self._rows.times(weights))
        self._precondition = None
        in_vain = 0
        while True:
            gap = point.gap
            dual = point.primal - gap
            rounding = point.primal * _EPS
            self.looks.append(Look(self.passes, point.primal, dual, time.time(), rounding))
            self._watch(self.looks[-1])
            is_over = self.passes >= self._stopping.passes or in_vain >= _MOST_IN_VAIN
            if gap <= self._stopping.tol * point.primal or is_over:
                return point
            further = self._step(point)
            if further is None:
                return point
            falls = point.primal - further.primal > _EPS * point.primal
            in_vain = 0 if falls or further.gap < gap / 2 else in_vain + 1
            if further.primal <= point.primal or further.gap < gap:
                point = further

    def _step(self, point: _Point) -> _Point | None:
        size = float(np.vdot(point.slopes, point.slopes))
        enough = max(2 * _INNER * self._stopping.tol * point.primal, _FORCING**2 * size)
        if self._precondition is None:
            self._precondition = self._blocks(point.shares)
        begin = self.passes
        step = conjugate_gradients(
            lambda vector: self._curved(point.shares, vector),
            self._precondition,
            -point.slopes,
            self._few.agree,
            enough,
            max(1, self._stopping.passes - self.passes - 1),
        )
        if self.passes - begin > _LONG:
            self._precondition = None
        return self._along(point, step)

    def _curved(self, shares: Array, vector: Array) -> Array:
        """Return the second derivatives times a vector."""
        self.passes += 1
        values = self._rows.times(vector)
        values *= shares
        values -= shares * values.sum(1, keepdims=True)
        values *= self._classes.costs[:, np.newaxis]
        return np.asarray(
            added(self._wide, self._rows.transposed(values)) + self._penalised * vector
        )

    @property
    def _has_blocks(self) -> bool:
        """Whether the blocks are worth their computation."""
        return bool(self._rows.columns <= _MOST_COLUMNS)

    def _blocks(self, shares: Array) -> Callable[[Array], Array]:
        """Return what divides by each class's block, or by the diagonal of many columns."""
        bends = self._classes.costs[:, np.newaxis] * shares * (1 - shares)
        columns = self._rows.columns
        if not self._has_blocks:
            of_classes = [added(self._wide, self._rows.squares(bend)) for bend in bends.T]
            diagonal = np.stack(of_classes, 1) + self._penalised
            diagonal[diagonal == 0] = 1
            return lambda vector: vector / diagonal
        factors = []
        for bend in bends.T:
            matrix = added(self._wide, self._rows.curvature(bend))
            matrix[np.diag_indices(columns)] += self._penalised[:, 0]
            if self._intercept:
                matrix[-1, -1] += _EPS * (matrix[-1, -1] or 1.0)
            factors.append(solver_of(matrix))

        def divide(vector: Array) -> Array:
            return np.stack([solve(one) for solve, one in zip(factors, vector.T, strict=True)], 1)

        return divide

    def _along(self, point: _Point, step: Array) -> _Point | None:
        """Go along a step to where it is flat; return None if it leads uphill from here."""
        along = self._rows.times(step)
        free = self._penalised * step
        rows = np.arange(len(along)), self._classes.numbers
        of_own = float(self._classes.costs @ along[rows])

        def slope(length: float) -> tuple[float, float]:
            _, shares, _ = _softmax(point.decisions + length * along, self._classes)
            means = (shares * along).sum(1)
            spread = (shares * along**2).sum(1) - means**2
            costs = self._classes.costs
            found, rises, *_ = self._few.add_few(
                float(costs @ means)
                - of_own
                + float(np.vdot(free, point.weights + length * step)) / self._few.ranks,
                float(costs @ spread) + float(np.vdot(free, step)) / self._few.ranks,
            )
            return found, rises

        begin = self._few.agree(float(np.vdot(point.slopes, step)))
        length = flattest(begin, slope)
        if length == 0:
            return None
        return self._at(point.weights + length * step, point.decisions + length * along)

    def _at(self, weights: Array, values: Array) -> _Point:
        """Visit all rows; where little is left, with the best intercepts for these weights."""
        point = self._visit(weights, values)
        for _ in range(_MOST_MOVES):
            enough = self._stopping.tol * point.primal
            is_over = point.gap <= enough or self.passes >= self._stopping.passes
            if not self._intercept or point.left > enough or is_over:
                break
            slopes = point.slopes[-1]
            weighed = self._classes.costs[:, np.newaxis] * point.shares
            curvature = added(self._wide, np.diag(weighed.sum(0)) - weighed.T @ point.shares)
            move = solver_of(curvature, careful=True)(slopes)
            move /= max(1.0, float(np.abs(move).max()))
            gain = self._few.agree(float(slopes @ move) / 2)
            if gain <= _EPS**2 * point.primal:  # the gap falls as the root of what is gained
                break
            weights = point.weights.copy()
            weights[-1] -= move
            point = self._visit(weights, point.decisions - move)
        return point

    def _visit(self, weights: Array, values: Array) -> _Point:
        self.passes += 1
        losses, shares, others = _softmax(values.copy(), self._classes)
        alphas = -shares
        alphas[self._own] = others
        alphas *= self._classes.costs[:, np.newaxis]
        body = self._penalised * weights
        slopes = body - added(self._wide, self._rows.transposed(alphas))
        free = self._penalised * slopes
        losses, penalty, left, *_ = self._few.add_few(
            losses,
            float(np.vdot(body, weights)) / 2 / self._few.ranks,
            float(np.vdot(free, free)) / 2 / self._few.ranks,
        )
        primal, gap = losses + penalty, left
        if self._intercept:
            gap = max(0.0, primal - self._dual(shares, body - slopes))
        return _Point(weights, values, shares, slopes, primal, gap, left)

    @property
    def _own(self) -> tuple[Array, Array]:
        return np.arange(len(self._classes.numbers)), self._classes.numbers

    def _dual(self, shares: Array, of_alphas: Array) -> float:
        """Return the dual, at shares that are mixed until each class has its part.

        `of_alphas`: A' costs (own - shares), over all ranks.
        """
        if self._sums is None:
            own = np.zeros_like(shares)
            own[self._own] = self._classes.costs
            of_classes = added(self._wide, self._rows.transposed(own)).copy()
            of_all = added(self._wide, self._rows.transposed(self._classes.costs[:, np.newaxis]))
            self._sums = _Sums(of_classes, of_all[:, 0].copy())
        wanted, total = self._sums.of_classes[-1], self._sums.of_all[-1]
        if not wanted.all():  # a class without weight has no part in the optimum
            shares = shares * (wanted > 0)
            shares /= np.maximum(shares.sum(1, keepdims=True), np.finfo(np.float64).tiny)
            alphas = -shares
            alphas[self._own] += 1
            alphas *= self._classes.costs[:, np.newaxis]
            of_alphas = added(self._wide, self._rows.transposed(alphas))
        missing = of_alphas[-1]
        short = float(np.max(-missing[wanted > 0] / wanted[wanted > 0]))
        mixed = min(max(short / (1 + short), 0.0), 1.0)
        alike = (mixed * wanted + (1 - mixed) * missing) / total  # times `mixed`
        np.maximum(alike, 0, out=alike)
        of_mixed = (1 - mixed) * of_alphas + mixed * self._sums.of_classes
        of_mixed -= np.outer(self._sums.of_all, alike)
        entropies = _entropies((1 - mixed) * shares + alike, self._own)
        body = self._penalised * of_mixed
        dual, *_ = self._few.add_few(
            float(self._classes.costs @ entropies)
            - float(np.vdot(body, body)) / 2 / self._few.ranks
        )
        return dual


def _entropies(shares: Array, own: tuple[Array, Array]) -> Array:
    """Return the entropy of each row's shares, with all digits where the own share is nearly 1."""
    of_own = shares[own]
    shares[own] = 0
    others = shares.sum(1)
    terms = xlogy(shares, shares).sum(1)
    return np.asarray(
        -terms - np.where(others < 0.5, xlog1py(of_own, -others), xlogy(of_own, of_own))
    )
