"""The products that Newton's method makes of one rank's rows, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf

from malt._job.job import Job
from malt._linear.rank_sums import RankLostError, Sums

Array = npt.NDArray[Any]

_MOST_COPIED = 1 << 28  # bytes of float64
# Columns whose mean is so many times their standard deviation, or whose sizes differ so much, are
# named where a fit does not get to its end.
_FAR, _UNLIKE = 100.0, 1000.0
_CONSTANT = 1e-7
_BLOCK = 1 << 22  # values of rows that are converted at a time
_DENSE = 0.1  # a sparse matrix of so large a share of values is quicker as an array


class Rows:
    """The matrix A = [X - centre, 1] of a problem with an intercept, or A = X.

    An unpenalised intercept makes up for any move of the columns: the problem is the same, but its
    sums are not rounded as those of columns are that are far from 0.

    Small rows are copied into an array. Of others, A is not formed.
    """

    def __init__(self, X: Any, centre: Array | None) -> None:
        """`centre`: what is taken off each column, or None without an intercept."""
        self.count, features = X.shape
        self.columns = features + (centre is not None)
        self.centre = centre
        self._A: Array | None = None
        self._X = X
        if sparse.issparse(X):
            self._X = X.astype(np.float64, copy=False)
        if 8 * self.count * self.columns <= _MOST_COPIED and _is_full(X):
            dense = X.toarray() if sparse.issparse(X) else X
            if centre is None:
                self._A = dense.astype(np.float64, copy=False)
            else:
                self._A = np.empty((self.count, self.columns))
                np.subtract(dense, centre, out=self._A[:, :-1])
                self._A[:, -1] = 1

    def moved(self, weights: Array) -> Array:
        """Return the weights of A that decide as these and an intercept do of X."""
        if self.centre is None:
            return np.array(weights[:-1], np.float64)
        moved = np.array(weights, np.float64)
        moved[-1] += self.centre @ moved[:-1]
        return moved

    def moved_back(self, weights: Array) -> Array:
        """Return moved()'s argument for this result."""
        if self.centre is None:
            return np.concatenate([weights, np.zeros((1, *weights.shape[1:]))])
        back = weights.copy()
        back[-1] -= self.centre @ back[:-1]
        return np.asarray(back)

    def times(self, weights: Array) -> Array:
        """Return A @ weights."""
        if self._A is not None:
            return np.asarray(self._A @ weights)
        if self.centre is None:
            return self._times_x(weights)
        body = weights[:-1]
        return np.asarray(self._times_x(body) + (weights[-1] - self.centre @ body))

    def transposed(self, alphas: Array) -> Array:
        """Return A.T @ alphas."""
        if self._A is not None:
            return np.asarray(self._A.T @ alphas)
        sums = self._transposed_x(alphas)
        if self.centre is None:
            return sums
        total = alphas.sum(0)
        return np.concatenate([sums - np.multiply.outer(self.centre, total), [total]])

    def curvature(self, bends: Array) -> Array:
        """Return A.T @ diag(bends) @ A."""
        (bent,) = bends.nonzero()
        if self._A is not None:
            part = (
                self._A * np.sqrt(bends[:, None])
                if len(bent) > self.count / 2
                else (self._A[bent] * np.sqrt(bends[bent, None]))
            )
            return np.asarray(part.T @ part)  # of one array with itself: NumPy computes half of it
        features = self._X.shape[1]
        matrix = np.zeros((self.columns, self.columns))
        body = matrix[:features, :features]
        for where, block in self._blocks(bent):
            roots = np.sqrt(bends[where, np.newaxis])
            part = block.multiply(roots).tocsr() if sparse.issparse(block) else block * roots
            square = part.T @ part
            body += square.toarray() if sparse.issparse(square) else square
        if self.centre is not None:
            column = self._transposed_x(bends)
            total = bends.sum()
            off = np.outer(self.centre, column)
            body -= off + off.T - total * np.outer(self.centre, self.centre)
            matrix[-1, :-1] = matrix[:-1, -1] = column - total * self.centre
            matrix[-1, -1] = total
        return matrix

    def squares(self, bends: Array) -> Array:
        """Return the diagonal of curvature(bends)."""
        if self._A is not None:
            return np.asarray(np.einsum("ij,ij,i->j", self._A, self._A, bends))
        features = self._X.shape[1]
        sums = np.zeros(features)
        for where, block in self._blocks(np.flatnonzero(bends)):
            square = block.multiply(block) if sparse.issparse(block) else block * block
            sums += square.T @ bends[where]
        if self.centre is None:
            return sums
        total = bends.sum()
        sums += self.centre * (total * self.centre - 2 * self._transposed_x(bends))
        return np.append(np.maximum(sums, 0), total)

    @cached_property
    def gram(self) -> Array:
        """(X - centre) @ (X - centre).T."""
        if self._A is not None:
            body = self._A if self.centre is None else self._A[:, :-1]
            return np.asarray(body @ body.T)
        matrix = np.zeros((self.count, self.count))
        if sparse.issparse(self._X):
            matrix[:] = (self._X @ self._X.T).toarray()
        else:
            features = self._X.shape[1]
            step = max(1, _BLOCK // self.count)
            for first in range(0, features, step):
                part = self._X[:, first : first + step].astype(np.float64)
                matrix += part @ part.T
        if self.centre is not None:
            column = self._times_x(self.centre)
            matrix -= np.add.outer(column, column) - self.centre @ self.centre
        return matrix

    def narrowed(self) -> tuple[Rows, Callable[[Array], Array]]:
        """Return a square matrix whose weights of least norm decide alike, and what leads back.

        Its product with itself is the Gram matrix (pivoted Cholesky): weights that minimise are
        sums of rows.
        """
        factor, order, rank, _ = dpstrf(self.gram, lower=1)
        order = order - 1
        low = np.tril(factor)[:, :rank]
        narrow = np.empty_like(low)
        narrow[order] = low
        rows = Rows(narrow, None if self.centre is None else np.zeros(rank))

        def back(weights: Array) -> Array:
            alphas = np.zeros((self.count, *weights.shape[1:]))
            alphas[order[:rank]] = solve_triangular(low[:rank].T, weights[:rank], lower=False)
            wide = self.transposed(alphas)
            if self.centre is not None:
                wide[-1] = weights[-1]
            return wide

        return rows, back

    def _times_x(self, weights: Array) -> Array:
        if self._X.dtype == np.float64:
            return np.asarray(self._X @ weights)
        parts = [block @ weights for _, block in self._blocks(np.arange(self.count))]
        return np.concatenate(parts)

    def _transposed_x(self, alphas: Array) -> Array:
        if self._X.dtype == np.float64:
            return np.asarray(self._X.T @ alphas)
        sums = np.zeros((self._X.shape[1], *alphas.shape[1:]))
        for where, block in self._blocks(np.flatnonzero(alphas.reshape(self.count, -1).any(1))):
            sums += block.T @ alphas[where]
        return sums

    def _blocks(self, rows: Array) -> Iterator[tuple[Array, Any]]:
        """Yield some of these rows at a time, with their numbers."""
        step = max(1, _BLOCK // max(1, self._X.shape[1]))
        if sparse.issparse(self._X):
            step = max(1, len(rows))
        for first in range(0, len(rows), step):
            where = rows[first : first + step]
            yield where, self._X[where].astype(np.float64, copy=False)


def _is_full(X: Any) -> bool:
    return not sparse.issparse(X) or X.nnz > _DENSE * X.shape[0] * X.shape[1]


def awkward_column(X: Any) -> str:
    """Return words about a column that is far from 0 or unlike the others in size, or none."""
    count = max(1, X.shape[0])
    means = np.asarray(X.sum(0, dtype=np.float64)).ravel() / count
    if sparse.issparse(X):
        squares = np.asarray(X.multiply(X).sum(0, dtype=np.float64)).ravel() / count
    else:
        squares = np.einsum("ij,ij->j", X, X, dtype=np.float64) / count
    spreads = np.sqrt(np.maximum(0, squares - means**2))
    is_constant = spreads <= _CONSTANT * np.abs(means)
    far = np.where(is_constant, 0, np.abs(means) / np.where(is_constant, 1, spreads))
    k = int(np.argmax(far))
    if far[k] > _FAR:
        return (
            f"; column {k} has the mean {means[k]:.2g} and the standard deviation "
            f"{spreads[k]:.2g}: take the mean off (sklearn.preprocessing.StandardScaler)"
        )
    sizes = np.sqrt(squares)
    used = np.flatnonzero(sizes)
    if len(used) and sizes[used].max() > _UNLIKE * sizes[used].min():
        high, low = used[np.argmax(sizes[used])], used[np.argmin(sizes[used])]
        return (
            f"; column {high} has values of about {sizes[high]:.2g} and column {low} of "
            f"{sizes[low]:.2g}: scale them alike (sklearn.preprocessing.StandardScaler)"
        )
    return ""


def decisions(X: Any, weights: Array) -> Array:
    """Return X @ weights[:-1] + weights[-1] in float64, whatever the type of X."""
    given = weights.astype(np.float64)
    return np.asarray(Rows(X, None).times(given[:-1]) + given[-1])


def column_means(X: Any, job: Job | None) -> Array:
    """Return the means of the columns over the rows of all ranks. Collective."""
    sums = Sums(job, X.shape[1] + 1, np.float64)
    try:
        while True:
            sums.array[:-1] = np.asarray(X.sum(0, dtype=np.float64)).ravel()
            sums.array[-1] = X.shape[0]
            try:
                total = sums.add_up()
            except RankLostError:
                continue
            return np.array(total[:-1] / max(1.0, total[-1]))
    finally:
        sums.close()
