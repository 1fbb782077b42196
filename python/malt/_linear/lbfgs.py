"""Solving a smooth linear model by L-BFGS, over rows in files.

Each evaluation reads all rows of all ranks once and adds the ranks' gradients up, so the path and
the solution are those of one process. It serves where the dual solver (dual.py) does not: several
outputs that share a loss (multinomial), and rows that are read from files in each pass.

The gap: P is the objective, minimised over the intercepts. It is strongly convex with modulus 1
because of the penalty |w|^2 / 2, so P - optimum <= |slope of P|^2 / 2 (Nesterov 2004, section
2.1.3). A Newton step estimates how much moving the intercepts would still gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from malt._core_import import add_linear_gradient
from malt._job import joining
from malt._linear.problems import Look, Problem, Solution, Stopping
from malt._linear.rank_sums import RankLostError, Sums
from malt._linear.row_sources import Source

Array = npt.NDArray[Any]

SMOOTH_LOSSES = (
    "log_loss",
    "softmax",
    "squared_hinge",
    "squared_error",
    "squared_epsilon_insensitive",
)
# A gradient is summed in the rows' precision over so many rows at a time, then in float64.
_ROWS_AT_ONCE = 4096
_MEMORY = 20  # pairs of steps and slopes that L-BFGS keeps
_FEW = 2
_PROBE = 1e-3  # a move of the intercepts, to measure a curvature


class _EndedError(Exception):
    """The search is over; all ranks raise this together."""


def solve(
    source: Source,
    problem: Problem,
    stopping: Stopping,
    *,
    dtype: Any,
    class_weights: Sequence[float],
    start: Array,
    watch: Callable[[Look], object],
) -> Solution:
    """Solve the problem over the rows of all ranks of this job. Collective.

    `start`: (features + 1, outputs).
    """
    job = joining.company()
    few = Sums(job, _FEW, np.float64)
    wide = Sums(job, start.size, np.float64)
    try:
        search = _Search(
            source, problem, stopping, start.shape, dtype, class_weights, few, wide, watch
        )
        return search.run(start)
    finally:
        few.close()
        wide.close()


class _Search:
    """One rank's part of a search."""

    def __init__(
        self,
        source: Source,
        problem: Problem,
        stopping: Stopping,
        shape: tuple[int, ...],
        dtype: Any,
        class_weights: Sequence[float],
        few: Sums,
        wide: Sums,
        watch: Callable[[Look], object],
    ) -> None:
        self._source, self._problem, self._stopping = source, problem, stopping
        self._shape, self._dtype = shape, dtype
        self._class_weights = class_weights
        self._few, self._wide, self._watch = few, wide, watch
        self._passes = 0
        self._looks: list[Look] = []
        self._least = np.inf

    def run(self, start: Array) -> Solution:
        self._best = start.ravel()
        while True:
            try:
                with threadpool_limits(1, "blas"):  # its threads would take the ranks' cores
                    minimize(
                        self._evaluate,
                        self._best,
                        jac=True,
                        method="L-BFGS-B",
                        options={
                            "maxcor": _MEMORY,
                            "ftol": 0.0,
                            "gtol": 0.0,
                            "maxiter": self._stopping.passes,
                            "maxfun": 2 * self._stopping.passes,
                        },
                    )
                self._await_others(is_over=True)
            except _EndedError:
                break
            except RankLostError as lost:  # go on with the rows that are left
                self._few.ranks = self._wide.ranks = lost.ranks
                self._least = np.inf
        return Solution(self._agree(), None, self._looks, self._is_solved())

    def _is_solved(self) -> bool:
        last = self._looks[-1]
        return bool(last.gap <= self._stopping.tol * last.primal)

    def _await_others(self, *, is_over: bool) -> None:
        """Raise _EndedError on all ranks if the search is over on one."""
        over, *_ = self._few.add_few(is_over)
        if over:
            raise _EndedError

    def _agree(self) -> Array:
        """Return the weights; of the same bits on all ranks, whatever their processors."""
        while True:
            try:
                self._wide.array[:] = self._best
                mean = self._wide.add_up() / self._wide.ranks
                return mean.reshape(self._shape).astype(self._dtype)
            except RankLostError:
                continue

    def _evaluate(self, at: Array) -> tuple[float, Array]:
        """Return the objective and its slopes."""
        self._await_others(is_over=False)
        c, weights = self._problem.c, at.reshape(self._shape)
        losses, self._wide.array[:] = self._losses(weights)
        slopes = c * self._wide.add_up()
        losses, *_ = self._few.add_few(losses)
        self._passes += 1
        body = weights[:-1]
        slopes.reshape(self._shape)[:-1] += body
        objective = float(np.vdot(body, body)) / 2 + c * losses
        self._look(weights, objective, slopes.reshape(self._shape))
        return objective, slopes

    def _look(self, weights: Array, objective: float, slopes: Array) -> None:
        gap = float(np.vdot(slopes[:-1], slopes[:-1])) / 2
        # All ranks take the means of what they found: their processors may round differently.
        gap, objective, *_ = self._few.add_few(gap, objective)
        gap, objective = gap / self._few.ranks, objective / self._few.ranks
        goal = self._stopping.tol * objective
        if gap <= goal and self._problem.intercept:
            gap += self._gain_of_intercepts(weights, slopes[-1])
        self._looks.append(Look(self._passes, objective, objective - gap, time.time()))
        self._watch(self._looks[-1])
        if gap <= goal or objective < self._least:
            self._least, self._best = objective, weights.ravel().copy()
        if gap <= goal or self._passes >= self._stopping.passes:
            raise _EndedError

    def _losses(self, weights: Array) -> tuple[float, Array]:
        """Return the sum of this rank's losses, and of their slopes."""
        loss, _, intercept, epsilon = self._problem
        weights = np.ascontiguousarray(weights, self._dtype)
        losses, sums = 0.0, np.zeros(weights.size)
        for examples, first, last in self._pieces():
            slopes = np.zeros_like(weights)
            losses += add_linear_gradient(
                examples,
                weights,
                slopes,
                first,
                last,
                loss=loss,
                epsilon=epsilon,
                intercept=intercept,
                outputs=self._shape[1],
                class_weights=self._class_weights,
            )
            sums += slopes.ravel()
        return losses, sums

    def _pieces(self) -> Any:
        for examples, begin, end, _ in self._source.blocks():
            at_once = max(_ROWS_AT_ONCE, self._shape[0] // 8)
            for first in range(begin, end, at_once):
                yield examples, first, min(end, first + at_once)

    def _gain_of_intercepts(self, weights: Array, slopes: Array) -> float:
        """Estimate what the objective would fall by if the intercepts alone were moved."""
        size = float(np.linalg.norm(slopes))
        if size == 0:
            return 0.0
        moved = weights.copy()
        moved[-1] -= _PROBE / size * slopes
        _, self._wide.array[:] = self._losses(moved)
        there = self._problem.c * self._wide.add_up().reshape(self._shape)[-1]
        curvature = float((slopes - there) @ slopes) / (size * _PROBE)
        return size**2 / (2 * curvature) if curvature > 0 else np.inf
