"""Solving a linear model with an L2 penalty, to a known gap.

Small problems with a smooth loss are solved by Newton's method (newton.py). Others begin in the
dual (learn/dual_ascent.hpp), and Newton's method goes on where that is slow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from threadpoolctl import threadpool_limits

from malt._core_import import DualAscentFloat32, DualAscentFloat64
from malt._job import job as jobs
from malt._job import joining
from malt._job.job import Job
from malt._linear import equations, second_order
from malt._linear.dual_input import Output, Start, part_of
from malt._linear.forecast import Forecast, is_rounding, may_end_within
from malt._linear.losses import KINKED, Losses
from malt._linear.newton_products import Rows as Products
from malt._linear.newton_products import column_means
from malt._linear.problems import Look, Problem, Solution, Stopping
from malt._linear.rank_sums import RankLostError, Sums

Array = npt.NDArray[Any]
# A run of an ascent. It yields the ascent where one rank alone has begun a sweep.
_Run = Generator[Any, None, "Solution"]

# Exchanges of several ranks in a sweep over all rows; more gain nothing. Short sweeps have fewer,
# by their rows. With fewer, the ranks' steps fit together less well. But an exchange costs a rank
# about as much as steps over twice as many values as there are features.
_EXCHANGES = 32
_LEAST_EXCHANGES = 4
_COST_OF_EXCHANGE = 2
_FEW = 7  # numbers that are added up at once; as many as scales() has
# The rounding of changes adds up in the weights. They are computed anew after so many passes once
# the gap is below this multiple of the objective's rounding.
_DRIFT = 1e4
_SETTLE_EVERY = 8.0
_MOST_BETWEEN_LOOKS = 16.0  # passes
_LEAST_BETWEEN_LOOKS = 0.5
# After so many passes a problem is left to Newton's method if the ascent would need so many more: a
# few if Newton's equations are formed.
_PATIENCE = 32.0
_FEW_MORE, _MANY_MORE = 30.0, 100.0
_SWEEPS_AT_ONCE = 8
_MOST_COPIED = 1 << 29  # bytes of float64, of a sparse matrix of float32
# Newton's method comes first if so many operations may do. A smooth loss needs so many steps of it,
# which cost more than passes if there are more columns.
_NEWTON_STEPS = {"squared_error": 1.0}
_SMOOTH_STEPS = 10.0
_FEW_COLUMNS = 10
_MOST_OPERATIONS = 4e8
_OPERATIONS_A_VALUE = 600
# Ranks whose targets differ by more than this share of all targets' variance have unlike rows.
_UNLIKE = 0.05
_KAPPA_OF_UNLIKE = 10.0
_CACHE = 1 << 21  # bytes, of a core's own
# An objective below this many eps (its square, for squares) of that of no weights is rounding.
_FLOOR = 16.0


def solve(
    outputs: Sequence[Callable[[], Output]],
    problem: Problem,
    stopping: Stopping,
    *,
    seed: int,
    alone: bool = False,
    keeps_alphas: bool = False,
) -> list[Solution]:
    """Solve a problem for each output, over the rows of all ranks of this job. Collective.

    `alone`: this rank solves them by itself, over its own rows.
    """
    company = joining.company()
    job = None if alone else company
    made = _Made(job, is_alone=company is None)
    if job is None and _fit_together(outputs):
        ascents = [_Ascent(made, output(), problem, seed, len(outputs)) for output in outputs]
        return _finish_all([ascent.run(stopping, keeps_alphas) for ascent in ascents])
    return [
        _solve_one(made, output(), problem, stopping, seed + k, keeps_alphas)
        for k, output in enumerate(outputs)
    ]


class _Made:
    """The outputs' shared state."""

    def __init__(self, job: Job | None, *, is_alone: bool) -> None:
        self.job, self.is_alone = job, is_alone
        self._products: Products | None = None

    def products(self, X: Any, *, intercept: bool) -> Products:
        """Return these rows as Newton's method reads them. Collective at first."""
        if self._products is None:
            self._products = Products(X, column_means(X, self.job) if intercept else None)
        return self._products


