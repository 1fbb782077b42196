"""The base of the classifiers: labels, class weights, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.linear_model._base import SparseCoefMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from malt._linear.agreed_data import All
from malt._linear.input import LinearInput
from malt._linear.trainer import add_up

Array = npt.NDArray[Any]


class Classifier(ClassifierMixin, SparseCoefMixin, LinearInput):
    """A classifier with one output for two classes, else one output for each class."""

    classes_: Array

    def _learn_classes(self, everywhere: All, *, again: bool) -> None:
        """Set classes_; `again`: training goes on with those of before."""
        classes = everywhere.labels
        assert classes is not None
        if len(classes) < 2:
            raise ValueError(
                f"The number of classes has to be greater than one; got {len(classes)} class"
            )
        if again and not np.array_equal(self.classes_, classes):
            raise ValueError(
                f"warm_start goes on with the classes {self.classes_}; y has {classes}"
            )
        self.classes_ = classes

    @property
    def _outputs(self) -> int:
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def _check_class_weight(self, given: str) -> None:
        if self.class_weight == "balanced":
            raise ValueError(
                f"class_weight='balanced' takes all of y; for {given} compute the weights "
                "beforehand: class_weight=dict(...)"
            )

    def decision_function(self, X: Any) -> Array:
        """Return X @ coef_.T + intercept_: (rows,) for two classes, else (rows, classes)."""
        return self._decide(X)

    def predict(self, X: Any) -> Array:
        """Return the likeliest label of each row."""
        check_is_fitted(self)
        labels: Array = self.classes_[winners(self._decide(X))]
        return labels

    def _targets(self, y: Array) -> Array:
        if len(self.classes_) == 2:
            signs: Array = 2 * (y == self.classes_[1]).astype(np.int8) - 1
            return signs
        return np.searchsorted(self.classes_, y)

    @property
    def _is_multinomial(self) -> bool:
        return False

    @property
    def _weighs_outputs(self) -> bool:
        """Whether class weights apply to outputs: in one-vs-rest, to each one's positive rows.

        scikit-learn does the same.
        """
        return len(self.classes_) > 2 and not self._is_multinomial

    def _class_weights(self, y: Array, weights: Array | None = None) -> Array | None:
        """Return the weight of each class; "balanced" adds up all ranks' `weights` or rows.

        "balanced" is collective. A class whose rows all have the weight 0 gets 0.
        """
        if self.class_weight is None:
            return None
        if self.class_weight != "balanced":
            given: Array = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
            return given
        numbers = np.searchsorted(self.classes_, y)
        counts = np.bincount(numbers, weights, len(self.classes_)).astype(np.float64)
        add_up(counts)
        balanced: Array = np.divide(
            counts.sum(), len(counts) * counts, out=np.zeros_like(counts), where=counts > 0
        )
        return balanced

    def _weigh(self, y: Array, weights: Array | None, by_class: Array | None) -> Array | None:
        if by_class is None or self._weighs_outputs:
            return weights
        of_rows: Array = by_class[np.searchsorted(self.classes_, y)]
        return of_rows if weights is None else of_rows * weights

    def _of_outputs(self, by_class: Array | None) -> Sequence[float]:
        return () if by_class is None or not self._weighs_outputs else by_class.tolist()

    def _labels(self, y: Array, classes: Array | None) -> Array | None:
        check_classification_targets(y)
        known = np.unique(y)
        if classes is None:
            return known
        strange = known[~np.isin(known, classes)]
        if len(strange):
            raise ValueError(f"y has the labels {strange}, which are not in {classes}")
        return classes

    def _probabilities(self, X: Any, loss: str) -> Array:
        values = self._decide(X)
        if loss == "softmax" and values.ndim == 2:
            grown = np.exp(values - values.max(1, keepdims=True))
            shares: Array = grown / grown.sum(1, keepdims=True)
            return shares
        positive = expit(values) if loss != "modified_huber" else (np.clip(values, -1, 1) + 1) / 2
        if positive.ndim == 1:
            return np.column_stack([1 - positive, positive])
        sums = positive.sum(1, keepdims=True)  # each class was trained against the rest
        nobody = np.full_like(positive, 1 / positive.shape[1])
        return np.where(sums > 0, positive / np.where(sums > 0, sums, 1), nobody)


def winners(values: Array) -> Array:
    return (values > 0).astype(np.intp) if values.ndim == 1 else values.argmax(1)
