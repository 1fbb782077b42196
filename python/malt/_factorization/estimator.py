"""malt.learn.MatrixFactorization, an estimator in the manner of scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from malt._arguments import whole
from malt._core_import import Graph, predict_ratings
from malt._errors import ConfigError
from malt._factorization import trainer as training
from malt._factorization.factors import Floats
from malt._factorization.ratings import Ratings, as_pairs, as_ratings, as_shape, placed
from malt._factorization.settings import FactorizationSettings
from malt._job import job as jobs
from malt._job import joining
from malt._partition import Partition
from malt._pool import forked, starting
from malt._training.estimator import Estimator
from malt._training.progress import Progress
from malt._training.steps import Step, history_of
from malt._vectors.averaging import Averaging


class MatrixFactorization(Estimator):
    """Predicts a rating as mean + user bias + item bias + user's factors . item's factors, by SGD.

    Minimises the squared errors plus, for each rating, `reg` times the squares of the biases and
    factors that predict it (Koren, Bell, Volinsky, "Matrix factorization techniques for recommender
    systems", Computer 2009). With `implicit`, ratings count how often a user chose an item: the
    model predicts a preference, 1 for pairs that have a rating, weighted by 1 + alpha * rating, and
    0 for other pairs, of which `negatives` are drawn for each rating (Hu, Koren, Volinsky, ICDM
    2008).

    In a job fit() and partial_fit() are collective: each rank gives ratings of its own, and all get
    the same model. Results are better if all ratings of a user are on one rank, as they are with
    `ranks`.

    Args:
        n_factors: the rank of the factorisation. Multiples of 16 waste no memory.
        passes: passes of fit() over the ratings.
        lr: the learning rate; in pass t, from 0, it is lr / (1 + decay * t).
        reg: strength of the L2 penalty, biases included.
        decay: of the learning rate; 0 keeps it constant.
        biased: whether there are biases, and a mean if the ratings are not implicit.
        implicit: ratings are signs of preference, all above 0.
        alpha: confidence that a rating of 1 adds, if implicit.
        negatives: pairs drawn for each rating, if implicit.
        shape: (users, items) of the model; None: as large as the ids of the first call need (or the
            sparse matrix's shape).
        threads: of this rank. Any number up to 4 gives the same bits.
        every: ratings that a rank trains on from one exchange with the others to the next, rounded
            to eighths of a pass and at most one; None: a pass.
        ranks: processes that fit() and partial_fit() start and end, which share the ratings; None:
            one. In a job of several ranks leave it out: each gives its own ratings.
        graph: which ranks send to which; None: malt.ALL.
        staleness: how many exchanges late an update may be; 0: all ranks wait for one another at
            every exchange (BSP); None: no rank waits.
        partition: of a matrix of users x items: what malt.data.partition returned. A rank trains
            on the ratings of its part's users, of those it is given. With graph=None and
            staleness=0 the ranks then exchange only the rows that several of them have ratings of;
            the others are sent at the end, and are lost with a rank that dies before.
        verbose: whether tqdm shows a progress bar; None: if standard error is a terminal.
        random_state: for the first factors and the order of the ratings; a job uses rank 0's.

    Attributes:
        user_factors_: float32, of shape (users, n_factors). A user without ratings has zeros.
        item_factors_: float32, of shape (items, n_factors). An item without ratings has zeros.
        user_biases_: float32, one for each user; empty if not biased.
        item_biases_: float32, one for each item; empty if not biased.
        mean_: of all ranks' ratings; 0 if implicit or not biased.
        loss_curve_: for each pass the root of the mean squared error over its ratings, each
            measured before its step (implicit: weighted, drawn pairs included); with staleness=None
            over one rank's own ratings (here rank 0's).
        n_iter_: passes trained so far.
        history_: what each rank trained here did in the last call, as in
            malt.learn.SGDClassifier; the loss is the root of the mean squared error between two
            exchanges.
    """

    def __init__(
        self,
        n_factors: int = 32,
        passes: int = 20,
        *,
        lr: float = 0.02,
        reg: float = 0.08,
        decay: float = 0.05,
        biased: bool = True,
        implicit: bool = False,
        alpha: float = 1.0,
        negatives: int = 1,
        shape: tuple[int, int] | None = None,
        threads: int = 1,
        every: int | None = None,
        ranks: int | None = None,
        graph: Graph | None = None,
        staleness: int | None = 0,
        partition: Partition | None = None,
        verbose: int | bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_factors = n_factors
        self.passes = passes
        self.lr = lr
        self.reg = reg
        self.decay = decay
        self.biased = biased
        self.implicit = implicit
        self.alpha = alpha
        self.negatives = negatives
        self.shape = shape
        self.threads = threads
        self.every = every
        self.ranks = ranks
        self.graph = graph
        self.staleness = staleness
        self.partition = partition
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> MatrixFactorization:
        """Train from the start. Collective in a job.

        Args:
            X: a SciPy sparse matrix, users x items, whose stored elements are the ratings; or three
                arrays (users, items, ratings); or pairs (user, item) of shape (n, 2), with y. Ids
                are integers from 0.
            y: the pairs' ratings.

        Raises:
            ConfigError: (a ValueError) no ratings, wrong ids, ratings that are not finite, a wrong
                parameter, or steps so large that the factors grow without bound. In a job it is
                raised on every rank, and names the rank concerned.
        """
        settings = self._settings()
        part = self._agree("fit", X, y, settings)
        self._train(part.empty_model(settings), part, settings, range(self.passes))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> MatrixFactorization:
        """Train one pass on these ratings. Collective in a job.

        Args:
            X: as for fit(). The model has the shape, and the mean, of the first call.
            y: as for fit().

        Raises:
            ConfigError: as fit(), or a user or an item is beyond the model's shape.
        """
        settings = self._settings()
        if not hasattr(self, "user_factors_"):
            part = self._agree("partial_fit", X, y, settings)
            self._train(part.empty_model(settings), part, settings, range(1))
            return self
        model = self._model()
        settings = settings._replace(
            n_factors=model.user_factors.shape[1], biased=len(model.user_biases) > 0
        )
        part = self._agree("partial_fit", X, y, settings, model.shape)._replace(mean=model.mean)
        self._train(model, part, settings, range(self.n_iter_, self.n_iter_ + 1))
        return self

    def predict(self, users: Any, items: Any = None) -> Floats:
        """Return the ratings (implicit: preferences) that the model expects, float32, one a pair.

        Args:
            users: ids; or pairs (user, item) of shape (n, 2), without `items`.
            items: as many ids. If one of the two is a single id, it goes with all of the other.

        Raises:
            ConfigError: a user or an item is beyond the model's shape.
        """
        check_is_fitted(self)
        model = self._model()
        pair_users, pair_items = as_pairs(users, items)
        return predict_ratings(*model[:4], mean=model.mean, users=pair_users, items=pair_items)

    def rmse(self, X: Any, y: Any = None) -> float:
        """Return the root of the mean squared error over these ratings, given as for fit().

        Raises:
            ConfigError: the model is of implicit ratings, which it does not predict.
        """
        check_is_fitted(self)
        if self.implicit:
            raise ConfigError(
                "with implicit=True predict() gives preferences, not ratings: measure how it ranks "
                "the items of a user"
            )
        ratings = as_ratings(X, y)
        errors = self.predict(ratings.users, ratings.items) - ratings.values.astype(np.float64)
        return math.sqrt(np.mean(errors**2))

    def score(self, X: Any, y: Any = None) -> float:
        """Return -rmse(X, y): higher is better, as scikit-learn's searches expect."""
        return -self.rmse(X, y)

    def _settings(self) -> FactorizationSettings:
        return FactorizationSettings(
            *(getattr(self, name) for name in FactorizationSettings._fields)
        )

    def _agree(
        self,
        call: str,
        X: Any,
        y: Any,
        settings: FactorizationSettings,
        known: tuple[int, int] | None = None,
    ) -> training.RatingsPart:
        def look() -> tuple[Ratings, tuple[int, int]]:
            Averaging(self.graph, self.staleness)
            if self.ranks is not None:
                whole("ranks", self.ranks, 1)
                starting.check_ranks(self.ranks)
            ratings = self._of_this_rank(as_ratings(X, y))
            if self.implicit and ratings.values.min() <= 0:
                raise ConfigError(
                    f"a rating is {ratings.values.min()}; with implicit=True they count how often "
                    "something was chosen, and are above 0"
                )
            given = self.shape or (X.shape if hasattr(X, "tocoo") else None)
            return ratings, as_shape(ratings, known or given)

        def seed() -> int:
            return int(check_random_state(self.random_state).randint(2**31 - 1))

        name = f"MatrixFactorization.{call}"
        return training.agree(name, look, settings, self.threads, seed, self.partition)

    def _of_this_rank(self, ratings: Ratings) -> Ratings:
        """Check the partition, and return the ratings of this rank's users.

        With `ranks`, these are all.
        """
        if self.partition is None:
            return ratings
        if self.ranks is not None:
            return placed(ratings, self.partition, self.ranks, None)
        job = joining.company()
        rank, size = (0, 1) if job is None else (job.rank, job.size)
        return placed(ratings, self.partition, size, rank)

    def _model(self) -> training.FactorModel:
        return training.FactorModel(
            self.user_factors_,
            self.item_factors_,
            self.user_biases_,
            self.item_biases_,
            self.mean_,
        )

    def _train(
        self,
        model: training.FactorModel,
        part: training.RatingsPart,
        settings: FactorizationSettings,
        passes: range,
    ) -> None:
        averaging = Averaging(self.graph, self.staleness)
        ranks = self.ranks or 1
        if self.partition is None:
            ranks = min(ranks, len(np.unique(part.ratings.users)))
        if ranks > 1:
            part, share = part.divided(ranks)
        with Progress(self.verbose, ranks, part.longest * len(passes)) as progress:

            def train(part: training.RatingsPart, rank: int) -> training.TrainedFactors:
                watch = progress.of(rank)
                run = training.Run(averaging, self.threads, watch, self._is_asked_to_stop)
                return training.train(model, part, settings, passes, run)

            if ranks == 1:
                trained = train(part, 0)
                histories = [trained.history]
            else:
                trained, histories = _train_forked(ranks, lambda n: train(share(n), n), progress)
        self._show(trained.model)
        self.history_ = history_of(histories)
        before = getattr(self, "loss_curve_", [])[: passes.start]
        self.loss_curve_: list[float] = [*before, *trained.losses]
        self.n_iter_ = len(self.loss_curve_)

    def _show(self, model: training.FactorModel) -> None:
        self.user_factors_, self.item_factors_ = model.user_factors, model.item_factors
        self.user_biases_, self.item_biases_ = model.user_biases, model.item_biases
        self.mean_ = model.mean

    # The command line overrides this, to end training in good order at Ctrl-C.
    @staticmethod
    def _is_asked_to_stop() -> bool:
        return False


def _train_forked(
    ranks: int,
    train: Callable[[int], training.TrainedFactors],
    progress: Progress,
) -> tuple[training.TrainedFactors, list[list[Step]]]:
    """Train by ranks forked here, which read the ratings in place; return each one's history."""

    def work() -> tuple[training.TrainedFactors | None, list[Step]]:
        rank = jobs.rank()
        trained = train(rank)
        return (trained if rank == 0 else None), trained.history

    found = forked.run(ranks, work, progress.show)
    trained = found[0][0]
    assert trained is not None
    return trained, [history for _, history in found]
