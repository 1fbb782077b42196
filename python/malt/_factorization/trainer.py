"""Training a matrix factorisation, alone or with the other ranks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from malt._alike import check_alike
from malt._arguments import whole
from malt._core_import import RatingBlocks, Vector, available_bytes
from malt._errors import ConfigError
from malt._factorization.exchange import (
    CollectiveExchange,
    Evidence,
    Gossip,
    SharedRowsExchange,
    exchange_of,
    vector_of,
)
from malt._factorization.factors import Factors, Floats, Sums, aligned_zeros, summed, sums
from malt._factorization.ratings import Ratings
from malt._factorization.settings import FactorizationSettings
from malt._job import joining
from malt._job.agreement import Report, Together
from malt._partition import Partition
from malt._training.company import check_company
from malt._training.steps import Step
from malt._vectors.averaging import Averaging

_LEAST_BANDS = 8
_DEVIATION = 0.1  # standard deviation of a factor before its first step
# The curvature in the rule of exchange.py. A bias has curvature 1, factors have less. On
# MovieLens-100K 0.25 is as good as training on one rank, but with 6 ranks at a rate of 0.05 the
# factors grew without bound; 1 lags behind.
_CURVATURE = 0.5


class FactorModel(NamedTuple):
    """The learnt arrays; biases are empty if the model has none."""

    user_factors: Floats
    item_factors: Floats
    user_biases: Floats
    item_biases: Floats
    mean: float

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of users and items."""
        return len(self.user_factors), len(self.item_factors)


class RatingsPart(NamedTuple):
    """This rank's ratings, and the values on which the ranks have agreed."""

    ratings: Ratings
    shape: tuple[int, int]
    mean: float
    longest: int  # the ratings of the rank that has most
    bands: int
    seed: int
    partition: Partition | None = None  # that has placed the users

    def empty_model(self, settings: FactorizationSettings) -> FactorModel:
        """Return a model that has learnt nothing yet."""
        rows = [np.zeros((n, settings.n_factors), np.float32) for n in self.shape]
        biases = [np.zeros(n if settings.biased else 0, np.float32) for n in self.shape]
        return FactorModel(rows[0], rows[1], biases[0], biases[1], self.mean)

    def divided(self, ranks: int) -> tuple[RatingsPart, Callable[[int], RatingsPart]]:
        """Divide the ratings among `ranks`: users with ratings in turn, each with all ratings.

        A partition says which rank has a user.

        Returns:
            The whole, and a function that copies one rank's part out of it.
        """
        counts = np.bincount(self.ratings.users, minlength=self.shape[0])
        if self.partition is None:
            owners = (np.cumsum(counts > 0) - 1) % ranks
        else:
            owners = self.partition.rows
        whole = self._replace(longest=int(np.bincount(owners[self.ratings.users]).max()))

        def share(rank: int) -> RatingsPart:
            own = owners[self.ratings.users] == rank
            return whole._replace(ratings=Ratings(*(array[own] for array in self.ratings)))

        return whole, share


def agree(
    call: str,
    look: Callable[[], tuple[Ratings, tuple[int, int]]],
    settings: FactorizationSettings,
    threads: Any,
    seed: Callable[[], int],
    partition: Partition | None,
) -> RatingsPart:
    """Check what every rank was given, and agree on the rest. Collective in a job.

    Args:
        call: the name of the call, for messages.
        look: returns the checked ratings, and the shape that they need.
        settings: not checked yet.
        threads: not checked yet.
        seed: draws a seed, once everything else has been checked.
        partition: not checked yet; what `look` returned has this rank's users already.

    Raises:
        ConfigError: on every rank, if a check fails on any.
    """

    def report() -> tuple[Ratings, Report]:
        settings.check()
        whole("threads", threads, 1)
        ratings, shape = look()
        _check_room(shape, settings, partition)
        return ratings, {
            "shape": [int(n) for n in shape],
            "size": len(ratings.values),
            "sum": float(ratings.values.sum(dtype=np.float64)),
            "bands": max(_LEAST_BANDS, 2 * int(threads)),
            "seed": seed(),
            "partition": None if partition is None else partition.checksum,
            "settings": {
                name: value if value is None else float(value)
                for name, value in settings._asdict().items()
            },
        }

    if joining.company() is None:
        ratings, mine = report()
        reports = {0: mine}
    else:
        ratings, reports = Together(call, None).step("look", report)
    everyone = list(reports.values())
    check_alike(call, {rank: each["settings"] for rank, each in reports.items()})
    check_alike(
        call,
        {rank: {"the partition's checksum": each["partition"]} for rank, each in reports.items()},
        "give all ranks the same, made from the same matrix with the same seed",
    )
    users, items = (max(each["shape"][axis] for each in everyone) for axis in (0, 1))
    mean = sum(each["sum"] for each in everyone) / sum(each["size"] for each in everyone)
    return RatingsPart(
        ratings,
        (users, items),
        mean if settings.biased and not settings.implicit else 0.0,
        max(each["size"] for each in everyone),
        min(max(each["bands"] for each in everyone), RatingBlocks.most_bands),
        everyone[0]["seed"],
        partition,
    )


