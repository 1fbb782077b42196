"""Sums over the ranks that solve one problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from malt._core_import import SUM
from malt._job.job import Job
from malt._training.company import check_company
from malt._vectors import vectors

Array = npt.NDArray[Any]


class RankLostError(Exception):
    """A rank has died since the last sum; `ranks` are left. All of them raise this together."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.ranks = ranks


class Sums:
    """Adds arrays of one length up over the ranks of a job, or does nothing in one process.

    Each sum also counts the ranks that took part, which tells all of them at once when one has
    died: its part is missing from the sum.

    Attributes:
        array: this rank's values, to be written before add_up(), which leaves the sums in it.
    """

    def __init__(self, job: Job | None, length: int, dtype: Any) -> None:
        """Collective."""
        self._all = np.zeros(length + 1, dtype)
        self.array = self._all[:-1]
        self.ranks = 1 if job is None else job.size
        self._vector = None if job is None else vectors.vector(self._all)
        if self._vector is not None:  # a rank may have died before
            self.ranks = self._count()

    def _count(self) -> int:
        assert self._vector is not None
        self._all[-1] = 1
        check_company(self._vector.allreduce(SUM).ranks)
        return round(float(self._all[-1]))

    def add_up(self) -> Array:
        """Return the sums, of the same bits on all ranks. Collective.

        Raises:
            RankLostError: there are fewer ranks than at the last sum.
        """
        if self._vector is None:
            return self.array
        ranks = self._count()
        if ranks != self.ranks:
            self.ranks = ranks
            raise RankLostError(ranks)
        return self.array

    def add_few(self, *numbers: float) -> list[float]:
        """Return the sums of these numbers, and perhaps zeros, as add_up()."""
        if self._vector is None:
            return list(numbers)
        self.array[:] = 0
        self.array[: len(numbers)] = numbers
        return list(self.add_up().tolist())

    def agree(self, number: float) -> float:
        """Return the mean of the ranks' numbers: one for all, where theirs are rounded apart."""
        return self.add_few(number / self.ranks)[0]

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()
