"""Logistic regression and support vector machines, solved to a known gap."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from malt._arguments import choose
from malt._data.chunks import Chunks
from malt._linear.classifier import Classifier
from malt._linear.exact_estimator import ExactModel, Output, check_penalty
from malt._linear.lbfgs import SMOOTH_LOSSES
from malt._linear.problems import Problem
from malt._linear.row_sources import Source, Streamed
from malt._training.all_or_nothing import all_or_nothing

Array = npt.NDArray[Any]


class _ExactClassifier(Classifier, ExactModel):
    """A classifier with C that is solved to a known gap."""

    @property
    def _loss(self) -> str:
        return "log_loss"

    @property
    def _is_multinomial(self) -> bool:
        return self._loss == "log_loss" and len(self.classes_) > 2

    def _check_parameters(self) -> None:
        check_penalty("C", self.C, "1e6")
        self._check_exact()

    def _problem(self) -> Problem:
        loss = "softmax" if self._is_multinomial else self._loss
        return Problem(loss, float(self.C), bool(self.fit_intercept))

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Find the minimum; with warm_start, start from the last one.

        Args:
            X: (rows, features), an array or a SciPy sparse matrix; read in place if it is of
                float32 or float64, C-contiguous or CSR. In a job of several ranks, this rank's
                rows. Or malt.data.Chunks: each rank reads its part of the files again in each pass.
            y: (rows,), the labels; of malt.data.Chunks they come from the files.
            sample_weight: (rows,), the weight of each row's loss, or None.

        Raises:
            ValueError: a parameter or the data cannot be used.
            malt.ConfigError: this happened on another rank of the job, which the message names.
        """
        self._check_parameters()
        again = self.warm_start and hasattr(self, "coef_")
        if isinstance(X, Chunks):
            self._fit_chunks(X, y, sample_weight, again=again)
            self._show()
            return self
        given, everywhere = self._take_rows(X, y, sample_weight)
        self._learn_classes(everywhere, again=again)
        by_class = self._class_weights(given.y, given.weights)
        weights = self._weigh(given.y, given.weights, by_class)
        targets = self._targets(given.y)
        if self._is_multinomial:
            self._insist_on_finite(given.X)
            self._solve_softmax(given.X, Output(targets, weights), self._outputs)
            self._show()
            return self
        of_outputs = self._of_outputs(by_class)

        def output(k: int) -> Output:
            if self._outputs == 1:
                return Output(targets, weights)
            own = targets == k
            weighed = weights
            if of_outputs:
                factors = np.where(own, of_outputs[k], 1.0)
                weighed = factors if weights is None else weights * factors
            return Output(2 * own.astype(np.int8) - 1, weighed)

        self._solve_dual(given.X, self._outputs, output)
        self._show()
        return self

    def _show(self) -> None:
        """Give the attributes the types that they have in scikit-learn's class."""

    def _fit_chunks(self, chunks: Chunks, y: Any, sample_weight: Any, *, again: bool) -> None:
        self._check_class_weight("malt.data.Chunks")
        if self._loss not in SMOOTH_LOSSES:
            raise ValueError(
                f"loss={self._loss!r} has kinks, and its minimum cannot be found over "
                "malt.data.Chunks: take loss='squared_hinge', or malt.learn.SGDClassifier, or load "
                "all rows (malt.load_data without chunk_rows)"
            )
        surveys, everywhere = self._look("fit", chunks, y, sample_weight, labels=True)
        self._learn_classes(everywhere, again=again)
        by_class = self._class_weights(self.classes_)
        sources: list[Source] = [
            Streamed(chunks, survey, lambda y: (self._targets(y), self._weigh(y, None, by_class)))
            for survey in surveys
        ]
        self._solve_streamed(sources, self._outputs, chunks.dtype, self._of_outputs(by_class))


