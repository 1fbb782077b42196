"""Input of linear models: rows in memory or in files, on which the ranks of a job agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, get_tags
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from malt._core_import import linear_decisions
from malt._data.chunks import Chunks, Survey
from malt._errors import ConfigError
from malt._job import joining
from malt._linear.agreed_data import All, Here, Same, agree
from malt._linear.newton_products import decisions
from malt._linear.row_sources import canonical, examples_of
from malt._linear.rows_in_memory import Given
from malt._pool import forked
from malt._training.estimator import Estimator

Array = npt.NDArray[Any]

# Training reads such arrays in place; others are converted.
_READS: dict[str, Any] = {
    "accept_sparse": "csr",
    "dtype": [np.float64, np.float32],
    "order": "C",
}
_MOST_FEATURES = 2**31 - 1  # for any type of a sparse matrix's indices
# Parameters that may differ from rank to rank.
LARGEST = 1e50  # of C, alpha, 1 / alpha, targets and weights
_OWN_SETTINGS = ("n_jobs", "random_state", "verbose")


class LinearInput(Estimator):
    """The part of an estimator that reads X and y, and decides; it sets n_features_in_."""

    n_features_in_: int
    coef_: Any  # an array, or as sparsify() made it
    intercept_: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _rows(self, X: Any, *, reset: bool) -> Any:
        return _within_limits(canonical(validate_data(self, X, reset=reset, **_READS)))

    def _insist_on_finite(self, X: Any) -> None:
        assert_all_finite(
            X.data if sparse.issparse(X) else X,
            estimator_name=type(self).__name__,
            input_name="X",
        )

    def _weights(self, dtype: Any) -> Array:
        coef = self.coef_
        coef = np.atleast_2d(coef.toarray() if sparse.issparse(coef) else coef)
        weights = np.empty((coef.shape[1] + 1, coef.shape[0]), dtype)
        weights[:-1] = coef.T
        weights[-1] = self.intercept_
        return weights

    def _decide(self, X: Any) -> Array:
        check_is_fitted(self)
        X = self._rows(X, reset=False)
        weights = self._weights(X.dtype)
        if self.coef_.dtype == np.float64 and X.dtype == np.float32:  # float32 was too coarse
            values = decisions(X, self._weights(np.float64))
        else:
            values = linear_decisions(examples_of(X), weights, weights.shape[1])
        return values.ravel() if values.shape[1] == 1 else values

    def _rows_and_targets(self, X: Any, y: Any, *, reset: bool, finite: bool) -> tuple[Any, Array]:
        is_numeric = isinstance(self, RegressorMixin)
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            y_numeric=is_numeric,
            multi_output=get_tags(self).target_tags.multi_output,
            ensure_all_finite=finite,
            **_READS,
        )
        return _within_limits(canonical(X)), y

    def _take(
        self,
        call: str,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        reset: bool,
        classes: Array | None = None,
        same: tuple[Same, ...] = (),
        finite: bool = True,
    ) -> tuple[Given, Given, Given | None, All]:
        """Return all given rows, those to train on, and those held out. Collective.

        `same`: other arrays that must be the same on all ranks. `finite`: whether X is searched for
        values that are not.
        """

        def take() -> tuple[tuple[Given, Given, Given | None], Here]:
            rows, targets = self._rows_and_targets(X, y, reset=reset, finite=finite)
            labels = self._labels(targets, classes)
            weights = None
            if sample_weight is not None:
                weights = _check_sample_weight(
                    sample_weight, rows, dtype=rows.dtype, ensure_non_negative=True
                )
                _check_sizes("sample_weight", weights, rows.dtype)
            if labels is None:
                _check_sizes("y", targets, rows.dtype)
            given = Given(rows, targets, weights)
            training, held_out = given, None
            if getattr(self, "early_stopping", False):
                training, held_out = given.split(
                    self.validation_fraction,
                    self.random_state,
                    stratified=isinstance(self, ClassifierMixin),
                )
            here = Here(
                rows.shape[0], rows.shape[1], rows.dtype.name, labels, self._common_settings(), same
            )
            return (given, training, held_out), here

        taken, everywhere = agree(f"{type(self).__name__}.{call}()", take)
        return *taken, everywhere

    def _common_settings(self) -> dict[str, str]:
        """Return the parameters that must be the same on all ranks."""
        parameters = self.get_params(deep=False).items()
        return {name: repr(value) for name, value in parameters if name not in _OWN_SETTINGS}

    def _labels(self, y: Array, classes: Array | None) -> Array | None:  # noqa: ARG002
        """Return a classifier's labels, sorted; `classes`, if they are known."""
        return None

    def _look(
        self,
        call: str,
        chunks: Chunks,
        y: Any,
        sample_weight: Any,
        *,
        labels: bool,
        same: tuple[Same, ...] = (),
    ) -> tuple[list[Survey], All]:
        """Survey what each rank of `ranks`, or this rank of the job, will read. Collective."""
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(f"{name} is given beside malt.data.Chunks, which have their own")
        if getattr(self, "early_stopping", False):
            raise ValueError(
                "early_stopping=True holds rows out of X, which malt.data.Chunks do not fit into "
                "memory for: leave it out, and score the model on other files"
            )
        call = f"{type(self).__name__}.{call}()"
        if self.ranks is None or self.ranks == 1:
            joining.company()  # joins the job that this process was started for
            surveys = [chunks.survey(call, labels=labels)]
        else:
            surveys = forked.run(self.ranks, lambda: chunks.survey(call, labels=labels))
        if not surveys[0].has_targets:
            raise ConfigError(
                "malt.data.Chunks have no targets: label= names the column that is one"
            )
        chunks.zero_based = surveys[0].zero_based
        chunks.bad = sum(one.bad for one in surveys)
        chunks.bad_lines = tuple(line for one in surveys for line in one.bad_lines)
        rows, features = sum(one.rows for one in surveys), surveys[0].features
        known = np.unique(np.concatenate([one.labels for one in surveys])) if labels else None
        here = Here(rows, features, chunks.dtype.name, known, self._common_settings(), same)
        _, everywhere = agree(call, lambda: (None, here))
        self.n_features_in_ = features
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return surveys, everywhere


def _check_sizes(name: str, values: Array, dtype: np.dtype[Any]) -> None:
    """Refuse values whose squares, in sums with others of their size, would overflow the dtype."""
    most = min(LARGEST, math.sqrt(np.finfo(dtype).max) / 10)
    largest = float(np.abs(values).max(initial=0))
    if largest > most:
        raise ValueError(f"{name} has {largest:g}; it must be at most {most:.2g}: scale it down")


def _within_limits(X: Any) -> Any:
    if X.shape[1] > _MOST_FEATURES:
        raise ValueError(
            f"X has {X.shape[1]} features; a linear model takes at most {_MOST_FEATURES}: hash "
            "them into fewer (sklearn.feature_extraction.FeatureHasher)"
        )
    return X
