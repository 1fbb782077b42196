"""The rows given to a scikit-learn estimator, checked before any rank trains on them."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.utils import _safe_indexing, check_array, check_random_state, get_tags, indexable
from sklearn.utils.validation import _num_samples, assert_all_finite

from malt._errors import ConfigError
from malt._wrapping.learnt import Array

# The rows of one call, for an estimator without batch_size that may take one step on all of them.
_CALL_ROWS = 1000


class CheckedRows:
    """A shard or a batch, checked.

    A batch from the caller goes to the estimator as it is. fit() makes several passes over a shard,
    so each call there draws another seed from an integer `random_state`.

    Attributes:
        count: how many rows there are.
        random: the estimator's random numbers.
        in_one_call: train() hands its rows to the estimator in one call, not in batches.

    Raises:
        ValueError: scikit-learn's error: no rows, NaN, infinity, or lengths that differ.
    """

    def __init__(
        self, estimator: Any, X: Any, y: Any, sample_weight: Any, *, is_batch: bool
    ) -> None:
        tags = get_tags(estimator)
        if y is None and tags.target_tags.required:
            raise ConfigError(
                f"{type(estimator).__name__} requires y to be passed, but the target y is None"
            )
        finite: Any = "allow-nan" if tags.input_tags.allow_nan else True
        X, y, sample_weight = indexable(X, y, sample_weight)
        check_array(X, accept_sparse=True, ensure_all_finite=finite, estimator=estimator)
        for name, column in (("y", y), ("sample_weight", sample_weight)):
            if column is not None and np.asarray(column).dtype.kind == "f":
                assert_all_finite(column, input_name=name)
        self.count: int = _num_samples(X)
        self.random = check_random_state(getattr(estimator, "random_state", None))
        self.in_one_call = is_batch or _loops_over_rows(estimator)
        seed = getattr(estimator, "random_state", None)
        self._seed = seed if isinstance(seed, Integral) and not is_batch else None
        size = getattr(estimator, "batch_size", None)
        self._most = size if isinstance(size, int) else _CALL_ROWS
        self._columns = {"X": X, "y": y, "sample_weight": sample_weight}
        self._order: Array | None = None

    def shuffle(self) -> None:
        """Put the rows into a random order.

        If the estimator itself shuffles the rows of a call, the rows are copied in a random order,
        once. For other estimators only the order is drawn, anew each time.
        """
        if self._order is not None and self.in_one_call:
            return
        self._order = self.random.permutation(self.count)
        if self.in_one_call:
            self._columns = {
                name: None if column is None else _safe_indexing(column, self._order)
                for name, column in self._columns.items()
            }

    def train(self, estimator: Any, classes: Any, begin: int = 0, end: int | None = None) -> int:
        """Train on the rows from `begin` to `end` of the order; return how many they are."""
        end = self.count if end is None else end
        most = max(1, end - begin) if self.in_one_call else self._most
        for first in range(begin, end, most):
            self._call(estimator, classes, slice(first, min(first + most, end)))
        return end - begin

    def _call(self, estimator: Any, classes: Any, which: slice) -> None:
        at: Any = which
        if self._order is not None and not self.in_one_call:
            at = self._order[which]
        is_all = at is which and which == slice(0, self.count)
        given = {
            name: column if is_all else _safe_indexing(column, at)
            for name, column in self._columns.items()
            if column is not None
        }
        if classes is not None:
            given["classes"] = classes
        if self._seed is not None:
            estimator.random_state = self.random.randint(np.iinfo(np.int32).max)
        try:
            with config_context(assume_finite=True):  # __init__ has checked
                estimator.partial_fit(given.pop("X"), **given)
        finally:
            if self._seed is not None:
                estimator.random_state = self._seed


def _loops_over_rows(estimator: Any) -> bool:
    """Return whether one partial_fit() makes many steps over its rows, in an order of its own.

    For such estimators few calls are best: each call costs about a millisecond. The MiniBatch
    family makes one step a call.
    """
    takes_one_step = any(base.__name__.startswith("MiniBatch") for base in type(estimator).__mro__)
    return hasattr(estimator, "shuffle") and not takes_one_step