def _check_room(
    shape: tuple[int, int], settings: FactorizationSettings, partition: Partition | None
) -> None:
    """Raise ConfigError if the factors, and a copy to train, do not fit into memory.

    With a partition also what SharedRowsExchange takes: 8 bytes an element while it is made, and
    28 for each element of the items that several ranks have, as no users are.
    """
    needed = 2 * 4 * Factors.elements(shape, settings.n_factors, settings.biased)
    if partition is not None:
        are_all_drawn = settings.implicit and settings.negatives > 0
        items = shape[1] if are_all_drawn else min(shape[1], int(partition.shared.sum()))
        shared = 28 * Factors.elements((0, items), settings.n_factors, settings.biased)
        needed += max(needed, shared)
    free = available_bytes()
    if needed > free:
        raise ConfigError(
            f"{shape[0]} users and {shape[1]} items with {settings.n_factors} factors need "
            f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; ids need not be far apart: "
            "np.unique(ids, return_inverse=True)"
        )


class Run(NamedTuple):
    """How a rank trains: its exchanges, its threads, and the callbacks of its caller."""

    averaging: Averaging
    threads: int
    watch: Callable[[Step], object]
    is_asked: Callable[[], bool]  # whether to end after this pass, on any rank


class TrainedFactors(NamedTuple):
    """The result of a training."""

    model: FactorModel
    losses: list[float]  # by pass, the root of the mean squared error, each before its step
    history: list[Step]


def train(
    model: FactorModel, part: RatingsPart, settings: FactorizationSettings, passes: range, run: Run
) -> TrainedFactors:
    """Train these passes, counted since the model's first pass. Collective in a job.

    Raises:
        ConfigError: an error became infinite.
    """
    losses: list[float] = []
    with contextlib.ExitStack() as stack:
        rank = _RankTrainer(stack, model, part, settings, passes.start, run)
        for number in passes:
            squares, count, is_asked = rank.train_pass(number)
            losses.append(math.sqrt(squares / count))
            if not math.isfinite(losses[-1]):
                raise ConfigError(
                    f"the factors grew without bound in pass {number}: lr={settings.lr} is too "
                    "large for these ratings; lower it, or scale the ratings down"
                )
            if is_asked:
                break
        return TrainedFactors(rank.finish(model.mean), losses, rank.history)


