"""Solving a linear model with an L2 penalty in the dual (learn/dual_ascent.hpp), to a known gap."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from malt._core_import import DualAscentFloat32, DualAscentFloat64, dealt_list_length
from malt._job import job as jobs
from malt._job import joining
from malt._job.job import Job
from malt._linear import newton
from malt._linear.problem import Look, Problem, Solution, Stopping
from malt._linear.sums import RankLostError, Sums
from malt._pool import forked

Array = npt.NDArray[Any]
# A run of an ascent. It yields the ascent where one rank alone has begun a sweep.
_Run = Generator[Any, None, "Solution"]

# Exchanges of several ranks in a sweep over all rows; more gain nothing. Short sweeps have fewer,
# by their rows. With fewer, the ranks' steps fit together less well. But an exchange costs a rank
# about as much as steps over twice as many values as there are features.
_EXCHANGES = 32
_LEAST_EXCHANGES = 4
_COST_OF_EXCHANGE = 2
_FEW = 7
# The rounding of changes adds up in the weights. They are computed anew after so many passes once
# the gap is below this multiple of the objective's rounding.
_DRIFT = 1e4
_SETTLE_EVERY = 8.0
_MOST_BETWEEN_LOOKS = 16.0  # passes
_LEAST_BETWEEN_LOOKS = 0.5
_MOST_CORRECTED = 4.0
# After so many passes a problem with few features is left to Newton's method.
_PATIENCE = 40.0
_MOST_FEATURES = 1000
_MOST_COPIED = 1 << 29  # bytes of float64
# Ranks whose targets differ by more than this share of all targets' variance have unlike rows.
_UNLIKE = 0.05
_KAPPA_OF_UNLIKE = 10.0
_CACHE = 1 << 21  # bytes, of a core's own
# A gap below this share of the objective that has not fallen since half of the passes is due to
# rounding.
_ROUNDING = {"float32": 1e-4, "float64": 1e-11}


class Dealt(NamedTuple):
    """Memory that the ranks of one host share, to deal the rows out anew in each sweep."""

    rows: Array
    lists: Array

    @staticmethod
    def of(rows: int, ranks: int, dtype: Any) -> Dealt:
        length = ranks * dealt_list_length(rows, ranks)
        return Dealt(
            forked.shared_zeros((4 * rows,), dtype), forked.shared_zeros((length,), np.uint32)
        )


class Rows(NamedTuple):
    """This rank's rows; or all rows, if the ranks share them, and some are dealt to each."""

    examples: Any
    targets: Array
    weights: Array | None = None
    dealt: Dealt | None = None
    matrix: Any = None  # of the examples


class Start(NamedTuple):
    """The beginning of an ascent: an alpha for each row, and the intercept."""

    alphas: Array
    intercept: float


class Output(NamedTuple):
    """One of a model's outputs: a problem of its own over the same examples."""

    rows: Rows
    start: Start | None = None
    watch: Callable[[Look], object] = lambda _: None


def part_of(rows: int, rank: int, ranks: int) -> slice:
    """Return the rows of which a rank has the alphas, where ranks share them."""
    return slice(rows * rank // ranks, rows * (rank + 1) // ranks)


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
    job = None if alone else joining.company()
    if job is None and _fit_together(outputs):
        ascents = [_Ascent(None, output(), problem, seed, len(outputs)) for output in outputs]
        return _finish_all([ascent.run(stopping, keeps_alphas) for ascent in ascents])
    return [
        _solve_one(job, output(), problem, stopping, seed + k, keeps_alphas)
        for k, output in enumerate(outputs)
    ]


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
    job: Job | None,
    output: Output,
    problem: Problem,
    stopping: Stopping,
    seed: int,
    keeps_alphas: bool,
) -> Solution:
    ascent = _Ascent(job, output, problem, seed)
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