def _fit_together(outputs: Sequence[Callable[[], Output]]) -> bool:
    """Whether it is faster to solve the outputs' problems in one pass over the rows.

    It is where the rows do not fit a core's cache, and the weights of all outputs do.
    """
    if len(outputs) == 1:
        return False
    X = outputs[0]().rows.matrix
    weights = len(outputs) * X.shape[1] * X.dtype.itemsize
    return bool(weights <= _CACHE / 2 and X.size * X.dtype.itemsize > _CACHE)


def _solve_one(
    made: _Made,
    output: Output,
    problem: Problem,
    stopping: Stopping,
    seed: int,
    keeps_alphas: bool,
) -> Solution:
    ascent = _Ascent(made, output, problem, seed)
    try:
        return _finish_all([ascent.run(stopping, keeps_alphas)])[0]
    finally:
        ascent.close()


def _finish_all(runs: list[_Run]) -> list[Solution]:
    """Go on with all runs until each is finished, with a sweep for each between its steps."""
    solutions: dict[int, Solution] = {}
    while len(solutions) < len(runs):
        ready = []
        for k, run in enumerate(runs):
            if k in solutions:
                continue
            try:
                ready.append(next(run))
            except StopIteration as end:
                solutions[k] = end.value
        if ready:
            ready[0].sweep_together(ready)
    return [solutions[k] for k in range(len(runs))]


class _Best(NamedTuple):
    """The least objective that was measured, the greatest of the dual, and the former's weights."""

    primal: float
    dual: float
    weights: Array  # and the intercept


_NONE_YET = _Best(np.inf, -np.inf, np.empty(0))


