"""Logistic regression and support vector machines with C, and with no rate to tune."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from malt._core_import import Graph
from malt._linear.classifiers import Classifier
from malt._training.parameters import choose, number

Array = npt.NDArray[Any]


class _Regularised(Classifier):
    """A classifier with a loss, a penalty by C, and averaged AdaGrad steps that need no tuning."""

    learning_rate = "adagrad"
    penalty: str | None = "elasticnet"
    epsilon = 0.0
    eta0 = 0.1
    power_t = 0.0
    shuffle = True
    early_stopping = False
    _patience = 5
    average = True
    exchange = "model"
    _restarts_average = True

    @property
    def _loss(self) -> str:
        return "log_loss"

    @property
    def _is_multinomial(self) -> bool:
        return self._loss == "log_loss" and len(self.classes_) > 2

    def _check_parameters(self) -> None:
        number("C", self.C, 0, above=True)
        number("l1_ratio", self.l1_ratio, 0, most=1)
        self._check_common()

    def _kernel(self, rows: int) -> dict[str, Any]:
        return {
            "loss": "softmax" if self._is_multinomial else self._loss,
            "alpha": 1 / (self.C * rows),
            "l1_ratio": float(self.l1_ratio),
            "learning_rate": self.learning_rate,
            "eta0": self.eta0,
            "intercept": bool(self.fit_intercept),
        }


_DOC = """

    fit() minimises C times the sum of the losses plus the penalty, as scikit-learn's class of this
    name does. It uses averaged SGD with AdaGrad's rates (Duchi et al., JMLR 2011), which comes
    close to the minimum in some ten passes, but not to its last digit. Early steps are far from the
    minimum, so the average starts anew whenever the number of passes is a power of two. The
    intercept is not penalised; that is so in scikit-learn's LogisticRegression too, but not in its
    LinearSVC.

    Args:
        C: the weight of the losses against the penalty; above 0.
        l1_ratio: the share of L1 in the penalty, from 0 (L2 alone) to 1.
        tol: fit() stops when five passes in a row each lower the mean loss plus the penalty by less
            than this, and warns (ConvergenceWarning) if max_iter passes did not suffice. None: it
            makes max_iter passes.
        n_jobs, verbose, ranks, graph, sync, every: as in malt.SGDClassifier.
        fit_intercept, max_iter, class_weight, random_state, warm_start: as in scikit-learn.

    The attributes are those of malt.SGDClassifier."""


class LogisticRegression(_Regularised):
    """Logistic regression, multinomial for more than two classes."""

    def __init__(
        self,
        *,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        tol: float | None = 1e-4,
        fit_intercept: bool = True,
        class_weight: Any = None,
        random_state: Any = None,
        max_iter: int = 100,
        verbose: int | bool | None = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        ranks: int | None = None,
        graph: Graph | None = None,
        sync: str = "bsp",
        every: int | None = None,
    ) -> None:
        self.C = C
        self.l1_ratio = l1_ratio
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.ranks = ranks
        self.graph = graph
        self.sync = sync
        self.every = every

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class: (rows, classes)."""
        check_is_fitted(self)
        return self._probabilities(X, "softmax" if len(self.classes_) > 2 else "log_loss")

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of predict_proba()."""
        return np.log(self.predict_proba(X))


class LinearSVC(_Regularised):
    """A linear support vector machine; with more than two classes, each against the rest."""

    def __init__(
        self,
        *,
        loss: str = "squared_hinge",
        C: float = 1.0,
        l1_ratio: float = 0.0,
        tol: float | None = 1e-4,
        fit_intercept: bool = True,
        class_weight: Any = None,
        random_state: Any = None,
        max_iter: int = 100,
        verbose: int | bool | None = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        ranks: int | None = None,
        graph: Graph | None = None,
        sync: str = "bsp",
        every: int | None = None,
    ) -> None:
        self.loss = loss
        self.C = C
        self.l1_ratio = l1_ratio
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.ranks = ranks
        self.graph = graph
        self.sync = sync
        self.every = every

    @property
    def _loss(self) -> str:
        return self.loss

    def _check_parameters(self) -> None:
        choose("loss", self.loss, ("hinge", "squared_hinge"))
        super()._check_parameters()


for _kind in (LogisticRegression, LinearSVC):
    _kind.__doc__ = f"{_kind.__doc__}{_DOC}"
