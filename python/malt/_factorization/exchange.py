"""How the ranks combine the factors that each trains on its own ratings into one model.

Since the last exchange rank r has moved a row by d_r, over n_r ratings. The mean of the rows would
lose most of what a rank has learnt about a user that only this rank knows. The sum of the
differences (Petuum, Yahoo LDA) overshoots if a row has so many ratings that each rank alone goes
all the way to where they pull it. Both are limits of one rule. If n steps leave exp(-h n) of a
row's error, with h = rate * (curvature + l2), a rank goes p(n_r) = 1 - exp(-h n_r) of the way, and
all ranks' steps one after the other would go p(sum n_r) of it. So the row moves by

    sum d_r * p(sum n_r) / sum p(n_r)

This is the sum if ratings are few, a rank's own move if no other rank has ratings of the row, and
the mean if ratings are many.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._core_import import SUM, Vector
from malt._factorization.factors import Factors, Sums, summed, sums
from malt._job import job as jobs
from malt._vectors import vectors
from malt._vectors.averaging import Averaging

# The weight of a row without ratings here, compared with 1 for a row with many. Such a row should
# pass on what other ranks know of it, and not hold it back.
_RELAYED = 0.001


class Evidence:
    """h * n_r of all rows, users and then items, from one exchange to the next. Collective.

    Args:
        users: of this rank's users.
        items: of this rank's items.
    """

    def __init__(self, users: Sums, items: Sums) -> None:
        self._users = len(users)
        self.here = np.concatenate([users, items])
        with contextlib.closing(sums(3 * len(self.here))) as vector:
            all_three = summed(vector, np.concatenate([self.here, _way(self.here), self.here > 0]))
        self.everywhere, self.ways, self._ranks = np.split(all_three, 3)

    @property
    def seen(self) -> tuple[npt.NDArray[np.bool_], ...]:
        """By user, and by item, whether any rank has ratings of it."""
        return self.by_kind(self.everywhere > 0)

    @property
    def shared(self) -> tuple[npt.NDArray[np.bool_], ...]:
        """By user, and by item, whether two ranks or more have ratings of it."""
        return self.by_kind(self._ranks > 1)

    def by_kind(self, rows: Any) -> tuple[Any, Any]:
        """Split `rows` into those of the users and those of the items."""
        return rows[: self._users], rows[self._users :]


def _way(steps: Sums) -> Sums:
    """Return p of the module's rule."""
    way: Sums = -np.expm1(-steps)
    return way


class CollectiveExchange:
    """An exchange by all ranks at once, after which they have one model. Collective.

    Args:
        factors: the factors to train, in the vector's memory and the same on all ranks.
        vector: over that memory.
        evidence: for the rule.

    Attributes:
        ranks: the other ones in the last allreduce.
    """

    def __init__(self, factors: Factors, vector: Vector, evidence: Evidence) -> None:
        self._factors = factors
        self._vector = vector
        self.ranks: tuple[int, ...] = ()
        scales = np.ones(len(evidence.here), np.float32)
        seen = evidence.everywhere > 0
        scales[seen] = _way(evidence.everywhere[seen]) / evidence.ways[seen]
        self._scales = evidence.by_kind(scales)
        self._base = factors.memory.copy()  # the model of all ranks after the last exchange

    def __call__(self) -> tuple[int, int]:
        """Combine all ranks' differences; values that are no longer finite stay so.

        Returns:
            The oldest update's age, in exchanges, and the bytes sent so far.
        """
        factors = self._factors
        with np.errstate(over="ignore", invalid="ignore"):
            factors.memory -= self._base
            factors.multiply(self._scales)
            self.ranks = self._vector.allreduce(SUM).ranks
            factors.memory += self._base
        self._base[:] = factors.memory
        return 0, self._vector.stats().bytes_out

    def unite(self) -> int:
        """Give all ranks one model: nothing to do, they have it. Returns the bytes sent so far."""
        return self._vector.stats().bytes_out


