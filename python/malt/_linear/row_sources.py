"""The rows that linear models train on: in memory, or read again for each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

from malt._core_import import ExamplesFloat32, ExamplesFloat64, shuffle
from malt._data.chunks import Chunks, Survey
from malt._errors import ConfigError

Array = npt.NDArray[Any]
Examples = ExamplesFloat32 | ExamplesFloat64


def canonical(X: Any) -> Any:
    """Make X CSR with sorted columns and no duplicates, without changing the caller's matrix."""
    if sparse.issparse(X) and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def examples_of(
    X: Any, targets: Array | None = None, weights: Array | None = None, *, check: bool = True
) -> Examples:
    """Return X in the form that kernels read; unchecked, only solvers that check it."""
    kind = ExamplesFloat32 if X.dtype == np.float32 else ExamplesFloat64
    if targets is not None:
        targets = np.ascontiguousarray(targets, X.dtype)
    if weights is not None:
        weights = np.ascontiguousarray(weights, X.dtype)
    if sparse.issparse(X):
        columns = X.indices.astype(np.int32, copy=False)
        return kind.csr(X.indptr, columns, X.data, X.shape[1], targets, weights, check=check)
    return kind.dense(X, targets, weights)


def weight_of(rows: int, weights: Array | None) -> float:
    """Return the total weight of the rows' losses."""
    return rows if weights is None else float(weights.sum(dtype=np.float64))


class Source(Protocol):
    """The rows that a rank trains on in each pass."""

    @property
    def rows(self) -> int:
        """How many rows each pass has."""

    def blocks(self) -> Iterator[tuple[Examples, int, int, float]]:
        """Yield (examples, first, last, weight): train on rows first to last - 1 of the examples.

        Their losses weigh `weight` together. All blocks of a pass have `rows` rows together.
        """


class InMemory(NamedTuple):
    """Rows first to last - 1 of examples, and the total weight of their losses."""

    examples: Examples
    first: int
    last: int
    weight: float

    @property
    def rows(self) -> int:
        return self.last - self.first

    def blocks(self) -> Iterator[tuple[Examples, int, int, float]]:
        yield self


class Streamed(NamedTuple):
    """This rank's part of files, read one chunk at a time."""

    chunks: Chunks
    survey: Survey
    prepare: Callable[[Array], tuple[Array, Array | None]]  # makes targets and weights from y

    @property
    def rows(self) -> int:
        return self.survey.rows

    def blocks(self) -> Iterator[tuple[Examples, int, int, float]]:
        _, features, zero_based, *_ = self.survey
        read = 0
        for data in self.chunks.read(features, zero_based=zero_based):
            assert data.y is not None
            targets, weights = self.prepare(data.y)
            rows = data.X.shape[0]
            read += rows
            yield examples_of(data.X, targets, weights), 0, rows, weight_of(rows, weights)
        if read != self.rows:
            raise ConfigError(
                f"{self.chunks.files[0]} or files beside it have changed: at first they had "
                f"{self.rows} rows for this rank, and now {read}: call malt.load_data and fit() "
                "again"
            )


class Pass:
    """The blocks of a pass, each in an order of its own, to train on in pieces of any size.

    Attributes:
        weight: the total weight of the losses of all blocks so far.
    """

    def __init__(
        self, blocks: Iterator[tuple[Examples, int, int, float]], seed: int | None
    ) -> None:
        self._blocks = blocks
        self._seed = seed
        self._before = self._end = 0  # rows before the present block, and including it
        self._trained = 0
        self._count = 0  # how many blocks have been read
        self.weight = 0.0

    def train(self, model: Any, end: int) -> float:
        """Train on the pass's rows up to row `end`; return the sum of their losses."""
        losses = 0.0
        while self._trained < end:
            if self._trained == self._end:
                self._take_block()
            last = min(end, self._end)
            at = (row - self._before for row in (self._trained, last))
            losses += model.train(self._examples, *at, order=self._order)
            self._trained = last
        return losses

    def _take_block(self) -> None:
        self._examples, first, last, weight = next(self._blocks)
        self.weight += weight
        self._before, self._end = self._end, self._end + last - first
        self._order = np.arange(last - first, dtype=np.uint32)
        if self._seed is not None:
            shuffle(self._order, self._seed + (self._count << 40))
        self._order += np.uint32(first)
        self._count += 1
