"""How ranks make one model of the factors that each trains on ratings of its own.

Since the last exchange rank r has moved a row by d_r, over n_r ratings. To average rows would throw
away most of what a rank has learnt about a user whom it alone knows; to sum the differences
(Petuum, Yahoo LDA) overshoots where a row has so many ratings that each rank alone goes all the way
to where they pull it. Both are ends of one rule: if n steps leave exp(-h n) of a row's error, with
h = rate * (curvature + l2), a rank goes p(n_r) = 1 - exp(-h n_r) of the way, and all ranks' steps
one after the other would go p(sum n_r) of it. So the row moves by

    sum d_r * p(sum n_r) / sum p(n_r)

which is the sum where ratings are few, a rank's own move where no other has any, and the mean where
they are many.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._core_import import SUM, Vector
from malt._factorization.factors import Factors, Sums, summed, sums
from malt._job import job as jobs
from malt._job import vectors
from malt._job.averaging import Averaging

# What a row counts for that no rating has pulled here, beside 1 of one that many have: it is to
# hand on what others know of it, and not to hold it back.
_RELAYED = 0.001


class Evidence:
    """h * n_r of all rows, users and then items, from one exchange to the next. Collective.

    Args:
        users: of this rank's.
        items: likewise.
    """

    def __init__(self, users: Sums, items: Sums) -> None:
        self._users = len(users)
        self.here = np.concatenate([users, items])
        with contextlib.closing(sums(2 * len(self.here))) as vector:
            both = summed(vector, np.concatenate([self.here, _way(self.here)]))
        self.everywhere, self.ways = np.split(both, 2)

    @property
    def seen(self) -> tuple[npt.NDArray[np.bool_], ...]:
        """Which users, and which items, any rank has ratings of."""
        return self.by_kind(self.everywhere > 0)

    def by_kind(self, rows: Any) -> tuple[Any, Any]:
        """Of the users, and of the items."""
        return rows[: self._users], rows[self._users :]


def _way(steps: Sums) -> Sums:
    """What the module's rule calls p."""
    way: Sums = -np.expm1(-steps)
    return way


class Exchange:
    """By all ranks at once, after which they have one model. Collective.

    Args:
        factors: what is trained, in the vector's memory and the same on all ranks.
        vector: over that memory.
        evidence: for the rule.
    """

    def __init__(self, factors: Factors, vector: Vector, evidence: Evidence) -> None:
        self._factors = factors
        self._vector = vector
        scales = np.ones(len(evidence.here), np.float32)
        seen = evidence.everywhere > 0
        scales[seen] = _way(evidence.everywhere[seen]) / evidence.ways[seen]
        self._scales = evidence.by_kind(scales)
        self._base = factors.memory.copy()  # what all ranks have had since the last exchange

    def __call__(self) -> tuple[int, int]:
        """Bring all ranks' differences together; what is no longer finite stays so.

        Returns:
            How old the oldest update is, in exchanges, and the bytes sent so far.
        """
        factors = self._factors
        with np.errstate(over="ignore", invalid="ignore"):
            factors.memory -= self._base
            factors.multiply(self._scales)
            self._vector.allreduce(SUM)
            factors.memory += self._base
        self._base[:] = factors.memory
        return 0, self._vector.stats().bytes_out

    def unite(self) -> None:
        """Give all ranks one model: they have it."""


class Gossip:
    """Over a graph, or without waiting for all: models differ, and are drawn together.

    A rank goes p(n) / p(n_r) times as far as its own ratings took it, where n are those that all
    ranks it hears from have: never beyond where the ratings pull, as p <= 1. A row becomes the mean
    of those that have arrived and its own, each weighted by its p(n_r): if all ranks hear from one
    another, that is the module's rule. Rows are sent times their weights, with the weights.

    Args:
        factors: what is trained, at the beginning of the vector's memory and the same on all ranks.
        vector: over that memory, and as many numbers behind it as there are rows.
        evidence: for the rule.
        averaging: over which graph, and how long one waits.
    """

    def __init__(
        self, factors: Factors, vector: Vector, evidence: Evidence, averaging: Averaging
    ) -> None:
        self._factors = factors
        self._vector = vector
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
        self._total = vector.array[len(factors.memory) :]  # of the weights of what is summed
        self._base = factors.memory.copy()

    def __call__(self) -> tuple[int, int]:
        """As of Exchange."""
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

    def unite(self) -> None:
        """Give all ranks one model: the mean of theirs. Collective."""
        self._weigh()
        self._vector.allreduce(SUM)
        self._divide()

    def _weigh(self) -> None:
        self._factors.multiply(self._by_kind(self._weights))
        self._total[:] = self._weights

    def _divide(self) -> None:
        self._factors.multiply(self._by_kind(1 / self._total))


def vector_of(averaging: Averaging, elements: int, rows: int) -> Vector:
    """With memory for factors of so many elements and rows at its beginning. Collective."""
    weights = 0 if averaging.is_exact else rows
    return vectors.vector((elements + weights,), graph=averaging.graph)


def exchange_of(
    averaging: Averaging, factors: Factors, vector: Vector, evidence: Evidence
) -> Exchange | Gossip:
    """Of factors in a vector of `vector_of`."""
    if averaging.is_exact:
        return Exchange(factors, vector, evidence)
    return Gossip(factors, vector, evidence, averaging)