class _Ascent:
    """One rank's part of an ascent."""

    def __init__(
        self,
        job: Job | None,
        output: Output,
        problem: Problem,
        seed: int,
        together: int = 1,
    ) -> None:
        self._job = job
        rows, start, self._watch = output
        self._rows = rows
        self._few = few = Sums(job, _FEW, np.float64)
        self._visited, self._all_rows, self._all_values = 0.0, 1.0, 0.0
        self._primal = np.inf  # the objective, as far as it is known
        self._forecast = _Forecast()
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
        self._parts = Sums(job, self._ascent.contribution_length, rows.targets.dtype)

    def close(self) -> None:
        for sums in (self._few, self._changes, self._parts):
            sums.close()

    def run(self, stopping: Stopping, keeps_alphas: bool) -> _Run:
        if self._few.ranks > 1:
            self._insist(self._settle)
        looks: list[Look] = []
        settled_at = 0.0
        while True:
            if self._few.ranks == 1:
                self._visited += self._ascent.begin_sweep()
                yield self._ascent
                self._forecast.add(self._ascent.estimate)
            else:
                self._insist(self._sweep)
            passes = self._visited / self._all_rows
            drifts = self._rounding * self._primal * _DRIFT > self._forecast.gap
            if drifts and passes - settled_at >= _SETTLE_EVERY:
                self._insist(self._settle)
                settled_at = passes
            since = passes - (looks[-1].passes if looks else 0.0)
            is_due = since >= _MOST_BETWEEN_LOOKS or passes >= stopping.passes
            is_due = is_due or (passes >= _PATIENCE and self._may_use_newton)
            is_close = self._forecast.gap <= stopping.tol * self._primal
            if not is_due and not (is_close and since >= _LEAST_BETWEEN_LOOKS):
                continue
            self._primal, dual = self._insist(self._measure)
            rounding = self._primal * self._rounding
            looks.append(Look(passes, self._primal, dual, time.time(), rounding))
            self._watch(looks[-1])
            self._forecast.learn(looks[-1].gap)
            has_converged = looks[-1].gap <= stopping.tol * self._primal
            if has_converged or passes >= stopping.passes or self._is_rounding(looks):
                break
            if passes >= _PATIENCE and self._may_use_newton:
                return self._finish(stopping, looks, keeps_alphas)
        weights = np.append(self._ascent.weights, self._ascent.intercept)
        alphas = self._alphas() if keeps_alphas else None
        return Solution(weights.astype(self._rows.targets.dtype), alphas, looks, has_converged)

    def _alphas(self) -> Array:
        alphas = np.empty(self._part.stop - self._part.start, self._rows.targets.dtype)
        self._ascent.copy_alphas(alphas)
        return alphas

    @property
    def _may_use_newton(self) -> bool:
        """Whether the problem in the weights is small, and so is a copy of the rows."""
        features = self._rows.examples.features
        is_small = 0 < features <= min(_MOST_FEATURES, self._all_rows)
        return is_small and 8 * self._all_values / self._few.ranks <= _MOST_COPIED

    def _finish(
        self,
        stopping: Stopping,
        looks: list[Look],
        keeps_alphas: bool,
    ) -> Solution:
        """Go on by Newton's method."""
        X, part, weights = self._rows.matrix, self._part, self._rows.weights
        rows = newton.Rows.of(
            X[part],
            self._rows.targets[part],
            None if weights is None else weights[part],
            self._problem,
        )
        begin = np.asarray(self._ascent.weights, np.float64)
        if self._problem.intercept:
            begin = np.append(begin, self._ascent.intercept)
        wide = Sums(self._job, len(begin) ** 2, np.float64)
        few = Sums(self._job, newton.FEW, np.float64)
        try:
            with threadpool_limits(None if joining.company() is None else 1, "blas"):
                rest = newton.Newton(
                    rows,
                    self._problem,
                    stopping,
                    (few, wide),
                    (begin, self._alphas().astype(np.float64)),
                    looks[-1].passes,
                    self._rounding,
                    self._watch,
                )
                rest.run()
        finally:
            wide.close()
            few.close()
        found = rest.weights if self._problem.intercept else np.append(rest.weights, 0.0)
        return Solution(
            found.astype(self._rows.targets.dtype),
            rest.alphas if keeps_alphas else None,
            looks + rest.looks,
            rest.has_converged,
        )

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
                is_settled = False

    def _settle(self) -> None:
        """Compute the weights anew, from the alphas of all ranks."""
        scales = self._few.add_few(*self._ascent.scales())[:6]
        self._all_rows = max(scales[0], 1.0)
        self._ascent.contribute(scales, self._parts.array)
        self._ascent.settle(self._parts.add_up())

    def _sweep(self) -> None:
        """Sweep over this rank's part, with exchanges."""
        own = self._ascent.begin_sweep()
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
        scales = self._few.add_few(*self._ascent.scales())[:6]
        own = self._ascent.losses(scales, self._parts.array)
        primal, dual, *_ = self._few.add_few(*own)
        primal, dual = self._ascent.gap(primal, dual, self._parts.add_up())
        # All ranks take the means, of the same bits: their processors may round differently.
        primal, dual, *_ = self._few.add_few(primal, dual)
        return primal / self._few.ranks, dual / self._few.ranks

    def _is_rounding(self, looks: list[Look]) -> bool:
        now = looks[-1]
        limit = _ROUNDING[self._rows.targets.dtype.name]
        before = [look for look in looks if look.passes <= now.passes / 2]
        return len(before) > 2 and now.gap <= limit * now.primal and now.gap >= 0.9 * before[-1].gap


class _Forecast:
    """A forecast of the gap after each sweep, from the ascent's estimates.

    An estimate is that of the middle of a sweep. By its end the gap has fallen by half of what it
    falls from the middle of one sweep to that of the next. A measured gap corrects this.
    """

    def __init__(self) -> None:
        self.gap = np.inf
        self._before = np.inf
        self._correction = 1.0

    def add(self, estimate: float) -> None:
        is_first = math.isinf(self._before)
        falls = 1.0 if is_first or estimate >= self._before else estimate / self._before
        self.gap = self._correction * estimate * math.sqrt(falls)
        self._before = estimate

    def learn(self, gap: float) -> None:
        if self.gap > 0 and math.isfinite(self.gap):
            self._correction *= min(max(gap / self.gap, 1 / _MOST_CORRECTED), _MOST_CORRECTED)
