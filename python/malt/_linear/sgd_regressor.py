"""scikit-learn's SGDRegressor, trained by MALT's kernels, on one rank or many."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin

from malt._arguments import choose
from malt._core_import import Graph, linear_decisions
from malt._data.chunks import Chunks
from malt._linear.row_sources import Source, Streamed, examples_of
from malt._linear.rows_in_memory import Given
from malt._linear.sgd import SGDModel, Start
from malt._linear.trainer import Arrays, Stopping
from malt._training.all_or_nothing import all_or_nothing

Array = npt.NDArray[Any]

_LOSSES = ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive")


class SGDRegressor(RegressorMixin, SGDModel):
    """scikit-learn's SGDRegressor, by MALT's kernels, on one rank or many.

    Parameters are scikit-learn's (sklearn.linear_model.SGDRegressor), with the same defaults,
    except for learning_rate; verbose, ranks, graph, staleness, every and exchange are as in
    malt.learn.SGDClassifier.

    Args:
        learning_rate: also "adagrad"; not "adaptive", "pa1" or "pa2".

    Attributes:
        coef_: (features,).
        intercept_: (1,).
        n_iter_: the number of passes made.
        t_: the number of steps made by a rank, plus 1.
        history_: as in malt.learn.SGDClassifier.
    """

    def __init__(
        self,
        loss: str = "squared_error",
        *,
        penalty: str | None = "l2",
        alpha: float = 0.0001,
        l1_ratio: float | None = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        verbose: int | bool | None = None,
        epsilon: float = 0.1,
        random_state: Any = None,
        learning_rate: str = "invscaling",
        eta0: float = 0.01,
        power_t: float = 0.25,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        average: bool | int = False,
        ranks: int | None = None,
        graph: Graph | None = None,
        staleness: int | None = 0,
        every: int | None = None,
        exchange: str = "model",
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.verbose = verbose
        self.epsilon = epsilon
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.average = average
        self.ranks = ranks
        self.graph = graph
        self.staleness = staleness
        self.every = every
        self.exchange = exchange

    def _check_parameters(self) -> None:
        choose("loss", self.loss, _LOSSES)
        super()._check_parameters()

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any = None,
        coef_init: Any = None,
        intercept_init: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        """Train from the start; with warm_start, continue where the last training ended.

        Args:
            X: (rows, features), as for malt.learn.SGDClassifier.fit().
            y: (rows,), numbers.
            coef_init: weights to begin with, of the shape of coef_, or None.
            intercept_init: the intercept to begin with, or None.
            sample_weight: (rows,), the weight of each row's loss, or None.

        Raises:
            ValueError: a parameter or the data cannot be used, or training has diverged.
            malt.ConfigError: this happened on another rank of the job, which the message names.
        """
        self._check_parameters()
        start = Start.of(coef_init, intercept_init)
        again = self.warm_start and hasattr(self, "coef_")
        self.t_ = 1.0
        if isinstance(X, Chunks):
            surveys, _ = self._look("fit", X, y, sample_weight, labels=False, same=start.same())
            self._begin(X.dtype, 1, again=again)
            shares: list[Source] = [Streamed(X, survey, _unweighted) for survey in surveys]
            held_out = None
        else:
            _, training, held_out, _ = self._take(
                "fit", X, y, sample_weight, reset=True, same=start.same()
            )
            self._begin(training.X.dtype, 1, again=again)
            shares = self._shares(*training)
        start.fill(self._arrays.weights)
        self._train(shares, self._stopping(), held_out)
        return self

    @all_or_nothing
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train one more pass; X, y and sample_weight as for fit()."""
        self._check_parameters_of_pass()
        first = not hasattr(self, "coef_")
        given, *_ = self._take("partial_fit", X, y, sample_weight, reset=first)
        self._begin(given.X.dtype, 1, again=not first)
        self._train(self._shares(*given), Stopping(1))
        return self

    def predict(self, X: Any) -> Array:
        """Return X @ coef_ + intercept_: (rows,)."""
        return self._decide(X)

    def _show(self, arrays: Arrays) -> None:
        super()._show(arrays)
        self.coef_ = self.coef_[0]

    def _score(self, weights: Array, held_out: Given) -> float:
        """Return R squared as score() does, which raises if training has diverged."""
        values = linear_decisions(examples_of(held_out.X), weights).ravel()
        mean = np.average(held_out.y, weights=held_out.weights)
        left, all_there_is = (
            float(np.average((held_out.y - guess) ** 2, weights=held_out.weights))
            for guess in (values, mean)
        )
        return 1 - left / all_there_is if all_there_is > 0 else float(left == 0)


def _unweighted(y: Array) -> tuple[Array, None]:
    return y, None
