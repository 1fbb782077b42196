"""Fits a linear model on the rows that lie in an engine's worker, which runs as a rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from malt._job import job as jobs
from malt._job.joining import init


class Part(NamedTuple):
    """Some rows: X, y, and the weights of their losses (None: all 1)."""

    X: Any
    y: Any
    weights: Any


def fit(estimator: Any, parts: Sequence[Part]) -> Any:
    """Fit the estimator on this rank's parts; return it from rank 0, from others None.

    All ranks end with the same model, so only one of them comes back.
    """
    init()
    X, y, weights = (_joined([part[each] for part in parts]) for each in range(3))
    estimator.fit(X, y, sample_weight=weights)
    return estimator if jobs.rank() == 0 else None


def part_of(rows: Iterable[Any], *, has_weights: bool) -> Part:
    """Make a part of rows, each with its label, perhaps its weight, and then the features.

    The features are numbers, or one vector of Spark's.
    """
    table = [tuple(row) for row in rows]
    first = 2 if has_weights else 1
    dense = [
        row[first].toArray() if hasattr(row[first], "toArray") else row[first:] for row in table
    ]
    weights = np.array([row[1] for row in table]) if has_weights else None
    return Part(np.array(dense), np.array([row[0] for row in table]), weights)


def take_over(estimator: Any, fitted: Sequence[Any]) -> Any:
    """Make the caller's estimator the one that the ranks have fitted."""
    (model,) = (each for each in fitted if each is not None)
    estimator.__dict__.update(model.__dict__)
    return estimator


def _joined(pieces: list[Any]) -> Any:
    """Join arrays, sparse matrices, or pandas' frames or series; one alone is not copied."""
    if len(pieces) == 1 or pieces[0] is None:
        return pieces[0]
    if hasattr(pieces[0], "iloc"):
        import pandas

        return pandas.concat(pieces)
    if hasattr(pieces[0], "tocsr"):
        import scipy.sparse

        return scipy.sparse.vstack(pieces, format="csr")
    return np.concatenate(pieces)
