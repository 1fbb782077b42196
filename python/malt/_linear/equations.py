"""The equations of a step of Newton's method, solved on the smaller side of the matrix.

With A of rows.py, bends D and penalties P (1, and 0 for an intercept), a step s solves
(P + A'DA) s = -slopes. With few columns these equations are formed and solved (Cholesky). With
fewer rows than columns, Woodbury's identity leaves one equation a row: (1 + S G S) u = ..., with
the Gram matrix G = XX' and S = sqrt(D). With many of both, conjugate gradients need products with A
and A' only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.linalg.lapack import dpotrf, dpotrs

from malt._linear.newton_products import Rows
from malt._linear.rank_sums import Sums

Array = npt.NDArray[Any]

MOST_DIRECT = 3000  # equations that are formed in one process
MOST_SUMMED = 1000  # and by several ranks, which exchange them
_DAMPING = 1e-10  # of the intercept's equation, which may have no solution of its own


Step = Callable[[Array], Array]


# For rows that are each pulled towards a decision value: by how much alphas and weights move so
# that alphas = bends (pulls - decisions), and that no slopes of |w|^2 / 2 - (alphas, Aw) are left.
Coupled = Callable[[Array, Array], tuple[Array, Array]]


class Effort(NamedTuple):
    """How well equations are solved."""

    careful: bool  # the last step led nowhere, as the equations are nearly singular
    enough: float  # the square of what may be left of the slopes
    most: int  # passes over the rows


_PLAIN = Effort(careful=False, enough=0.0, most=0)


class Equations(Protocol):
    """Finds steps, of the same bits on all ranks."""

    def factored(self, bends: Array, slopes: Array, effort: Effort) -> Step:
        """Return what finds the step for any slopes, such as these. Both calls are collective."""


def length(columns: int, rows: int, ranks: int) -> int:
    """Return how many numbers the ranks exchange at once."""
    return columns**2 if ranks > 1 and is_direct(columns, rows, ranks) else columns


def choose(
    rows: Rows, few: Sums, wide: Sums, visit: Callable[[], object], *, intercept: bool
) -> Equations | ByRow:
    """Return the Equations for these rows. `visit` is called where all rows are read."""
    if is_direct(rows.columns, rows.count, few.ranks):
        return formed(rows, few, wide, intercept=intercept)
    return Conjugate(rows, _penalised(rows, intercept), few, wide, visit)


def formed(rows: Rows, few: Sums, wide: Sums, *, intercept: bool) -> ByColumn | ByRow:
    """Return the Equations for rows with is_direct()."""
    if few.ranks == 1 and rows.count < rows.columns:
        return ByRow(rows, _penalised(rows, intercept))
    return ByColumn(rows, _penalised(rows, intercept), wide)


def _penalised(rows: Rows, intercept: bool) -> Array:
    penalised = np.ones(rows.columns)
    if intercept:
        penalised[-1] = 0
    return penalised


def is_direct(columns: int, rows: int, ranks: int) -> bool:
    """Whether the equations are formed, rather than solved by conjugate gradients."""
    return columns <= MOST_SUMMED if ranks > 1 else min(columns, rows) <= MOST_DIRECT


def solver_of(matrix: Array, *, careful: bool = False) -> Step:
    """Return what solves equations of a symmetric matrix without negative eigenvalues.

    If it is singular, the solution is that of least norm once the diagonal is scaled to 1; if it
    has overflowed, 0.
    """
    if not np.isfinite(matrix).all():
        return np.zeros_like
    if not careful:
        factor, failed = dpotrf(matrix.T)
        if not failed:
            return lambda right: np.asarray(dpotrs(factor, right)[0])
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), np.finfo(np.float64).tiny))
    values, vectors = eigh(matrix * scale[:, np.newaxis] * scale, check_finite=False)
    kept = values > len(values) * np.finfo(np.float64).eps * values[-1]
    across = scale[:, np.newaxis] * vectors[:, kept]
    return lambda right: np.asarray((across / values[kept]) @ (across.T @ right))


class ByColumn:
    """An equation for each column of A; the ranks add their parts up."""

    follows_alphas = False  # coupled() corrects weights that are not quite those of the alphas

    def __init__(self, rows: Rows, penalised: Array, wide: Sums) -> None:
        self._rows, self._penalised, self._wide = rows, penalised, wide

    def factored(self, bends: Array, slopes: Array, effort: Effort) -> Step:
        columns = len(self._penalised)
        matrix = self._rows.curvature(bends)
        matrix = added(self._wide, matrix)
        matrix.flat[:: columns + 1] += self._penalised
        if self._penalised[-1] == 0:
            # Without a bend in any row's loss, the intercept moves by 1.
            matrix[-1, -1] += _DAMPING * matrix[-1, -1] or abs(slopes[-1]) or 1.0
        solve = solver_of(matrix, careful=effort.careful)
        if self._wide.ranks == 1:
            return lambda slopes: -solve(slopes)

        return lambda slopes: -added(self._wide, solve(slopes)) / self._wide.ranks

    def coupled(self, bends: Array) -> Coupled:
        """Return what finds the moves of Coupled. Both calls are collective."""
        solve = self.factored(bends, np.ones(1), _PLAIN)

        def move(pulls: Array, slopes: Array) -> tuple[Array, Array]:
            step = solve(slopes - added(self._wide, self._rows.transposed(bends * pulls)))
            alphas = bends * (pulls - self._rows.times(step))
            # Such differences of large numbers leave slopes; these are taken off.
            left = slopes + self._penalised * step
            again = solve(left - added(self._wide, self._rows.transposed(alphas)))
            return alphas - bends * self._rows.times(again), step + again

        return move


class ByRow:
    """An equation for each row whose loss bends, in one process."""

    follows_alphas = True

    def __init__(self, rows: Rows, penalised: Array) -> None:
        self._rows = rows
        self._has_intercept = penalised[-1] == 0

    def coupled(self, bends: Array) -> Coupled:
        """Return what finds the moves of Coupled, for weights that are those of the alphas.

        It takes no differences of large numbers.
        """
        roots = np.sqrt(bends)
        matrix = self._rows.gram * roots * roots[:, np.newaxis]
        matrix.flat[:: len(roots) + 1] += 1
        solve = solver_of(matrix)
        by_intercept = solve(roots)

        def move(pulls: Array, slopes: Array) -> tuple[Array, Array]:
            found, of_intercept = solve(roots * pulls), 0.0
            if self._has_intercept:
                of_intercept = (roots @ found - slopes[-1]) / (roots @ by_intercept)
                found = found - of_intercept * by_intercept
            step = self._rows.transposed(roots * found)
            if self._has_intercept:
                step[-1] = of_intercept
            return roots * found, step

        return move


class Conjugate:
    """Conjugate gradients, preconditioned by the diagonal."""

    def __init__(
        self,
        rows: Rows,
        penalised: Array,
        few: Sums,
        wide: Sums,
        visit: Callable[[], object],
    ) -> None:
        self._rows, self._penalised = rows, penalised
        self._few, self._wide, self._visit = few, wide, visit

    def factored(self, bends: Array, slopes: Array, effort: Effort) -> Step:
        def times(vector: Array) -> Array:
            self._visit()
            return self._penalised * vector + added(
                self._wide, self._rows.transposed(bends * self._rows.times(vector))
            )

        diagonal = self._penalised + added(self._wide, self._rows.squares(bends))
        if self._penalised[-1] == 0:
            diagonal[-1] = diagonal[-1] or abs(slopes[-1]) or 1.0
        return lambda slopes: conjugate_gradients(
            times,
            lambda vector: vector / diagonal,
            -slopes,
            self._few.agree,
            effort.enough,
            effort.most,
        )


def added(sums: Sums, own: Array) -> Array:
    """Return the sum of the ranks' arrays. Collective."""
    if sums.ranks == 1:
        return own
    sums.array[:] = 0
    sums.array[: own.size] = own.ravel()
    return np.array(sums.add_up()[: own.size]).reshape(own.shape)


def conjugate_gradients(
    times: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    right: Array,
    agree: Callable[[float], float],
    enough: float,
    most: int,
) -> Array:
    """Return x with times(x) = right, but for a rest whose square is at most `enough`.

    `agree` makes the ranks' numbers one.
    """
    found = np.zeros_like(right)
    rest = right.copy()
    towards = precondition(rest)
    direction = towards
    size = agree(float(np.vdot(rest, towards)))
    for _ in range(most):
        along = times(direction)
        bend = agree(float(np.vdot(direction, along)))
        if not bend > 0:
            break
        length = size / bend
        found += length * direction
        rest -= length * along
        towards = precondition(rest)
        before, size = size, agree(float(np.vdot(rest, towards)))
        if not size > 0 or agree(float(np.vdot(rest, rest))) <= enough:
            break
        direction = towards + (size / before) * direction
    return found
