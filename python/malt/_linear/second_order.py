"""Newton's method for smooth losses, an interior point method for others, and rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._job.job import Job
from malt._linear import equations
from malt._linear.interior import Interior
from malt._linear.losses import Losses
from malt._linear.newton import Newton
from malt._linear.newton_products import Rows, decisions
from malt._linear.problems import Look, Solution, Stopping
from malt._linear.rank_sums import RankLostError, Sums

Array = npt.NDArray[Any]

_FEW = 4  # numbers that are added up at once
_EPS = float(np.finfo(np.float64).eps)


class Task(NamedTuple):
    """One rank's part of a problem."""

    X: Any  # the rows as they were given
    rows: Rows  # multiplies them
    losses: Losses
    stopping: Stopping


class Start(NamedTuple):
    """The best weights, with the intercept, of another solver; and its last alphas."""

    weights: Array
    alphas: Array


def solve(
    task: Task,
    job: Job | None,
    start: Start,
    before: list[Look],
    watch: Callable[[Look], object],
) -> Solution:
    """Solve the problem, after another solver's looks and from its weights. Collective.

    The weights are of X's type if that is precise enough, or else of float64. The last look is that
    of these very weights.
    """
    columns, ranks = task.rows.columns, 1 if job is None else job.size
    few = Sums(job, _FEW, np.float64)
    wide = Sums(job, equations.length(columns, task.rows.count, ranks), np.float64)
    each = Sums(job, ranks, np.float64)
    passes = before[-1].passes if before else 0.0
    held = task.losses.costs > 0
    part = task if held.all() else _part(task, held)
    try:
        while True:
            method: Interior | Newton
            if task.losses.is_kinked:
                method = Interior(*part[1:], (few, wide, each), passes, watch)
            else:
                begin = task.rows.moved(start.weights), start.alphas[held]
                method = Newton(*part[1:], (few, wide), begin, passes, watch)
            try:
                method.run()
                weights, last = _rounded(task, few, method)
            except RankLostError as lost:  # go on with the rows that are left
                few.ranks = wide.ranks = each.ranks = lost.ranks
                passes, before = method.passes, []
                start = start._replace(weights=task.rows.moved_back(method.weights))
                continue
            if before and before[-1].primal < last.primal:
                weights = start.weights.astype(task.X.dtype)
                dual = max(before[-1].dual, last.dual)
                last = last._replace(primal=before[-1].primal, dual=dual)
            alphas = np.zeros(len(held))
            alphas[held] = method.alphas
            looks = [*before, *method.looks[:-1], last]
            return Solution(weights, alphas, looks, task.stopping.ends(last))
    finally:
        for sums in (few, wide, each):
            sums.close()


def _part(task: Task, held: Array) -> Task:
    """Return the part of a task over these rows."""
    X, rows, losses, stopping = task
    some = Losses(losses.problem, losses.targets[held], losses.costs[held])
    return Task(X[held], Rows(X[held], rows.centre), some, stopping)


def _rounded(task: Task, few: Sums, method: Interior | Newton) -> tuple[Array, Look]:
    """Return the weights as fit() returns them, and their gap."""
    exact = task.rows.moved_back(method.weights)
    for dtype in (task.X.dtype, np.dtype(np.float64)):
        weights = exact.astype(dtype)
        primal = _objective(task, weights, few)
        look = method.looks[-1]._replace(primal=primal, rounding=primal * _EPS)
        if task.stopping.ends(look):
            break
    return weights, look


def _objective(task: Task, weights: Array, few: Sums) -> float:
    """Return the objective at these weights, as anybody computes it in float64."""
    of_rows = task.losses.values(decisions(task.X, weights))
    body = weights[:-1].astype(np.float64)
    of_weights = float(body @ body) / 2 / few.ranks
    found, *_ = few.add_few(float(task.losses.costs @ of_rows) + of_weights)
    return found
