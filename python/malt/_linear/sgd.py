"""The base of the models trained by SGD: their parameters, and training on ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model._base import SparseCoefMixin
from sklearn.utils import check_array, check_random_state

from malt._arguments import choose, number, whole
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._linear.agreed_data import Same, digest
from malt._linear.input import LinearInput
from malt._linear.row_sources import InMemory, Source, examples_of, weight_of
from malt._linear.rows_in_memory import Given
from malt._linear.trainer import Arrays, ExchangePlan, Stopping, Trained, Trainer
from malt._pool import forked, starting
from malt._training.progress import Progress
from malt._training.steps import history_of
from malt._vectors.averaging import Averaging

Array = npt.NDArray[Any]

_RATES = ("optimal", "invscaling", "constant", "adagrad")

# Trains arrays as the given rank.
_Part = Callable[[Arrays, int], Trained]


class Start(NamedTuple):
    """Weights to begin with, in scikit-learn's shapes; None: zeros, or those of warm_start."""

    coef: Array | None
    intercept: Array | None

    @classmethod
    def of(cls, coef_init: Any, intercept_init: Any) -> Start:
        def checked(given: Any) -> Array | None:
            if given is None:
                return None
            found: Array = check_array(np.atleast_1d(given), ensure_2d=False, dtype=np.float64)
            return found

        return cls(checked(coef_init), checked(intercept_init))

    def same(self) -> tuple[Same, ...]:
        """Return what all ranks must give alike."""
        remedy = "give all ranks the same weights to begin with"
        return (
            Same("coef_init", digest(self.coef), remedy),
            Same("intercept_init", digest(self.intercept), remedy),
        )

    def fill(self, weights: Array) -> None:
        """Put the given weights into those to train, (features + 1, outputs)."""
        for name, part, given in (
            ("coef_init", weights[:-1].T, self.coef),
            ("intercept_init", weights[-1], self.intercept),
        ):
            if given is None:
                continue
            if given.size != part.size or (given.ndim == 2 and given.shape != part.shape):
                raise ValueError(
                    f"Provided {name} does not match dataset: its shape is {given.shape}, and that "
                    f"of the model's is {part.shape}"
                )
            part[:] = given.reshape(part.shape)


