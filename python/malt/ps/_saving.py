"""A table in checkpoints: `malt.save` and `malt.restore` (P13 in `src/vol/ps/server.hpp`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._checkpoint.spread import Range, SpreadRows
from malt._core_import import Deadline
from malt.ps._placing import Placing
from malt.ps._seat import Seat

_IS_DEAD = (1 << 64) - 1  # as a clock


class TableRows(SpreadRows):
    """The rows of a table, and what its rule keeps for them.

    A range's values lie before its states, each of which has as many bytes.
    """

    def __init__(
        self,
        seat: Seat,
        facts: Mapping[str, Any],
        states: Sequence[str],
        size: int,
        limit: float,
        *,
        placing: Placing | None,
        is_bsp: bool,
    ) -> None:
        self.facts = facts
        self.places = facts["rows"] if placing is None else placing.room
        self.has_keys = placing is not None
        self.states = states
        self.is_exact = is_bsp
        self._placing = placing
        self._seat = seat
        self._size = size  # of the job
        self._left = limit  # seconds for further waits

    @property
    def clock(self) -> int:
        return self._seat.core.clock

    @property
    def edition(self) -> int:
        return self._seat.edition

    def await_pushes(self) -> None:
        with self._waiting() as deadline:
            self._seat.core.wait(self._seat.core.last_push, deadline)

    def drop_pushes(self) -> None:
        with self._waiting() as deadline:
            self._seat.core.drop_pushes(deadline)

    def await_clocks(self, clocks: Mapping[int, int]) -> None:
        with self._waiting() as deadline:
            self._seat.core.await_clocks(self._by_rank(clocks, _IS_DEAD), deadline)

    def ranges(self, live: Sequence[int]) -> list[Range]:
        there = [rank for rank in live if rank in self._seat.ranks]
        return [Range(*each) for each in self._seat.core.ranges(there)]

    def keys_of(self, part: Range) -> npt.NDArray[np.int64]:
        assert self._placing is not None
        return self._placing.keys_at(part.first, part.end)

    def read(self, part: Range, array: int) -> npt.NDArray[Any]:
        rows = part.end - part.first
        made = np.empty(self.shape_of(rows), self.dtype)
        with self._waiting() as deadline:
            self._seat.core.read(part.number, array * rows * self.row_size, made, deadline)
        return made

    def write(self, part: Range, array: int, first: int, rows: npt.NDArray[Any]) -> None:
        before = array * (part.end - part.first) + first - part.first
        whole = np.ascontiguousarray(rows)
        with self._waiting() as deadline:
            self._seat.core.write(part.number, before * self.row_size, whole, deadline)

    def end_write(self, part: Range) -> None:
        with self._waiting() as deadline:
            self._seat.core.end_write(part.number, deadline)

    def continue_from(self, clocks: Mapping[int, int], others: int) -> None:
        with self._waiting() as deadline:
            self._seat.core.continue_from(self._by_rank(clocks, others), deadline)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[Deadline]:
        """Wait once more: all waits together have one limit."""
        deadline = Deadline(self._left)
        try:
            yield deadline
        finally:
            self._left = deadline.left

    def _by_rank(self, clocks: Mapping[int, int], others: int) -> list[int]:
        return [clocks.get(rank, others) for rank in range(self._size)]
