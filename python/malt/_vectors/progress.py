"""A step of several exchanges, each of which is made once though the step is repeated."""

from __future__ import annotations

from typing import NamedTuple

from malt._core_import import AVG, Fold, Vector
from malt._mistakes import missed
from malt._vectors.averaging import Averaging


class _Count(NamedTuple):
    allreduces: int
    scatters: int
    gathers: int


class Progress:
    """How far this rank is in a step.

    An exception (a time limit, or one out of a signal handler) may end a step between two of its
    exchanges, or right after one. For the other ranks those that have counted are over: when the
    step is repeated, it goes on behind them. To be made before the step's first exchange, and kept
    until the step has ended.
    """

    def __init__(self) -> None:
        self._begun: dict[Vector, _Count] = {}

    def has_exchanged(self, vector: Vector) -> bool:
        """Return whether this step's exchange of the vector is over on this rank."""
        begun = self._begun.get(vector)
        if begun is None:
            return False
        now = _count(vector)
        return now.allreduces > begun.allreduces or now.gathers > begun.gathers

    def exchange(self, averaging: Averaging, vector: Vector, fold: Fold = AVG) -> None:
        """Fold the other ranks' values into the vector, unless this step has."""
        if averaging.is_exact:
            self.allreduce(vector, fold)
            return
        begun = self._begun.setdefault(vector, _count(vector))
        missed.note_exchange(vector)
        if _count(vector).scatters == begun.scatters:
            vector.scatter()
        if _count(vector).gathers == begun.gathers:
            vector.gather(fold, staleness=averaging.staleness)

    def allreduce(self, vector: Vector, fold: Fold = AVG, *, last: bool = False) -> None:
        """Fold the vectors of all ranks, unless this step has."""
        begun = self._begun.setdefault(vector, _count(vector))
        if _count(vector).allreduces == begun.allreduces:
            missed.note_exchange(vector)
            vector.allreduce(fold, last=last)


def _count(vector: Vector) -> _Count:
    uses = vector.uses
    return _Count(uses.allreduces, uses.scatters, uses.gathers)
