"""Solving a lasso or an elastic net (learn/coordinate_descent.hpp), to a known gap."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._core_import import CoordinateDescentFloat32, CoordinateDescentFloat64
from malt._job.job import Job
from malt._linear.newton_products import Rows
from malt._linear.problems import Look, Stopping
from malt._linear.rank_sums import RankLostError, Sums

Array = npt.NDArray[Any]

# A round ends when a sweep lets the objective fall by this share of what its first one did.
_SHARE = 0.01
_MOST_SWEEPS = 100
_MOST_EXCHANGES = 40  # of several ranks, in a round: one after each full sweep
_FEW = 5
# The rounding of changes adds up in the residual. It is computed anew every so many rounds once the
# gap is below this multiple of the objective's rounding.
_DRIFT = 1e4
_SETTLE_EVERY = 8
# A gap below this share of the objective that has not fallen in so many rounds is due to rounding.
_ROUNDING = {"float32": 1e-3, "float64": 1e-10}
_STALLED = 6
_FLOOR = 4  # times the rounding of what the objective is without weights: all of it is rounding
_TINY = 1e-300


class Penalty(NamedTuple):
    """alpha * (l1_ratio |w|_1 + (1 - l1_ratio) |w|^2 / 2), and what the model may have."""

    alpha: float
    l1_ratio: float
    intercept: bool
    positive: bool  # no weight may be below 0


class Descended(NamedTuple):
    """A solved problem: the same on all ranks."""

    weights: Array
    intercept: float
    looks: list[Look]
    has_converged: bool
    updates: int  # coordinate steps of all ranks


def solve(
    job: Job | None,
    columns: Any,
    targets: Array,
    penalty: Penalty,
    stopping: Stopping,
    *,
    dynamic: bool,
    seed: int,
    start: Array | None,
    roots: Array | None,
    watch: Callable[[Look], object],
) -> Descended:
    """Solve over the columns of X, which all ranks have; each takes steps on its own. Collective.

    `roots`: of the rows' weights, which add up to the number of rows; X and the targets have been
    multiplied by them.
    If a rank dies, the others divide its columns, whose weights begin again at 0.
    """
    descent = _Descent(job, columns, targets, penalty, dynamic, seed, roots, watch)
    try:
        while True:
            try:
                return descent.run(start, stopping)
            except RankLostError as lost:
                start = descent.divide(lost)
    finally:
        descent.close()


def measured(
    found: Descended,
    rows: Rows,
    targets: Array,
    costs: Array,
    penalty: Penalty,
    stopping: Stopping,
) -> Descended:
    """Return a solution with its best intercept and the gap of its weights, both in float64.

    `costs`: the rows' weights, which add up to their number.
    """
    weights = found.weights.astype(np.float64)
    left = targets - rows.times(weights)
    l1, l2 = penalty.alpha * penalty.l1_ratio, penalty.alpha * (1 - penalty.l1_ratio)
    count = len(targets)
    intercept = middle = 0.0
    if penalty.intercept:
        intercept, middle = float(costs @ left) / count, float(costs @ targets) / count
        left -= intercept
    primal = float(costs @ left**2) / (2 * count)
    primal += l1 * float(np.abs(weights).sum()) + l2 / 2 * float(weights @ weights)
    reach = rows.transposed(costs * left) / count
    reach = np.maximum(reach, 0) if penalty.positive else np.abs(reach)
    along = float(costs * left @ (targets - middle)) / count
    square = float(costs @ left**2) / (2 * count)
    if l2 > 0:
        dual = along - square - float((np.maximum(reach - l1, 0) ** 2).sum()) / (2 * l2)
    else:  # the best multiple that the dual allows
        most = min(along / (2 * square) if square else 0.0, l1 / max(reach.max(initial=0), _TINY))
        dual = most * along - most**2 * square
    look = found.looks[-1]._replace(primal=primal, dual=dual)
    floor = np.finfo(found.weights.dtype).eps ** 2 * _FLOOR / (2 * count)
    floor *= float(costs @ (targets - middle) ** 2)
    is_close = look.gap <= max(stopping.tol * primal, floor)
    looks = [*found.looks[:-1], look]
    return found._replace(intercept=intercept, looks=looks, has_converged=is_close)


class _Descent:
    """One rank's part of a descent."""

    def __init__(
        self,
        job: Job | None,
        columns: Any,
        targets: Array,
        penalty: Penalty,
        dynamic: bool,
        seed: int,
        roots: Array | None,
        watch: Callable[[Look], object],
    ) -> None:
        self._columns, self._targets, self._penalty = columns, targets, penalty
        self._roots = roots
        self._dynamic, self._seed, self._watch = dynamic, seed, watch
        self._slot, slots = (0, 1) if job is None else (job.rank, job.size)
        self._few = Sums(job, _FEW + slots, np.float64)
        self._changes = Sums(job, len(targets) + 3, targets.dtype)
        self._job = job
        self._alive = list(range(slots))
        self._looks: list[Look] = []
        self._before = np.zeros(2)  # steps and columns looked at, before a rank died
        self._kind: Any = (
            CoordinateDescentFloat32 if targets.dtype == np.float32 else CoordinateDescentFloat64
        )
        self._descent: Any = None
        with np.errstate(over="ignore"):  # the kernel refuses such targets
            along = np.ones_like(targets) if roots is None else roots
            self._centre = float(np.mean(along * targets, dtype=np.float64))
            if not penalty.intercept:
                self._centre = 0.0
            square = np.square(targets - self._centre * along, dtype=np.float64).sum()
        self._rounding = float(np.finfo(targets.dtype).eps)
        # A gap of the objective that is all squares at w = 0 is rounding below this.
        self._floor = _FLOOR * self._rounding * float(square) / (2 * len(targets))

    def close(self) -> None:
        for sums in (self._few, self._changes):
            sums.close()

    def divide(self, lost: RankLostError | None) -> Array:
        """Return the weights that the ranks that are left have, and make these the only ranks."""
        while lost is not None:
            for sums in (self._few, self._changes):
                sums.ranks = lost.ranks
            try:
                self._few.array[:] = 0
                self._few.array[_FEW + self._slot] = 1
                seen = self._few.add_up()[_FEW:]
                self._alive = [slot for slot, count in enumerate(seen) if count > 0]
                weights = self._sum_of_weights()
                lost = None
            except RankLostError as another:
                lost = another
        if self._descent is not None:
            self._before = self._work
        return weights

    def _sum_of_weights(self) -> Array:
        """Return the weights of all ranks; only those that are not 0 are sent. Collective."""
        own = np.zeros(self._columns.rows) if self._descent is None else self._descent.weights
        if self._job is None:
            return np.asarray(own, self._targets.dtype)
        places = np.flatnonzero(own)
        self._few.array[:] = 0
        self._few.array[_FEW + self._slot] = len(places)
        counts = self._few.add_up()[_FEW:].astype(np.int64)
        first, total = int(counts[: self._slot].sum()), int(counts.sum())
        pairs = Sums(self._job, 2 * total, np.float64)  # in which a place of any column is exact
        try:
            if pairs.ranks != self._few.ranks:
                raise RankLostError(pairs.ranks)
            pairs.array[:] = 0
            pairs.array[first : first + len(places)] = places
            pairs.array[total + first : total + first + len(places)] = own[places]
            found = pairs.add_up()
            weights = np.zeros(self._columns.rows, self._targets.dtype)
            weights[found[:total].astype(np.int64)] = found[total:]
            return weights
        finally:
            pairs.close()

    def run(self, start: Array | None, stopping: Stopping) -> Descended:
        penalty = self._penalty
        if len(self._alive) != self._few.ranks:
            start = self.divide(RankLostError(self._few.ranks))
        self._descent = self._kind(
            self._columns,
            self._targets,
            alpha=penalty.alpha,
            l1_ratio=penalty.l1_ratio,
            intercept=penalty.intercept,
            positive=penalty.positive,
            dynamic=self._dynamic,
            rank=self._alive.index(self._slot),
            ranks=len(self._alive),
            seed=self._seed,
            start=start,
            roots=self._roots,
        )
        if start is not None:
            self._settle()
        settled = 0
        while True:
            look = self._look()
            self._looks.append(look)
            self._watch(look)
            has_converged = look.gap <= max(
                stopping.tol * look.primal, self._rounding * self._floor
            )
            if has_converged or look.passes >= stopping.passes or self._is_rounding():
                break
            settled += 1
            drifts = self._rounding * look.primal * _DRIFT > look.gap
            if drifts and settled >= _SETTLE_EVERY:
                self._settle()
                settled = 0
            self._sweep()
        updates, _, mean = self._counts()
        weights = self._sum_of_weights()
        intercept = self._centre - mean if penalty.intercept else 0.0
        return Descended(weights, intercept, self._looks, has_converged, round(updates))

    @property
    def _work(self) -> Array:
        """This rank's steps, and the columns that it looked at."""
        now: Array = np.add(self._before, (self._descent.updates, self._descent.looked))
        return now

    def _counts(self) -> tuple[float, float, float]:
        """Return the steps and the columns looked at of all ranks, and the intercept's part."""
        steps, looked = self._work
        updates, read, mean, *_ = self._few.add_few(steps, looked, self._descent.mean)
        return updates, read, mean

    def _settle(self) -> None:
        """Compute the residual anew, from the weights of all ranks."""
        self._descent.contribute(self._changes.array)
        self._descent.settle(self._changes.add_up())

    def _look(self) -> Look:
        most, *sums = self._descent.look()
        own = self._few.array
        own[:] = 0
        own[:3] = sums
        own[3:_FEW] = self._work
        own[_FEW + self._slot] = most
        every = self._few.add_up().tolist()
        primal, dual = self._descent.choose([max(every[_FEW:]), *every[:3]])
        passes = (every[3] + every[4]) / self._columns.rows
        return Look(passes, primal, dual, time.time(), primal * self._rounding)

    def _sweep(self) -> None:
        """Sweep over the picked columns until little is left to gain, with exchanges."""
        if self._few.ranks == 1:
            self._descent.sweep(_SHARE, _MOST_SWEEPS)
            return
        first = 0.0
        for k in range(_MOST_EXCHANGES if self._dynamic else 1):
            self._descent.sweep(_SHARE, 1)
            self._descent.take_change(self._changes.array)
            total = self._changes.add_up()
            self._descent.add_changes(total)
            fall = float(total[-1])
            if k == 0:
                first = fall
            elif fall <= _SHARE * first:
                break

    def _is_rounding(self) -> bool:
        if len(self._looks) <= _STALLED:
            return False
        now, before = self._looks[-1], self._looks[-1 - _STALLED]
        limit = max(_ROUNDING[self._targets.dtype.name] * now.primal, _STALLED * self._floor)
        return now.gap <= limit and now.gap >= 0.9 * before.gap
