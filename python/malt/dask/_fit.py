"""`malt.dask.fit`: linear models on Dask arrays and dataframes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask.delayed import delayed

from malt._engines import fitting
from malt._engines.fitting import Part
from malt._errors import ConfigError
from malt.dask._run import Call, choose, run_each


def fit(
    client: Any, estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, timeout: float = 30.0
) -> Any:
    """Fit a linear model of MALT on Dask arrays or dataframes, each partition where it lies.

    Each worker that has a partition is a rank. Compute or persist the data before, to decide where
    they lie.

    Args:
        client: a distributed.Client, not an asynchronous one.
        estimator: malt.learn.LogisticRegression, LinearSVC, Ridge, LinearSVR, SGDClassifier or
            SGDRegressor, without ranks=.
        X: a dask.array of shape (rows, features), or a dask.dataframe.
        y: the labels, with the same partitions of rows: a dask.array or a series.
        sample_weight: the weights of the rows' losses, with the same partitions; None: all 1.
        timeout: as in run().

    Returns:
        The estimator, fitted.

    Raises:
        ConfigError: the partitions of X, y and sample_weight differ; otherwise as run().
    """
    parts = client.compute(_parts(X, y, sample_weight))
    client.gather(client.map(type, parts, pure=False))  # raises what went wrong with them
    there: dict[str, list[Any]] = {}
    for part, holders in zip(parts, _holders(client, parts), strict=True):
        there.setdefault(holders[0], []).append(part)
    chosen = choose(client, None, sorted(there))
    calls: list[Call] = [(fitting.fit, (estimator, there[worker]), {}) for worker in chosen]
    return fitting.take_over(estimator, run_each(client, chosen, calls, False, timeout))


def _holders(client: Any, parts: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return the workers that have each part in memory."""
    by_key = client.who_has(parts)
    return [tuple(sorted(by_key[part.key])) for part in parts]


def _parts(X: Any, y: Any, sample_weight: Any) -> list[Any]:
    """Return delayed parts, of one partition each."""
    if hasattr(X, "chunks"):
        X = X.rechunk({1: -1})
        given = [each.rechunk({0: X.chunks[0]}) for each in (y, sample_weight) if each is not None]
    else:
        given = [each for each in (y, sample_weight) if each is not None]
    pieces = [
        list(each.to_delayed().ravel()) if hasattr(each, "chunks") else each.to_delayed()
        for each in (X, *given)
    ]
    if len({len(each) for each in pieces}) != 1:
        counts = ", ".join(str(len(each)) for each in pieces)
        raise ConfigError(
            f"X, y (and sample_weight) have {counts} partitions; give them the same partitions"
        )
    make = delayed(Part, pure=False)
    return [make(*each, *[None] * (3 - len(each))) for each in zip(*pieces, strict=True)]
