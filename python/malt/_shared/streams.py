"""Which deltas a rank's copy has, and which deltas the rank keeps for other ranks.

This module neither communicates nor touches the array. Each rank numbers its deltas from 1; those
of one rank are its *stream*. Each rank has a copy of the array, the same on all ranks at first.

1. A rank sends each delta to all live ranks, in the order of their numbers, and adds it to its own
   copy when it numbers it. Messages between two live ranks are neither lost nor reordered.
2. A rank adds a delta of another rank only whole, and only if it has all that sender's deltas
   before it. So a copy has of each stream the first `held[sender]` deltas, each of them once,
   although a delta may arrive from its sender and again from a rank that passes it on.
3. `held` only grows, and every message tells its receivers the sender's `held`.
4. A rank keeps each delta that it has, its own and those of others, until every live rank has told
   that it has it. Ranks that are not live never become live again under the same stream: a rank
   that rejoins begins with a copy of the sum (rule 7).
5. A delta is *acknowledged* once its sender knows that every other live rank has it. If the sender
   dies at any moment afterwards, each of the others has the delta in its copy, and no rule takes a
   delta out of a copy. A delta that is not acknowledged when its sender dies counts on all live
   ranks or on none of them, after their next drain (rule 6).
6. In a drain all live ranks compare `held`. They do so by an allreduce, so all of them compare the
   same rows, also if ranks die meanwhile; and no rank adds a delta between its row and the result.
   If all rows are equal, the drain is over. Else, of each stream, the lowest of the ranks that have
   most of it passes on the deltas that others lack, and the live ranks compare again. It still
   keeps these deltas (4), because a live rank lacks them. Only a death makes another comparison
   necessary, so drains end.
7. When ranks rejoin, all live ranks drain in the new group first. Then one of them gives its copy
   to the rejoining ranks. The stream of such a rank is a new one: every rank forgets what it held
   of the old one. No message of the old group arrives later, because the drain has received all.

A delta's *clock* is how many exchanges its sender had made, this one included. A wait for ranks
that are behind goes by clocks, because drains send deltas of their own. A rejoining rank's clock
begins at the lowest of the others, so it takes part in the exchange that the slowest of them is in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from malt._errors import DamagedError

Held: TypeAlias = npt.NDArray[np.int64]  # by rank: how many of its deltas a copy has


class Part(NamedTuple):
    """A part of a delta, as a message carries it."""

    origin: int  # the rank whose delta it is
    number: int  # of the delta
    clock: int  # of the delta
    place: int  # among the delta's parts, from 0
    parts: int  # of the delta
    payload: bytes


class Delta(NamedTuple):
    """A whole delta."""

    origin: int
    number: int
    clock: int  # how many exchanges the changes are of
    payloads: Sequence[bytes]

    def parts(self) -> list[Part]:
        count = len(self.payloads)
        return [
            Part(self.origin, self.number, self.clock, index, count, payload)
            for index, payload in enumerate(self.payloads)
        ]


class Streams:
    """The streams of all ranks, as one rank has them.

    Attributes:
        held: by rank: how many of its deltas this rank's copy has.
        clocks: by rank: how many of its exchanges those deltas are of; its own too.
        exchanges: how many this rank has made.
        acknowledged: how many of this rank's exchanges all other live ranks are known to have.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.held: Held = np.zeros(size, np.int64)
        self.clocks: Held = np.zeros(size, np.int64)
        self.exchanges = 0
        self.acknowledged = 0
        self._told: Held = np.zeros((size, size), np.int64)  # by rank: the last `held` it told
        self._kept: list[deque[Delta]] = [deque() for _ in range(size)]
        self._begun: dict[int, list[Part]] = {}  # by who sends it: a delta that is not whole yet

    @property
    def kept(self) -> int:
        """How many deltas this rank keeps for others."""
        return sum(map(len, self._kept))

    def begin(self, payloads: Sequence[bytes]) -> Delta:
        """Number a delta of this rank, which adds it to its copy (rule 1)."""
        number = int(self.held[self.rank]) + 1
        return self.add(Delta(self.rank, number, self.exchanges, payloads))

    def add(self, delta: Delta) -> Delta:
        """Note that a delta has been added to the copy (rules 2 and 4)."""
        self.held[delta.origin] = delta.number
        self.clocks[delta.origin] = delta.clock
        self._kept[delta.origin].append(delta)
        return delta

    def arrive(self, sender: int, part: Part) -> Delta | None:
        """Take a part that `sender` has sent; return the delta that is to be added now, if any.

        Raises:
            DamagedError: the sender skipped a delta, or a part of one.
        """
        begun = self._begun.pop(sender, [])
        have = int(self.held[part.origin])
        if part.number <= have:
            return None  # rule 2: it has come from another rank before
        parts = begun if part.place > 0 else []
        is_same = all(
            last._replace(place=0, payload=b"") == part._replace(place=0, payload=b"")
            for last in parts[-1:]
        )
        if part.number != have + 1 or len(parts) != part.place or not is_same:
            raise DamagedError(
                f"rank {sender} sent part {part.place} of delta {part.number} of rank "
                f"{part.origin}, but this rank has {have} deltas and {len(parts)} parts of them"
            )
        parts.append(part)
        if len(parts) < part.parts:
            self._begun[sender] = parts
            return None
        return Delta(part.origin, part.number, part.clock, [each.payload for each in parts])

    def hear(self, sender: int, held: Held) -> None:
        """Note what `sender` has told of its copy (rule 3)."""
        np.maximum(self._told[sender], held, out=self._told[sender])

    def forget_known(self, live: Iterable[int]) -> None:
        """Keep only what some live rank may lack (rule 4)."""
        others = [rank for rank in live if rank != self.rank]
        everywhere = np.minimum.reduce([self.held, *self._told[others]])
        for kept, most in zip(self._kept, everywhere, strict=True):
            while kept and kept[0].number <= most:
                self._forget(kept.popleft())

    def _forget(self, delta: Delta) -> None:
        if delta.origin == self.rank:
            self.acknowledged = delta.clock  # rule 5

    def to_pass_on(self, rows: Mapping[int, Held]) -> list[Delta]:
        """Return the deltas that this rank passes on after a comparison (rule 6).

        Args:
            rows: by rank: its `held`. It has this rank's.
        """
        due: list[Delta] = []
        for origin, kept in enumerate(self._kept):
            of_origin = {rank: int(row[origin]) for rank, row in rows.items()}
            least, most = min(of_origin.values()), max(of_origin.values())
            if self.rank == min(rank for rank, held in of_origin.items() if held == most):
                due.extend(delta for delta in kept if delta.number > least)
        return due

    def even_out(self) -> None:
        """Note that all live ranks have what this rank has."""
        self._told[:] = self.held
        for kept in self._kept:
            while kept:
                self._forget(kept.popleft())

    def restart(self, rank: int, clock: int) -> None:
        """Begin a new stream of `rank`, which has rejoined, before even_out() (rule 7)."""
        self.held[rank], self.clocks[rank] = 0, clock
        if rank == self.rank:
            self.exchanges = clock


def are_equal(rows: Mapping[int, Any]) -> bool:
    """Return whether all ranks have the same deltas."""
    first, *others = rows.values()
    return all(np.array_equal(first, row) for row in others)
