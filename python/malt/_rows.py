"""The rows that a scikit-learn estimator is given, checked before any rank trains on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing, check_array, check_random_state, get_tags, indexable
from sklearn.utils.validation import _num_samples, assert_all_finite

from malt._errors import ConfigError
from malt._learnt import Array


class Rows:
    """A shard or a batch, checked.

    Raises:
        ValueError: in scikit-learn's words: no rows, NaN, infinity, or lengths that differ.
    """

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any) -> None:
        tags = get_tags(estimator)
        if y is None and tags.target_tags.required:
            raise ConfigError(
                f"{type(estimator).__name__} requires y to be passed, but the target y is None"
            )
        finite: Any = "allow-nan" if tags.input_tags.allow_nan else True
        X, y, sample_weight = indexable(X, y, sample_weight)
        check_array(X, accept_sparse=True, ensure_all_finite=finite, estimator=estimator)
        if y is not None and np.asarray(y).dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        self.count: int = _num_samples(X)
        self._random = check_random_state(getattr(estimator, "random_state", None))
        self._columns = {"X": X, "y": y, "sample_weight": sample_weight}

    def permutation(self) -> Array:
        order: Array = self._random.permutation(self.count)
        return order

    def train(self, estimator: Any, classes: Any, at: Array | None = None) -> int:
        """Train on these rows, or on all; returns how many they are."""
        given = {
            name: column if at is None else _safe_indexing(column, at)
            for name, column in self._columns.items()
            if column is not None
        }
        if classes is not None:
            given["classes"] = classes
        estimator.partial_fit(given.pop("X"), **given)
        return self.count if at is None else len(at)