class _Ascent:
    """One rank's part of an ascent."""

    def __init__(
        self,
        made: _Made,
        output: Output,
        problem: Problem,
        seed: int,
        together: int = 1,
    ) -> None:
        self._made = made
        job = made.job
        rows, start, self._watch = output
        self._rows = rows
        self._few = few = Sums(job, _FEW, np.float64)
        self._visited, self._all_rows, self._all_values = 0.0, 1.0, 0.0
        self._primal = np.inf  # the objective, as far as it is known
        self._best = _NONE_YET
        self._is_alone = job is None and together == 1
        self._forecast = Forecast()
        rank, ranks = (0, 1) if rows.dealt is None else (jobs.rank(), few.ranks)
        self._part = part_of(len(rows.targets), rank, ranks)
        self._problem = problem
        self._rounding = float(np.finfo(rows.targets.dtype).eps)
        kappa, intercept = self._agree(start)
        kind: Any = DualAscentFloat32 if rows.targets.dtype == np.float32 else DualAscentFloat64
        self._ascent = kind(
            rows.examples,
            rows.targets,
            rows.weights,
            loss=problem.loss,
            epsilon=problem.epsilon,
            c=problem.c,
            intercept=problem.intercept,
            ranks=few.ranks,
            seed=seed,
            least_kappa=kappa,
            together=together,
            dealt=None if rows.dealt is None else rows.dealt.rows,
            lists=None if rows.dealt is None else rows.dealt.lists,
            rank=rank,
            alphas=None if start is None else start.alphas,
            start_intercept=intercept,
        )
        self._changes = Sums(job, rows.examples.features + 2, rows.targets.dtype)
        self._parts = Sums(job, self._ascent.contribution_length, np.float64)

    def close(self) -> None:
        for sums in (self._few, self._changes, self._parts):
            sums.close()

    def run(self, stopping: Stopping, keeps_alphas: bool) -> _Run:
        stopping = stopping._replace(least=self._least)
        if self._few.ranks > 1:
            self._insist(self._settle)
        looks: list[Look] = []
        if self._begins_with_newton:
            return self._finish(stopping, looks, keeps_alphas)
        settled_at = 0.0
        while True:
            yield from self._sweep(stopping)
            passes = self._visited / self._all_rows
            drifts = self._rounding * self._primal * _DRIFT > self._forecast.gap
            if drifts and passes - settled_at >= _SETTLE_EVERY:
                self._insist(self._settle)
                settled_at = passes
            since = passes - (looks[-1].passes if looks else 0.0)
            is_due = since >= _MOST_BETWEEN_LOOKS or passes >= stopping.passes
            is_close = self._forecast.gap <= stopping.tol * self._primal
            if not is_due and not (is_close and since >= _LEAST_BETWEEN_LOOKS):
                continue
            looks.append(self._look(passes))
            self._watch(looks[-1])
            has_converged = stopping.ends(looks[-1])
            if has_converged or passes >= stopping.passes:
                break
            stalls = is_rounding(looks, self._rows.targets.dtype)
            if self._may_use_newton and (stalls or self._is_slow(looks, stopping)):
                return self._finish(stopping, looks, keeps_alphas)
            if stalls:
                break
        weights = self._best.weights.astype(self._rows.targets.dtype)
        return Solution(weights, self._alphas() if keeps_alphas else None, looks, has_converged)

    def _sweep(self, stopping: Stopping) -> Generator[Any, None, None]:
        """Sweep once over all rows, or a few times."""
        if self._few.ranks > 1:
            self._insist(self._sweep_with_others)
        elif self._is_alone:
            left = stopping.passes - self._visited / self._all_rows
            enough = stopping.tol * self._primal / self._forecast.correction
            sweeps = max(1, min(_SWEEPS_AT_ONCE, math.ceil(left)))
            visited, gap = self._ascent.ascend(sweeps, enough)
            self._visited += visited
            self._forecast.take(gap)
        else:
            self._visited += self._ascent.begin_sweep(self._forecast.falls)
            yield self._ascent
            self._forecast.add(self._ascent.estimate)

    def _look(self, passes: float) -> Look:
        """Measure the gap; that of the best weights and alphas so far counts."""
        primal, dual = self._insist(self._measure)
        self._forecast.learn(primal - dual)
        best = self._best
        if primal <= best.primal:
            weights = np.append(self._ascent.weights, self._ascent.intercept)
            best = best._replace(primal=primal, weights=weights)
        self._best = best._replace(dual=max(dual, best.dual))
        self._primal, dual = self._best[:2]
        return Look(passes, self._primal, dual, time.time(), self._primal * self._rounding)

    def _alphas(self) -> Array:
        alphas = np.empty(self._part.stop - self._part.start, self._rows.targets.dtype)
        self._ascent.copy_alphas(alphas)
        return alphas

    # Newton's method

    @property
    def _columns(self) -> int:
        return int(self._rows.examples.features) + self._problem.intercept

    @property
    def _is_direct(self) -> bool:
        return equations.is_direct(self._columns, int(self._all_rows), self._few.ranks)

    @property
    def _may_use_newton(self) -> bool:
        """Whether a method of the second order serves, and a copy of the rows is small enough."""
        if self._problem.loss in KINKED and not self._is_direct:
            return False
        X = self._rows.matrix
        is_read = not sparse.issparse(X) or X.dtype == np.float64
        return is_read or 8 * self._all_values / self._few.ranks <= _MOST_COPIED

    @property
    def _begins_with_newton(self) -> bool:
        """Whether Newton's method is cheap from the beginning."""
        if self._problem.loss in KINKED or not (self._is_direct and self._may_use_newton):
            return False
        steps = _NEWTON_STEPS.get(self._problem.loss, _SMOOTH_STEPS)
        rows, columns, values = self._all_rows, float(self._columns), self._all_values
        if steps > 1 and _FEW_COLUMNS < columns <= rows:
            return False  # such rows are often well conditioned: a few passes do
        if rows < columns and self._few.ranks == 1:
            operations = values * rows + steps * rows**3 / 3
        else:
            operations = steps * (values**2 / rows + columns**3 / 3)
        return operations <= max(_MOST_OPERATIONS, _OPERATIONS_A_VALUE * values)

    def _is_slow(self, looks: list[Look], stopping: Stopping) -> bool:
        """Whether the ascent should end here, as it would take too long."""
        more = _FEW_MORE if self._is_direct else _MANY_MORE
        return looks[-1].passes >= _PATIENCE and not may_end_within(more, looks, stopping)

    def _finish(
        self,
        stopping: Stopping,
        looks: list[Look],
        keeps_alphas: bool,
    ) -> Solution:
        """Go on by a method of the second order."""
        part = self._part
        X = self._rows.matrix if self._rows.dealt is None else self._rows.matrix[part]
        targets = self._rows.targets[part].astype(np.float64)
        costs = np.full(len(targets), self._problem.c)
        if self._rows.weights is not None:
            costs *= self._rows.weights[part]
        losses = Losses(self._problem, targets, costs)
        with nullcontext() if self._made.is_alone else threadpool_limits(1, "blas"):
            rows = self._made.products(X, intercept=self._problem.intercept)
            weights = self._best.weights
            if not looks:
                weights = np.append(self._ascent.weights, self._ascent.intercept)
            start = second_order.Start(weights, self._alphas().astype(np.float64))
            task = second_order.Task(X, rows, losses, stopping)
            found = second_order.solve(task, self._made.job, start, looks, self._watch)
        return found if keeps_alphas else found._replace(alphas=None)

    def _agree(self, start: Start | None) -> tuple[float, float]:
        """Return kappa for the ranks' rows, and the intercept to start from."""
        while True:
            try:
                return self._try_to_agree(start)
            except RankLostError:
                continue

    def _try_to_agree(self, start: Start | None) -> tuple[float, float]:
        is_dealt = self._rows.dealt is not None
        targets = self._rows.targets[self._part]
        rows = len(targets)
        total = float(targets.sum(dtype=np.float64))
        square = float(np.einsum("i,i->", targets, targets, dtype=np.float64))
        begin = 0.0 if start is None else start.intercept
        of_rank = total * total / rows if rows else 0.0
        size = float(np.abs(targets).sum(dtype=np.float64))
        values = self._rows.examples.values
        if is_dealt:
            values /= self._few.ranks
        count, total, square, of_ranks, begin, size, self._all_values = self._few.add_few(
            rows, total, square, of_rank, begin, size, values
        )
        at_zero = {"log_loss": math.log(2) * count, "squared_error": square / 2}
        linear = {"hinge": count, "squared_hinge": count, "epsilon_insensitive": size}
        self._primal = self._problem.c * {**at_zero, **linear}.get(self._problem.loss, square)
        # Decisions are known to some eps of the targets.
        is_square = self._problem.loss.startswith("squared")
        eps = _FLOOR * float(np.finfo(np.float64).eps)
        self._least = self._primal * (eps**2 if is_square else eps)
        self._all_rows = max(count, 1.0)
        mean_square = total * total / self._all_rows
        is_unlike = of_ranks - mean_square > _UNLIKE * (square - mean_square)
        is_unlike = is_unlike and self._few.ranks > 1 and not is_dealt
        return _KAPPA_OF_UNLIKE if is_unlike else 0.0, begin / self._few.ranks

    def _insist(self, act: Callable[[], Any]) -> Any:
        """Act; if a rank has died meanwhile, settle with those that are left, and act again."""
        is_settled = True
        while True:
            try:
                if not is_settled:
                    self._settle()
                return act()
            except RankLostError as lost:
                self._ascent.set_ranks(lost.ranks)
                self._few.ranks = self._changes.ranks = self._parts.ranks = lost.ranks
                self._best = _NONE_YET
                is_settled = False

    def _settle(self) -> None:
        """Compute the weights anew, from the alphas of all ranks."""
        scales = self._few.add_few(*self._ascent.scales())
        self._all_rows = max(scales[0], 1.0)
        self._ascent.contribute(scales, self._parts.array)
        self._ascent.settle(self._parts.add_up())

    def _sweep_with_others(self) -> None:
        """Sweep over this rank's part, with exchanges."""
        own = self._ascent.begin_sweep(self._forecast.falls)
        everybody, *_ = self._few.add_few(own)
        pieces = self._pieces(everybody / self._all_rows)
        for piece in range(pieces):
            self._ascent.sweep(piece, pieces)
            self._ascent.take_change(self._changes.array)
            self._ascent.add_changes(self._changes.add_up())
        self._visited += everybody
        estimate, *_ = self._few.add_few(self._ascent.estimate)
        self._forecast.add(estimate)

    def _pieces(self, share: float) -> int:
        """Return the number of exchanges in a sweep over this share of all rows."""
        of_rank = self._all_values * share / self._few.ranks
        affordable = of_rank / (_COST_OF_EXCHANGE * self._rows.examples.features)
        return int(max(_LEAST_EXCHANGES, min(_EXCHANGES * share, affordable)))

    def _measure(self) -> tuple[float, float]:
        scales = self._few.add_few(*self._ascent.scales())
        own = self._ascent.losses(scales, self._parts.array)
        primal, dual, *_ = self._few.add_few(*own)
        primal, dual = self._ascent.gap(primal, dual, self._parts.add_up())
        # All ranks take the means, of the same bits: their processors may round differently.
        primal, dual, *_ = self._few.add_few(primal, dual)
        return primal / self._few.ranks, dual / self._few.ranks