class SharedRowsExchange(CollectiveExchange):
    """A collective exchange of the rows of which two ranks or more have ratings.

    The row of one rank is that rank's, by the module's rule. So it is enough to send it at the end.

    Args:
        factors: as for CollectiveExchange, and so are the others.
        vector: for the end.
        evidence: for the rule.
    """

    def __init__(self, factors: Factors, vector: Vector, evidence: Evidence) -> None:
        super().__init__(factors, vector, evidence)
        self._places = np.flatnonzero(factors.per_element(evidence.shared))
        self._shared_scales = factors.per_element(self._scales)[self._places]
        self._changes = vectors.vector((max(len(self._places), 1),))

    def __call__(self) -> tuple[int, int]:
        """Exchange the shared rows, and return the same values as CollectiveExchange."""
        memory, places = self._factors.memory, self._places
        changes = self._changes.array[: len(places)]
        with np.errstate(over="ignore", invalid="ignore"):
            changes[:] = (memory[places] - self._base[places]) * self._shared_scales
            self._changes.allreduce(SUM)
            self._base[places] += changes
        memory[places] = self._base[places]
        return 0, self._vector.stats().bytes_out + self._changes.stats().bytes_out

    def unite(self) -> int:
        """Exchange all rows. Returns the bytes sent so far."""
        super().__call__()
        return self._vector.stats().bytes_out + self._changes.stats().bytes_out

    def close(self) -> None:
        self._changes.close()


class Gossip:
    """An exchange over a graph, or without waiting for all: models differ, but are drawn together.

    A rank moves p(n) / p(n_r) times as far as its own ratings took it, where n counts the ratings
    of all ranks from which it receives: never beyond where the ratings pull, as p <= 1. Then a row
    becomes the mean of the rows that have arrived and its own, each weighted by its p(n_r). If each
    rank receives from all others, this is the module's rule. Rows are sent multiplied by their
    weights, together with the weights.

    Args:
        factors: the factors to train, at the beginning of the vector's memory and the same on all
            ranks.
        vector: over that memory, and behind it one number for each row.
        evidence: for the rule.
        averaging: over which graph, and how long one rank waits for another.

    Attributes:
        ranks: the other ones in the last allreduce.
    """

    def __init__(
        self, factors: Factors, vector: Vector, evidence: Evidence, averaging: Averaging
    ) -> None:
        self._factors = factors
        self._vector = vector
        self.ranks: tuple[int, ...] = ()
        self._averaging = averaging
        job = jobs.current()
        heard = len(averaging.graph.in_(job.rank, job.size)) / (job.size - 1)
        here = evidence.here
        near = here + heard * (evidence.everywhere - here)
        gains = np.ones(len(here), np.float32)
        gains[here > 0] = _way(near[here > 0]) / _way(here[here > 0])
        self._gains = evidence.by_kind(gains)
        self._weights = np.maximum(_way(here), _RELAYED).astype(np.float32)
        self._by_kind = evidence.by_kind
        self._total = vector.array[len(factors.memory) :]  # the sum of the weights
        self._base = factors.memory.copy()

    def __call__(self) -> tuple[int, int]:
        """Exchange, and return the same values as CollectiveExchange."""
        factors = self._factors
        with np.errstate(over="ignore", invalid="ignore"):
            factors.memory -= self._base
            factors.multiply(self._gains)
            factors.memory += self._base
            self._weigh()
            oldest = self._averaging.exchange(self._vector, SUM)
            self._divide()
        self._base[:] = factors.memory
        return oldest, self._vector.stats().bytes_out

    def unite(self) -> int:
        """Give all ranks the mean of their models. Returns the bytes sent so far. Collective."""
        self._weigh()
        self.ranks = self._vector.allreduce(SUM).ranks
        self._divide()
        return self._vector.stats().bytes_out

    def _weigh(self) -> None:
        self._factors.multiply(self._by_kind(self._weights))
        self._total[:] = self._weights

    def _divide(self) -> None:
        self._factors.multiply(self._by_kind(1 / self._total))


def vector_of(averaging: Averaging, elements: int, rows: int) -> Vector:
    """Make a vector; its memory begins with factors of `elements` and `rows`. Collective."""
    weights = 0 if averaging.is_exact else rows
    return vectors.vector((elements + weights,), graph=averaging.graph)


def exchange_of(
    averaging: Averaging, factors: Factors, vector: Vector, evidence: Evidence, *, is_placed: bool
) -> CollectiveExchange | Gossip:
    """Make the exchange for factors in a vector of `vector_of`.

    `is_placed`: a partition has placed the users. Collective.
    """
    if averaging.is_exact:
        kind = SharedRowsExchange if is_placed else CollectiveExchange
        return kind(factors, vector, evidence)
    return Gossip(factors, vector, evidence, averaging)
