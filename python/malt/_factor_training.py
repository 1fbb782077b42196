"""Training a matrix factorisation, alone or with the other ranks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from malt import _job, _vectors
from malt._core_import import RatingBlocks, Vector, available_bytes
from malt._errors import ConfigError
from malt._factors import Exchange, Factors, Floats, Sums, aligned_zeros, scales_of, summed, sums
from malt._ratings import Ratings
from malt._together import Report, Together

_LEAST_BANDS = 8
_SPREAD = 0.1  # standard deviation of a factor before its first step
# In Exchange's rule. That of a bias is 1, of factors less. On MovieLens-100K a quarter is as good
# as training on one rank, but with 6 ranks at a rate of 0.05 it grew without bound; 1 lags behind.
_CURVATURE = 0.5


class Settings(NamedTuple):
    """As the parameters of MatrixFactorization; the same on all ranks."""

    n_factors: int
    n_epochs: int
    lr: float
    reg: float
    decay: float
    biased: bool
    implicit: bool
    alpha: float
    negatives: int
    every: int | None

    def check(self) -> None:
        """Raise ConfigError for what cannot be."""
        for name in ("n_factors", "n_epochs"):
            check_whole(name, getattr(self, name), least=1)
        check_whole("negatives", self.negatives, least=0)
        if self.every is not None:
            check_whole("every", self.every, least=1)
        for name in ("lr", "reg", "decay", "alpha"):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value!r}; it is a finite number of at least 0")
        for name in ("biased", "implicit"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it is True or False")
        if self.lr == 0:
            raise ConfigError("lr is 0, with which nothing is learnt; it is above 0")


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise ConfigError unless it is an integer of at least that."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; it is a whole number of at least {least}")


class Model(NamedTuple):
    """What is learnt; biases are empty where there are none."""

    user_factors: Floats
    item_factors: Floats
    user_biases: Floats
    item_biases: Floats
    mean: float

    @property
    def shape(self) -> tuple[int, int]:
        """Users and items."""
        return len(self.user_factors), len(self.item_factors)


class Part(NamedTuple):
    """This rank's ratings, and what the ranks have agreed on."""

    ratings: Ratings
    shape: tuple[int, int]
    mean: float
    longest: int  # ratings of the rank that has most
    bands: int
    seed: int

    def empty_model(self, settings: Settings) -> Model:
        """Of which nothing is learnt yet."""
        rows = [np.zeros((n, settings.n_factors), np.float32) for n in self.shape]
        biases = [np.zeros(n if settings.biased else 0, np.float32) for n in self.shape]
        return Model(rows[0], rows[1], biases[0], biases[1], self.mean)


def agree(
    call: str,
    look: Callable[[], tuple[Ratings, tuple[int, int]]],
    settings: Settings,
    threads: Any,
    seed: Callable[[], int],
) -> Part:
    """Check what every rank was given, and agree on the rest. Collective in a job.

    Args:
        call: for messages.
        look: the checked ratings, and the shape that they need.
        settings: which may still be wrong.
        threads: likewise.
        seed: drawn where everything else is right.

    Raises:
        ConfigError: on every rank, if something is wrong on any.
    """

    def report() -> tuple[Ratings, Report]:
        settings.check()
        check_whole("threads", threads, least=1)
        ratings, shape = look()
        _check_room(shape, settings)
        return ratings, {
            "shape": [int(n) for n in shape],
            "size": len(ratings.values),
            "sum": float(ratings.values.sum(dtype=np.float64)),
            "bands": max(_LEAST_BANDS, 2 * int(threads)),
            "seed": seed(),
            "settings": [value if value is None else float(value) for value in settings],
        }

    if ranks() == 1:
        ratings, mine = report()
        reports = {0: mine}
    else:
        ratings, reports = Together(call, None).step("look", report)
    everyone = list(reports.values())
    for at, name in enumerate(Settings._fields):
        values = [each["settings"][at] for each in everyone]
        if len(set(values)) > 1:
            found = dict(zip(reports, values, strict=True))
            raise ConfigError(f"{call}: the ranks disagree about {name}, by rank {found}")
    users, items = (max(each["shape"][axis] for each in everyone) for axis in (0, 1))
    mean = sum(each["sum"] for each in everyone) / sum(each["size"] for each in everyone)
    return Part(
        ratings,
        (users, items),
        mean if settings.biased and not settings.implicit else 0.0,
        max(each["size"] for each in everyone),
        min(max(each["bands"] for each in everyone), RatingBlocks.most_bands),
        everyone[0]["seed"],
    )


