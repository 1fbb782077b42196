"""Ridge regression and support vector regression, solved to a known gap."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin

from malt._arguments import choose, number
from malt._data.chunks import Chunks
from malt._linear.exact_estimator import ExactModel, Output, check_penalty
from malt._linear.lbfgs import SMOOTH_LOSSES
from malt._linear.problems import Problem
from malt._linear.row_sources import Source, Streamed
from malt._training.all_or_nothing import all_or_nothing

Array = npt.NDArray[Any]


class _ExactRegressor(RegressorMixin, ExactModel):
    """A regression that is solved to a known gap."""

    def _check_parameters(self) -> None:
        self._check_exact()

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Find the minimum; with warm_start, start from the last one.

        Args:
            X: (rows, features), as for malt.learn.LogisticRegression.fit().
            y: (rows,), numbers; for malt.learn.Ridge also (rows, targets).
            sample_weight: (rows,), the weight of each row's loss, or None.

        Raises:
            ValueError: a parameter or the data cannot be used.
            malt.ConfigError: this happened on another rank of the job, which the message names.
        """
        self._check_parameters()
        if isinstance(X, Chunks):
            loss = self._problem().loss
            if loss not in SMOOTH_LOSSES:
                raise ValueError(
                    f"loss={loss!r} has kinks, and its minimum cannot be found over "
                    "malt.data.Chunks: take loss='squared_epsilon_insensitive', or "
                    "malt.learn.SGDRegressor, or load all rows (malt.load_data without chunk_rows)"
                )
            surveys, _ = self._look("fit", X, y, sample_weight, labels=False)
            sources: list[Source] = [Streamed(X, survey, lambda y: (y, None)) for survey in surveys]
            self._solve_streamed(sources, 1, X.dtype)
            self._show(is_flat=True)
            return self
        given, _ = self._take_rows(X, y, sample_weight)
        columns = given.y.reshape(given.X.shape[0], -1)
        self._solve_dual(given.X, columns.shape[1], lambda k: Output(columns[:, k], given.weights))
        self._show(is_flat=given.y.ndim == 1)
        return self

    def _show(self, *, is_flat: bool) -> None:  # noqa: ARG002
        """Give the attributes the types that they have in scikit-learn's class.

        `is_flat`: y has one dimension.
        """
        self.coef_ = self.coef_[0] if len(self.coef_) == 1 else self.coef_
        if not self.fit_intercept:
            self.intercept_ = 0.0

    def predict(self, X: Any) -> Array:
        """Return X @ coef_.T + intercept_: (rows,), or of several targets (rows, targets)."""
        return self._decide(X)


_DOC = """

    The minimum is found by Newton's method, by ascent in the dual problem
    (src/learn/dual_ascent.hpp), or over malt.data.Chunks by L-BFGS, until the objective is known
    to be within `tol` times itself of the minimum. It is the same on any number of ranks. The
    intercept is not penalised.

    Args:
{own}        tol, max_iter, warm_start, verbose, ranks, fit_intercept, random_state: as in
            malt.learn.LogisticRegression.

    Attributes:
{shapes}        objective_, dual_gap_, history_: as in malt.learn.LogisticRegression."""


class LinearSVR(_ExactRegressor):
    """Linear support vector regression: |w|^2 / 2 + C * the sum of the losses."""

    _instead: ClassVar[dict[str, str]] = {
        "dual": "leave it out; the way is chosen by the data",
        "intercept_scaling": "leave it out; the intercept is not penalised",
    }

    def __init__(
        self,
        *,
        epsilon: float = 0.0,
        loss: str = "epsilon_insensitive",
        C: float = 1.0,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        random_state: Any = None,
        max_iter: int = 1000,
        verbose: int | bool = False,
        warm_start: bool = False,
        ranks: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.loss = loss
        self.C = C
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.ranks = ranks

    def _problem(self) -> Problem:
        return Problem(self.loss, float(self.C), bool(self.fit_intercept), float(self.epsilon))

    def _check_parameters(self) -> None:
        choose("loss", self.loss, ("epsilon_insensitive", "squared_epsilon_insensitive"))
        check_penalty("C", self.C, "1e6")
        number("epsilon", self.epsilon, 0)
        super()._check_parameters()


class Ridge(_ExactRegressor):
    """Ridge regression: |y - X w - b|^2 + alpha * |w|^2, for each target."""

    _instead: ClassVar[dict[str, str]] = {
        "copy_X": "leave it out; X is never changed",
        "positive": "malt.learn.ElasticNet(alpha / rows, l1_ratio=0, positive=True) is the same",
        "solver": "leave it out; the way is chosen by the data, and `tol` sets the precision",
    }

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        tol: float = 1e-6,
        fit_intercept: bool = True,
        random_state: Any = None,
        max_iter: int = 1000,
        verbose: int | bool = False,
        warm_start: bool = False,
        ranks: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.random_state = random_state
        self.max_iter = max_iter
        self.verbose = verbose
        self.warm_start = warm_start
        self.ranks = ranks

    _easier = "raise alpha"

    def _problem(self) -> Problem:
        return Problem("squared_error", 1 / float(self.alpha), bool(self.fit_intercept))

    @property
    def _unit(self) -> float:
        return 2 * float(self.alpha)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _show(self, *, is_flat: bool) -> None:
        targets = len(self.coef_)
        super()._show(is_flat=is_flat)
        if not is_flat:
            self.n_iter_ = np.full(targets, self.n_iter_, np.int32)
        elif self.fit_intercept:
            self.intercept_ = self.intercept_[0]

    def _check_parameters(self) -> None:
        check_penalty("alpha", self.alpha, "1e-6")
        super()._check_parameters()


_OWN = {
    LinearSVR: (
        """        epsilon: the largest error that costs nothing; at least 0.
        loss: "epsilon_insensitive", or "squared_epsilon_insensitive".
        C: the weight of the losses against the penalty; above 0.
""",
        """        coef_: (features,).
        intercept_: (1,).
        n_iter_: passes over the rows, rounded up.
""",
    ),
    Ridge: (
        "        alpha: the weight of the penalty; above 0.\n",
        """        coef_: (features,); of several targets (targets, features).
        intercept_: a number, or (targets,) if y has two dimensions.
        n_iter_: passes over the rows, rounded up; (targets,) if y has two dimensions.
""",
    ),
}
for _kind, (_text, _shapes) in _OWN.items():
    _kind.__doc__ = f"{_kind.__doc__}{_DOC.format(own=_text, shapes=_shapes)}"