class _RankTrainer:
    """This rank's ratings and factors, and the vectors with which it exchanges the factors."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        model: FactorModel,
        part: RatingsPart,
        settings: FactorizationSettings,
        first_pass: int,
        run: Run,
    ) -> None:
        """Prepare the training. Collective in a job."""
        self.history: list[Step] = []
        self._part, self._settings, self._run = part, settings, run
        self._blocks = RatingBlocks(
            *part.ratings,
            user_count=part.shape[0],
            item_count=part.shape[1],
            bands=part.bands,
            seed=part.seed,
        )
        self._drawn = settings.negatives if settings.implicit else 0
        self._rounds = _rounds(part, settings)
        self._exchange: CollectiveExchange | Gossip | None = None
        self._of_all: Vector | None = None
        averaging = run.averaging
        elements = Factors.elements(part.shape, settings.n_factors, settings.biased)
        users, items = _weights(part, settings)
        if joining.company() is None:
            self._factors = _at(aligned_zeros(elements), model, part, settings)
            self._factors.wake((users > 0, items > 0), _DEVIATION, [part.seed, first_pass])
            return
        vector = vector_of(averaging, elements, sum(part.shape))
        stack.enter_context(contextlib.closing(vector))
        if averaging.staleness is not None:
            self._of_all = stack.enter_context(contextlib.closing(sums(3)))
        h = settings.lr * (_CURVATURE + settings.reg) * self._rounds / part.bands
        evidence = Evidence(h * users, h * items)
        self._factors = _at(vector.array[:elements], model, part, settings)
        self._factors.wake(evidence.seen, _DEVIATION, [part.seed, first_pass])
        self._exchange = exchange_of(
            averaging, self._factors, vector, evidence, is_placed=part.partition is not None
        )
        if isinstance(self._exchange, SharedRowsExchange):
            stack.enter_context(contextlib.closing(self._exchange))

    def train_pass(self, number: int) -> tuple[float, float, float]:
        """Train; return the sum of squared errors, their number, and whether to end.

        These are of all ranks together; an asynchronous rank returns its own.
        """
        squares = 0.0
        for start in range(0, self._part.bands, self._rounds):
            squares += self._train_piece(number, start)
        count = len(self._blocks) * (1 + self._drawn)
        mine = np.array([squares, count, self._run.is_asked()])
        squares, count, is_asked = mine if self._of_all is None else summed(self._of_all, mine)
        return squares, count, is_asked

    def _train_piece(self, number: int, start: int) -> float:
        """Train rounds of a pass from `start` up to the next exchange; return squared errors."""
        part, settings = self._part, self._settings
        first = number * part.bands + start
        rounds = min(self._rounds, part.bands - start)
        began = time.time()
        squares = self._factors.train(
            self._blocks,
            mean=part.mean,
            lr=settings.lr / (1 + settings.decay * number),
            reg=settings.reg,
            implicit=(settings.alpha, settings.negatives) if settings.implicit else None,
            first=first,
            rounds=rounds,
            threads=self._run.threads,
        )
        trained = time.time()
        staleness, sent = (0, 0) if self._exchange is None else self._exchange()
        count = self._blocks.count(first=first, rounds=rounds)
        before = self.history[-1].examples if self.history else 0
        loss = math.sqrt(squares / max(1, count * (1 + self._drawn)))
        step = Step(before + count, loss, staleness, sent, began, trained, time.time())
        self.history.append(step)
        self._run.watch(step)
        return squares

    def finish(self, mean: float) -> FactorModel:
        """Return the model of all ranks. Collective in a job."""
        if self._exchange is not None:
            sent = self._exchange.unite()
            check_company(self._exchange.ranks)
            self.history[-1] = self.history[-1]._replace(bytes_out=sent)
        arrays = (*self._factors.rows, *self._factors.biases)
        users, items, user_biases, item_biases = (array.copy() for array in arrays)
        return FactorModel(users, items, user_biases, item_biases, mean)


def _at(
    memory: Floats, model: FactorModel, part: RatingsPart, settings: FactorizationSettings
) -> Factors:
    """Copy the model's factors into `memory`."""
    factors = Factors(memory, part.shape, settings.n_factors, settings.biased)
    for mine, given in zip((*factors.rows, *factors.biases), model[:4], strict=True):
        mine[:] = given
    return factors


def _weights(part: RatingsPart, settings: FactorizationSettings) -> tuple[Sums, Sums]:
    """Return by user and by item the confidences of its ratings in a pass, with drawn pairs."""
    of_rating, drawn = None, 0
    if settings.implicit:
        of_rating, drawn = 1 + settings.alpha * part.ratings.values, settings.negatives
    by_user = np.bincount(part.ratings.users, of_rating, part.shape[0])
    by_item = np.bincount(part.ratings.items, of_rating, part.shape[1])
    draws = drawn * np.bincount(part.ratings.users, None, part.shape[0])
    return by_user + 1.0 * draws, by_item + draws.sum() / part.shape[1]


def _rounds(part: RatingsPart, settings: FactorizationSettings) -> int:
    """Return the number of rounds from one exchange to the next."""
    if settings.every is None:
        return part.bands
    return min(max(round(settings.every * part.bands / part.longest), 1), part.bands)