def _check_room(shape: tuple[int, int], settings: Settings) -> None:
    """Raise ConfigError if the factors, and a copy to train, do not fit into memory."""
    needed = 2 * 4 * Factors.elements(shape, settings.n_factors, settings.biased)
    free = available_bytes()
    if needed > free:
        raise ConfigError(
            f"{shape[0]} users and {shape[1]} items with {settings.n_factors} factors need "
            f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; ids need not be far apart: "
            "np.unique(ids, return_inverse=True)"
        )


def ranks() -> int:
    """Of the job; 1 without one."""
    try:
        return _job.current().size
    except ConfigError:
        return 1


def train(
    model: Model, part: Part, settings: Settings, epochs: range, threads: int
) -> tuple[Model, list[float]]:
    """Train these epochs, counted since the model's first. Collective in a job.

    Returns:
        The model, and by epoch the root of the mean of squared errors, each before its step.

    Raises:
        ConfigError: an error became infinite.
    """
    blocks = RatingBlocks(
        *part.ratings,
        user_count=part.shape[0],
        item_count=part.shape[1],
        bands=part.bands,
        seed=part.seed,
    )
    losses = []
    with contextlib.ExitStack() as stack:
        factors, exchange = _set_up(stack, model, part, settings, epochs.start)
        of_all = None if exchange is None else stack.enter_context(contextlib.closing(sums(2)))
        drawn = settings.negatives if settings.implicit else 0
        for epoch in epochs:
            done = np.array(
                [
                    _train_epoch(factors, exchange, blocks, part, settings, epoch, threads),
                    len(blocks) * (1 + drawn),
                ]
            )
            squares, count = done if of_all is None else summed(of_all, done)
            losses.append(math.sqrt(squares / count))
            if not math.isfinite(losses[-1]):
                raise ConfigError(
                    f"the factors grew without bound in epoch {epoch}: lr={settings.lr} is too "
                    "large for these ratings; lower it, or scale the ratings down"
                )
        users, items, user_biases, item_biases = (
            array.copy() for array in (*factors.rows, *factors.biases)
        )
    return Model(users, items, user_biases, item_biases, model.mean), losses


def _set_up(
    stack: contextlib.ExitStack, model: Model, part: Part, settings: Settings, first_epoch: int
) -> tuple[Factors, Exchange | None]:
    """The model where it is trained, and in a job what exchanges it."""
    elements = Factors.elements(part.shape, settings.n_factors, settings.biased)
    users, items = _weights(part, settings)
    vector: Vector | None = None
    if ranks() == 1:
        memory, seen = aligned_zeros(elements), (users > 0, items > 0)
    else:
        vector = stack.enter_context(contextlib.closing(_vectors.vector((elements,))))
        memory = vector.array
        h = settings.lr * (_CURVATURE + settings.reg) * _rounds(part, settings) / part.bands
        scales, seen = scales_of((h * users, h * items))
    factors = Factors(memory, part.shape, settings.n_factors, settings.biased)
    for mine, given in zip((*factors.rows, *factors.biases), model[:4], strict=True):
        mine[:] = given
    factors.wake(seen, _SPREAD, [part.seed, first_epoch])
    return factors, None if vector is None else Exchange(factors, vector, scales)


def _weights(part: Part, settings: Settings) -> tuple[Sums, Sums]:
    """By user and by item: the confidences of its ratings in an epoch, the drawn ones included."""
    of_rating, drawn = None, 0
    if settings.implicit:
        of_rating, drawn = 1 + settings.alpha * part.ratings.values, settings.negatives
    by_user = np.bincount(part.ratings.users, of_rating, part.shape[0])
    by_item = np.bincount(part.ratings.items, of_rating, part.shape[1])
    draws = drawn * np.bincount(part.ratings.users, None, part.shape[0])
    return by_user + 1.0 * draws, by_item + draws.sum() / part.shape[1]


def _rounds(part: Part, settings: Settings) -> int:
    """From one exchange to the next."""
    if settings.every is None:
        return part.bands
    return min(max(round(settings.every * part.bands / part.longest), 1), part.bands)


def _train_epoch(
    factors: Factors,
    exchange: Exchange | None,
    blocks: RatingBlocks,
    part: Part,
    settings: Settings,
    epoch: int,
    threads: int,
) -> float:
    """Returns the sum of squared errors, of this rank."""
    rounds = _rounds(part, settings)
    squares = 0.0
    for start in range(0, part.bands, rounds):
        squares += factors.train(
            blocks,
            mean=part.mean,
            lr=settings.lr / (1 + settings.decay * epoch),
            reg=settings.reg,
            implicit=(settings.alpha, settings.negatives) if settings.implicit else None,
            first=epoch * part.bands + start,
            rounds=min(rounds, part.bands - start),
            threads=threads,
        )
        if exchange is not None:
            exchange()
    return squares