class SGDModel(SparseCoefMixin, LinearInput):
    """The base of the models trained by SGD. Derived classes have the targets and losses."""

    n_iter_: int
    t_: float
    history_: Array
    _arrays: Arrays
    _average_from: int  # the first step that is averaged

    def _kernel(self) -> dict[str, Any]:
        l1_ratio = {"l2": 0.0, "l1": 1.0, "elasticnet": self.l1_ratio, None: 0.0}[self.penalty]
        return {
            "loss": self.loss,
            "epsilon": float(self.epsilon),
            "alpha": float(self.alpha if self.penalty is not None else 0.0),
            "l1_ratio": float(l1_ratio),
            "learning_rate": self.learning_rate,
            "eta0": float(self.eta0),
            "power_t": float(self.power_t),
            "intercept": bool(self.fit_intercept),
        }

    def _check_parameters(self) -> None:
        choose("penalty", self.penalty, ("l2", "l1", "elasticnet", None))
        choose("learning_rate", self.learning_rate, _RATES)
        number("alpha", self.alpha, 0)
        if self.l1_ratio is not None or self.penalty == "elasticnet":
            number("l1_ratio", self.l1_ratio, 0, most=1)
        number("epsilon", self.epsilon, 0)
        number("power_t", self.power_t, -np.inf)
        if self.learning_rate == "optimal":
            if self.alpha == 0 or self.penalty is None:
                raise ValueError(
                    f"alpha is {self.alpha} and penalty {self.penalty!r}; learning_rate='optimal' "
                    "divides by the penalty's weight: take a penalty with an alpha above 0, or "
                    "another rate"
                )
        else:
            number("eta0", self.eta0, 0, above=True)
        if not isinstance(self.early_stopping, (bool, np.bool_)):
            raise ConfigError(f"early_stopping is {self.early_stopping!r}; it is True or False")
        whole("n_iter_no_change", self.n_iter_no_change, 1)
        number("validation_fraction", self.validation_fraction, 0, above=True, most=1)
        self._check_common()

    def _check_parameters_of_pass(self) -> None:
        """Check the parameters for partial_fit()."""
        self._check_parameters()
        if self.early_stopping:
            raise ValueError(
                "early_stopping should be False with partial_fit, which makes one pass; fit() "
                "holds rows out and stops"
            )

    def _check_common(self) -> None:
        whole("max_iter", self.max_iter, 1)
        if self.tol is not None:
            number("tol", self.tol, -np.inf)
        if self.ranks is not None:
            whole("ranks", self.ranks, 1)
            starting.check_ranks(int(self.ranks))
        if self.every is not None:
            whole("every", self.every, 1)
        choose("exchange", self.exchange, ("model", "difference", "gradient", "once"))
        Averaging(self.graph, self.staleness)

    # Training

    def _begin(self, dtype: Any, outputs: int, *, again: bool) -> None:
        """Make the arrays to train, as the parameters ask: new ones, or those of before.

        If t_ has been set to 1, the average begins anew too, from the values in coef_.
        """
        shape = self.n_features_in_ + 1, outputs
        if not again:
            self._arrays, self.t_ = Arrays(np.zeros(shape, dtype)), 1.0
        weights, average, squares = self._arrays.map(lambda array: array.astype(dtype))
        steps, asked = int(self.t_) - 1, max(1, int(self.average))
        goes_on = average is not None and asked <= self._average_from <= steps
        if again and not (goes_on and self.average):  # otherwise coef_ holds the average
            weights[:] = self._weights(dtype)
        if not goes_on:
            average, self._average_from = np.zeros(shape, dtype), max(asked, steps + 1)
        if squares is None:
            squares = np.zeros(shape, dtype)
        self._arrays = Arrays(
            weights,
            average if self.average else None,
            squares if self.learning_rate == "adagrad" else None,
        )

    def _shares(self, X: Any, targets: Array, weights: Array | None) -> list[Source]:
        """Return a source of rows for each rank that is trained here."""
        examples = examples_of(X, targets, weights)
        rows = X.shape[0]
        ranks = 1 if self.ranks is None else min(self.ranks, rows)
        ends = [rows * rank // ranks for rank in range(ranks + 1)]
        return [
            InMemory(
                examples,
                first,
                last,
                weight_of(last - first, None if weights is None else weights[first:last]),
            )
            for first, last in pairwise(ends)
        ]

    def _train(
        self,
        shares: list[Source],
        stopping: Stopping,
        held_out: Given | None = None,
        class_weights: Sequence[float] = (),
    ) -> None:
        arrays = self._arrays
        kernel = {
            **self._kernel(),
            "outputs": arrays.weights.shape[1],
            "class_weights": class_weights,
            "average_from": self._average_from,
        }
        seed = None
        if self.shuffle:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        exchange = ExchangePlan(Averaging(self.graph, self.staleness), self.every, self.exchange)
        score = None if held_out is None else lambda w: self._score(w, held_out)
        examples = stopping.passes * max(share.rows for share in shares)
        with Progress(self.verbose, len(shares), examples) as progress:

            def train(own: Arrays, rank: int) -> Trained:
                trainer = Trainer(
                    shares[rank],
                    own,
                    kernel,
                    steps=int(self.t_) - 1,
                    seed=seed,
                    exchange=exchange,
                    score=score,
                    watch=progress.of(rank),
                )
                return trainer.run(stopping)

            if len(shares) == 1:
                trained = [train(arrays, 0)]
            else:
                trained = self._train_forked(train, len(shares), progress)
        self.n_iter_ = max(one.passes for one in trained)
        self.t_ = float(trained[0].steps + 1)
        self.history_ = history_of([one.history for one in trained])
        self._show(self._arrays)
        if any(one.has_converged is False for one in trained):
            warnings.warn(
                f"max_iter={self.max_iter} passes were made before the loss had ceased to fall by "
                f"tol={self.tol}: raise max_iter, or scale the features",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _train_forked(self, train: _Part, ranks: int, progress: Progress) -> list[Trained]:
        """Train by ranks forked here, which read X in place."""

        def work() -> tuple[Trained, Arrays | None]:
            rank = jobs.rank()
            trained = train(self._arrays, rank)
            return trained, self._arrays if rank == 0 else None

        found = forked.run(ranks, work, progress.show)
        arrays = found[0][1]
        assert arrays is not None
        self._arrays = arrays
        return [trained for trained, _ in found]

    def _show(self, arrays: Arrays) -> None:
        """Set coef_ and intercept_, in scikit-learn's shapes."""
        best = arrays.weights if arrays.average is None else arrays.average
        self.coef_ = np.ascontiguousarray(best[:-1].T)
        self.intercept_ = best[-1].copy()

    def _score(self, weights: Array, held_out: Given) -> float:
        raise NotImplementedError

    # The command line overrides this, to end training in good order at Ctrl-C.
    @staticmethod
    def _is_asked_to_stop() -> bool:
        return False

    def _stopping(self) -> Stopping:
        tol = None if self.tol is None or self.tol == -np.inf else float(self.tol)
        return Stopping(
            self.max_iter,
            tol,
            int(self.n_iter_no_change),
            bool(self.early_stopping),
            self._is_asked_to_stop,
        )
