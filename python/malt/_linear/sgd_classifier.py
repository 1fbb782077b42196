"""scikit-learn's SGDClassifier, trained by MALT's kernels, on one rank or many."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.metaestimators import available_if

from malt._arguments import choose
from malt._core_import import Graph, linear_decisions
from malt._data.chunks import Chunks
from malt._linear.agreed_data import All
from malt._linear.classifier import Classifier, winners
from malt._linear.row_sources import Source, Streamed, examples_of
from malt._linear.rows_in_memory import Given
from malt._linear.sgd import SGDModel, Start
from malt._linear.trainer import Stopping
from malt._training.all_or_nothing import all_or_nothing

Array = npt.NDArray[Any]

_LOSSES = (
    "hinge",
    "log_loss",
    "modified_huber",
    "squared_hinge",
    "perceptron",
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
)


def _has_probabilities(loss: str) -> bool:
    if loss in ("log_loss", "modified_huber"):
        return True
    raise AttributeError(
        f"probability estimates are not available for loss={loss!r}: take 'log_loss' or "
        "'modified_huber'"
    )


class SGDClassifier(Classifier, SGDModel):
    """scikit-learn's SGDClassifier, by MALT's kernels, on one rank or many.

    Parameters are scikit-learn's (sklearn.linear_model.SGDClassifier), with the same defaults,
    except for these:

    Args:
        learning_rate: also "adagrad" (Duchi et al., JMLR 2011); not "adaptive", "pa1" or "pa2".
        n_jobs: without effect: all outputs are trained in the same passes, by `ranks` processes.
        verbose: whether tqdm shows a progress bar; None: if standard error is a terminal.
        ranks: processes that fit() starts and ends, which share X in memory and average their
            models; None: one. In a job of several ranks leave it out: each gives its own rows.
        graph: which ranks send to which; None: malt.ALL.
        staleness: how many exchanges late an update may be; 0: all ranks wait for one another at
            every exchange (BSP); None: no rank waits, nor checks tol, so each makes max_iter
            passes.
        every: examples of a rank between two exchanges; None: a tenth of its pass.
        exchange: "model" (models are averaged: MLlib*, Zhang et al., ICDE 2019), "difference" (what
            each rank has learnt since the last exchange is summed: Petuum, Xing et al., KDD 2015),
            "gradient" (all ranks take one step by the mean over the batch of `every` examples of
            each rank) or "once" (each rank trains and stops alone, and the models are averaged at
            the end: Zinkevich et al., NIPS 2010).

    Attributes:
        coef_: (1, features) for two classes, else (classes, features).
        intercept_: (1,) or (classes,).
        classes_: the labels, sorted.
        n_iter_: the number of passes made; with exchange="once" the most of a rank trained here.
        t_: the number of steps made by a rank, plus 1.
        history_: what each rank trained here did from one exchange to the next: a structured array
            with rank, examples (so far), loss (mean), staleness, bytes_out (so far) and the times
            began, trained (and began to exchange) and ended, in seconds since 1970.
    """

    def __init__(
        self,
        loss: str = "hinge",
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
        n_jobs: int | None = None,
        random_state: Any = None,
        learning_rate: str = "optimal",
        eta0: float = 0.01,
        power_t: float = 0.5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        class_weight: Any = None,
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
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
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
            X: (rows, features), an array or a SciPy sparse matrix; read in place if it is of
                float32 or float64, C-contiguous or CSR. In a job of several ranks, this rank's
                rows. Or malt.data.Chunks: a first reading of the files finds labels and features,
                then each rank reads its part of the files again in each pass; y comes from the
                files.
            y: (rows,), the labels.
            coef_init: weights to begin with, of the shape of coef_, or None.
            intercept_init: intercepts to begin with, of the shape of intercept_, or None.
            sample_weight: (rows,), the weight of each row's loss, or None.

        Raises:
            ValueError: a parameter or the data cannot be used, or training has diverged.
            malt.ConfigError: this happened on another rank of the job, which the message names.
        """
        self._check_parameters()
        start = Start.of(coef_init, intercept_init)
        if isinstance(X, Chunks):
            self._check_class_weight("malt.data.Chunks")
            surveys, everywhere = self._look(
                "fit", X, y, sample_weight, labels=True, same=start.same()
            )
            self._start(everywhere, X.dtype)
            by_class = self._class_weights(self.classes_)
            shares: list[Source] = [
                Streamed(X, survey, lambda y: (self._targets(y), self._weigh(y, None, by_class)))
                for survey in surveys
            ]
            held_out = None
        else:
            given, training, held_out, everywhere = self._take(
                "fit", X, y, sample_weight, reset=True, same=start.same()
            )
            self._start(everywhere, given.X.dtype)
            by_class = self._class_weights(given.y)
            shares = self._weighed_shares(training, by_class)
        start.fill(self._arrays.weights)
        self._train(shares, self._stopping(), held_out, self._of_outputs(by_class))
        return self

    def _start(self, everywhere: All, dtype: Any) -> None:
        again = self.warm_start and hasattr(self, "coef_")
        self._learn_classes(everywhere, again=again)
        self.t_ = 1.0
        self._begin(dtype, self._outputs, again=again)

    def _weighed_shares(self, given: Given, by_class: Array | None) -> list[Source]:
        weights = self._weigh(given.y, given.weights, by_class)
        return self._shares(given.X, self._targets(given.y), weights)

    def _score(self, weights: Array, held_out: Given) -> float:
        values = linear_decisions(examples_of(held_out.X), weights, weights.shape[1])
        found = winners(values.ravel() if values.shape[1] == 1 else values)
        return float(np.average(self.classes_[found] == held_out.y, weights=held_out.weights))

    @all_or_nothing
    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        """Train one more pass. The first call takes the `classes` of all calls.

        Args:
            X: as for fit().
            y: as for fit().
            classes: the labels of all calls.
            sample_weight: as for fit().
        """
        self._check_parameters_of_pass()
        first = not hasattr(self, "coef_")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if classes is not None:
            classes = np.unique(classes)
            if not first and not np.array_equal(self.classes_, classes):
                raise ValueError(
                    f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                    f"{self.classes_!r}"
                )
        self._check_class_weight("partial_fit")
        given, *_, everywhere = self._take(
            "partial_fit",
            X,
            y,
            sample_weight,
            reset=first,
            classes=classes if first else self.classes_,
        )
        if first:
            self.classes_ = np.asarray(everywhere.labels)
        self._begin(given.X.dtype, self._outputs, again=not first)
        by_class = self._class_weights(given.y)
        shares = self._weighed_shares(given, by_class)
        self._train(shares, Stopping(1), class_weights=self._of_outputs(by_class))
        return self

    @available_if(lambda self: _has_probabilities(self.loss))
    def predict_proba(self, X: Any) -> Array:
        """Return probabilities, (rows, classes); only for loss "log_loss" or "modified_huber"."""
        return self._probabilities(X, self.loss)

    @available_if(lambda self: _has_probabilities(self.loss))
    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of predict_proba()."""
        return np.log(self._probabilities(X, self.loss))