_DOC = """

    fit() minimises |w|^2 / 2 + C * the sum of the losses, as scikit-learn's class of this name
    does, until the objective is known to be within `tol` times itself of the minimum. The minimum
    is the same on any number of ranks. The intercept is not penalised; that is so in scikit-learn's
    LogisticRegression too, but not in its LinearSVC.

    The minimum is found by Newton's method, by ascent in the dual problem
    (src/learn/dual_ascent.hpp), which Newton's method or an interior point method may end, or over
    malt.data.Chunks by L-BFGS.

    Args:
        C: the weight of the losses against the penalty; above 0.
        tol: the largest gap, as a share of the objective.
        max_iter: the most passes over the rows. If they do not suffice, fit() warns
            (ConvergenceWarning) and says what gap was reached.
        warm_start: fit() starts from what the last fit() found, for the same rows; for instance for
            a sequence of Cs. The estimator then keeps one number for each row and output.
        verbose: whether to write a line to standard error whenever the gap has been measured.
        ranks: the most processes that fit() starts and ends, which share X in memory; fewer where X
            is so small that starting them takes longer than they save. None: one. In a job of
            several ranks leave it out: each gives its own rows.
        fit_intercept, class_weight, random_state: as in scikit-learn.

    Attributes:
        coef_, intercept_, classes_: as in scikit-learn.
        n_iter_: passes over the rows, the most of any output, rounded up (history_ has fractions,
            as some passes leave rows out); in LogisticRegression an array of one number.
        objective_: the objective at coef_, summed over the outputs.
        dual_gap_: the objective is at most so far above the minimum. For multinomial problems and
            malt.data.Chunks the intercept's share is an estimate.
        history_: each measured gap: a structured array of output, passes, objective, gap and time
            (seconds since 1970)."""


_OTHER_PENALTY = "the penalty is L2; for another take malt.learn.SGDClassifier(penalty=...)"
_INSTEAD = {
    "dual": "leave it out; the way is chosen by the data",
    "intercept_scaling": "leave it out; the intercept is not penalised",
}


class LogisticRegression(_ExactClassifier):
    """Logistic regression, multinomial for more than two classes."""

    _instead: ClassVar[dict[str, str]] = {
        **_INSTEAD,
        "penalty": _OTHER_PENALTY,
        "l1_ratio": _OTHER_PENALTY,
        "solver": "leave it out; the way is chosen by the data, and `tol` sets the precision",
        "n_jobs": "`ranks` is the number of processes",
        "multi_class": "leave it out; sklearn.multiclass.OneVsRestClassifier(malt."
        "LogisticRegression()) takes each class against the rest",
    }

    def __init__(
        self,
        *,
        C: float = 1.0,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        class_weight: Any = None,
        random_state: Any = None,
        max_iter: int = 1000,
        verbose: int | bool = False,
        warm_start: bool = False,
        ranks: int | None = None,
    ) -> None:
        self.C = C
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.ranks = ranks

    def _show(self) -> None:
        self.n_iter_ = np.array([self.n_iter_], np.int32)
        if self._is_multinomial:  # a number added to all intercepts changes no probability
            self.intercept_ -= self.intercept_.mean()

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class: (rows, classes)."""
        check_is_fitted(self)
        return self._probabilities(X, "softmax" if len(self.classes_) > 2 else "log_loss")

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of predict_proba()."""
        return np.log(self.predict_proba(X))


class LinearSVC(_ExactClassifier):
    """A linear support vector machine; with more than two classes, each against the rest."""

    _instead: ClassVar[dict[str, str]] = {
        **_INSTEAD,
        "penalty": _OTHER_PENALTY,
        "multi_class": "leave it out; each class is taken against the rest",
    }

    def __init__(
        self,
        *,
        loss: str = "squared_hinge",
        C: float = 1.0,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        class_weight: Any = None,
        random_state: Any = None,
        max_iter: int = 1000,
        verbose: int | bool = False,
        warm_start: bool = False,
        ranks: int | None = None,
    ) -> None:
        self.loss = loss
        self.C = C
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.ranks = ranks

    def _show(self) -> None:
        if not self.fit_intercept:
            self.intercept_ = 0.0

    @property
    def _loss(self) -> str:
        return self.loss

    def _check_parameters(self) -> None:
        choose("loss", self.loss, ("hinge", "squared_hinge"))
        super()._check_parameters()


for _kind in (LogisticRegression, LinearSVC):
    _kind.__doc__ = f"{_kind.__doc__}{_DOC}"
