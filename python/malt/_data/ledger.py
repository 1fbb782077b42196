"""Which rank owns each chunk of the data, and which chunks are finished.

This module neither communicates nor touches data. A rank is *gone* when it is dead, evicted or has
left.

**Owner.** Each chunk has a list of all ranks, the same everywhere; the first living rank on the
list owns the chunk. At the head is the rank that the chunk was dealt to: the rank of the highest
random weight (Thaler & Ravishankar 1998) with room left, as in consistent hashing with bounded
loads (Mirrokni et al. 2018), so that no rank has two chunks more than another. The other ranks
follow by weight. So when a rank dies only its chunks move, and they spread over all survivors.
Loads are bounded among all ranks, not among the living ones, because ranks that see a death at
different times would otherwise deal differently.

Two living ranks never own one chunk at once, even if they differ on which other ranks live: each
counts both as living, so the rank that is further down the chunk's list leaves it to the other.

**Finished.** Each rank writes its own row (`row_type`), and has the last row that has arrived from
each other rank, the gone ones included. When a rank sees that another is gone, it copies into its
own row which chunks that rank had begun and finished, and notes that it has. The chunks of a gone
rank are taken only once every living rank has noted that it is gone: its last row may have reached
only some ranks, and by then all know its contents.

**Repeated.** So of the chunks that a dead rank had begun, only the one in hand is given out again.

**Rejoining.** A rank's row carries how often the rank has been started again. A rejoining rank
begins in the pass of the slowest rank and keeps pace with it. But a rank that has been noted as
gone stays noted until the end of the pass, even if it rejoins. A rejoining rank may therefore take
its chunks only from the first pass in which no other rank has noted it; from then on it *counts*.
Before that, it notes as gone only ranks that do not live, because it may lack the rows of other
rejoining ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
Turn = int | Literal["idle", "wait", "over"]

NOT_YET: Final = -1  # the restarts of a rejoining rank that has not caught up
_UNHEARD: Final = -2  # on a rejoining rank: those of a rank from which no row has come yet
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
_MASK: Final = 2**64 - 1


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash each value: SplitMix64's finalizer (Steele, Lea & Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def draw(at: Integers, *key: int) -> npt.NDArray[np.uint64]:
    """Draw random numbers by position in a stream; every machine and NumPy draws the same."""
    start = np.zeros(1, np.uint64)
    for part in key:
        start = mix((start ^ np.uint64(part & _MASK)) + np.uint64(_GOLDEN))
    return mix(start + (at.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))


def permutation(count: int, seed: int, pass_: int) -> Integers:
    return np.argsort(draw(np.arange(count), seed, pass_), kind="stable")


def heaviest(chunks: Integers, ranks: Sequence[int]) -> Integers:
    """Return the rank with the highest random weight for each chunk."""
    best: Integers = np.full(len(chunks), ranks[0])
    most = draw(chunks, ranks[0])
    for rank in ranks[1:]:
        weight = draw(chunks, rank)
        best[weight > most] = rank
        np.maximum(most, weight, out=most)
    return best


def deal(chunks: int, roster: Sequence[int]) -> Integers:
    """Return the head of each chunk's list; each roster rank heads equally many, or one more."""
    owner = np.full(chunks, -1)
    for room in (chunks // len(roster), 1):
        left = dict.fromkeys(roster, room)
        while any(left.values()) and len(open_ := np.flatnonzero(owner < 0)):
            best = heaviest(open_, [rank for rank in roster if left[rank]])
            for rank in roster:
                taken = open_[best == rank][: left[rank]]
                owner[taken] = rank
                left[rank] -= len(taken)
    return owner


def owners(heads: Integers, living: Sequence[int]) -> Integers:
    """Return the owner of each chunk: the first living rank on its list."""
    return np.where(np.isin(heads, living), heads, heaviest(np.arange(len(heads)), living))


_PASS, _START, _TURNS, _ENDED, _RESTARTS = range(5)  # words of a row
_OF_PASS: Final = 5  # the words from this one on concern the present pass alone


def row_type(size: int, chunks: int) -> np.dtype[Any]:
    """Return the dtype of a rank's row. It has whole words, so that a vector can carry it."""
    bits = -(-chunks // 64) * 8
    return np.dtype(
        [
            ("pass", np.int64),  # the pass that the rank is in, from 1; 0 before the first
            ("start", np.int64),  # the turns it took before this pass
            ("turns", np.int64),  # the turns that its loop has begun, in all passes
            ("ended", np.int64),  # the turns that its loop has ended, in all passes
            ("restarts", np.int64),  # how often the rank has been started again, or NOT_YET
            # By rank: 1 + the restarts of the process that is noted as gone in this pass; 0: none.
            ("gone", np.int32, (-(-size // 2) * 2,)),
            ("done", np.uint8, (bits,)),  # a bit for each chunk that is finished in this pass
            ("begun", np.uint8, (bits,)),  # a bit for each chunk that it, or a gone rank, began
        ]
    )


class Ledger:
    """One rank's view: it has a row of each rank, and writes its own.

    In lockstep all living ranks take equally many turns in each pass, with or without a chunk.

    The caller owns `restarts` and keeps it up to date: by rank, how often that rank has been
    started again. With `is_rejoining`, the other ranks began before this one.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        chunks: int,
        lockstep: bool,
        restarts: Sequence[int],
        *,
        is_rejoining: bool = False,
    ) -> None:
        self.rank = rank
        self._restarts = restarts
        self.chunks = chunks
        self.lockstep = lockstep
        self.rows = np.zeros(size, row_type(size, chunks))
        self.words = self.rows.view(np.int64).reshape(size, -1)  # the same memory, as words
        self._own = self.rows[rank]  # a view
        # Faster views of the same memory, for a turn in which no rank is gone: NumPy takes about
        # ten times as long to access a word, and a hundred times if the loop's body has displaced
        # it from the caches.
        self._cells_of = [row.data for row in self.words]
        self._done_of, self._begun_of = (
            [row.data for row in self.rows[bits]] for bits in ("done", "begun")
        )
        self._cells = self._cells_of[rank]
        self._of_pass = self._cells.cast("B")[_OF_PASS * 8 :]
        self._nothing = bytes(len(self._of_pass))
        self._all = (1 << chunks) - 1  # a bit for each chunk
        self.rows["restarts"] = _UNHEARD if is_rejoining else restarts
        if is_rejoining:
            self._own["restarts"] = NOT_YET
        self._counts = not is_rejoining
        self._over = True
        self._heads = deal(chunks, range(size))
        self._dealt = np.flatnonzero(self._heads == rank).tolist()
        self._inherited = np.zeros_like(self._own["begun"])  # begun by gone ranks, in this pass
        self._is_anyone_gone = False  # as noted in this pass
        self._next = 0  # the first unfinished chunk of _dealt, as long as all ranks have lived
        self._owners = (tuple(range(size)), self._heads)  # for the living ranks of the last call

    @property
    def pass_(self) -> int:
        return self._cells[_PASS]

    @property
    def passes(self) -> int:
        """How many passes have ended."""
        return self.pass_ - (not self._over)

    @property
    def is_rejoining(self) -> bool:
        """Whether this rank is rejoining and has yet to catch up with the others."""
        return self._cells[_RESTARTS] == NOT_YET

    def unheard(self, living: Sequence[int]) -> list[int]:
        """Return the living ranks from which no row has come since this rank has rejoined."""
        return [rank for rank in living if self.rows["restarts"][rank] == _UNHEARD]

    def catch_up(self, living: Sequence[int]) -> None:
        """Rejoin: prepare to begin the slowest rank's pass. The others' rows must have come."""
        there = [rank for rank in living if self.rows["restarts"][rank] != NOT_YET]
        self._own["restarts"] = self._restarts[self.rank]
        if there:
            self._own["pass"] = max(int(self.rows["pass"][there].min()) - 1, 0)
            self._own["turns"] = self._own["ended"] = self.rows["ended"][there].min()

    def enter(self) -> None:
        """Begin the next pass, unless one has been begun and not ended."""
        if self._over:
            self._over = False
            self._cells[_PASS] += 1
            self._cells[_START] = self._cells[_TURNS]
            self._of_pass[:] = self._nothing
            if self._is_anyone_gone:
                self._inherited[:] = 0
            self._is_anyone_gone = False
            self._next = 0

    def end_turn(self) -> None:
        """End the present turn: the loop asks for the next one."""
        self._cells[_ENDED] = self._cells[_TURNS]

    def take_turn(self, living: Sequence[int]) -> Turn:
        """Return what the loop does next: a chunk, or nothing.

        Args:
            living: the ranks that lived before the rows of all were read.

        Returns:
            A chunk; "idle": a turn without a chunk, because another rank has taken one turn more;
            "wait": until other rows come; or "over": the pass has ended.
        """
        if self.all_have_lived(living):
            counting = living
            if self._next < len(self._dealt):
                return self._begin(self._dealt[self._next])  # no other rank takes it
            finished = self._finished()
        else:
            self.note_gone(living)
            counting = self._counting(living)
            finished = self._finished()
            if len(mine := np.flatnonzero(self._left(finished) & self._may_take(counting))):
                return self._begin(int(mine[0]))
        if self.lockstep and self._cells[_TURNS] < self._most_turns(counting):
            self._cells[_TURNS] += 1
            return "idle"
        if finished != self._all or not all(self._has_come(rank) for rank in counting):
            return "wait"
        # Tell all ranks that the pass is over: only this rank may have got a dead rank's last row.
        done = self._done_of[self.rank]
        done[:] = b"\xff" * len(done)
        self._over = True
        return "over"

    def all_have_lived(self, living: Sequence[int]) -> bool:
        """Return whether all ranks have lived all the time."""
        return len(living) == len(self._cells_of) and not any(self._restarts)

    def _begin(self, chunk: int) -> int:
        self._cells[_TURNS] += 1
        self._begun_of[self.rank][chunk // 8] |= 1 << chunk % 8
        return chunk

    def was_begun(self, chunk: int) -> bool:
        """Return whether another rank has begun the chunk."""
        if not self._is_anyone_gone:
            return False
        others = self._in_pass()
        others[self.rank] = False
        # A gone rank may have rejoined since; its row then tells only of its new process.
        told = np.bitwise_or.reduce(self.rows["begun"][others, chunk // 8])
        return bool((told | self._inherited[chunk // 8]) >> chunk % 8 & 1)

    def finish(self, chunk: int) -> None:
        """Note that this rank has finished the chunk; its next turn tells the other ranks."""
        self._done_of[self.rank][chunk // 8] |= 1 << chunk % 8
        self._next += 1

    def progress(self) -> tuple[int, list[int]]:
        """Return how many chunks of this pass are finished, and each rank's turns in all passes.

        Not its turns in this pass, because another rank may be in the next one already.
        """
        return self._finished().bit_count(), [cells[_TURNS] for cells in self._cells_of]

    def awaited(self, living: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many chunks are unfinished, and the ranks that this one waits for."""
        left = self._left(self._finished())
        counting = self._counting(living)
        ranks = {int(rank) for rank in np.unique(self._owned(counting)[left])} - {self.rank}
        ranks |= {rank for rank in counting if not (self._has_come(rank) and self._has_noted(rank))}
        return int(left.sum()), sorted(ranks)

    def _in_pass(self) -> Bits:
        here: Bits = self.rows["pass"] == self._own["pass"]
        return here

    def _finished(self) -> int:
        """Return a bit for each chunk that is finished as far as this rank knows."""
        finished = 0
        for cells, done in zip(self._cells_of, self._done_of, strict=True):
            if cells[_PASS] > self._cells[_PASS]:  # that rank has seen the end of this pass
                return self._all
            if cells[_PASS] == self._cells[_PASS]:
                finished |= int.from_bytes(done, "little")
        return finished & self._all

    def _left(self, finished: int) -> Bits:
        """Return by chunk whether it is unfinished."""
        left = (self._all & ~finished).to_bytes(len(self._done_of[0]), "little")
        bits = np.unpackbits(np.frombuffer(left, np.uint8), count=self.chunks, bitorder="little")
        return bits.view(np.bool_)

    def note_gone(self, living: Sequence[int]) -> None:
        """Note the gone ranks, and what they began and finished; `living` as in take_turn()."""
        self._counts = self._counts or self._may_count(living)
        gone = {
            rank: self._restarts[rank] + 1 for rank in range(len(self.rows)) if rank not in living
        }
        if self._counts and any(self._restarts):
            outdated = [rank for rank in living if not self._is_current(rank)]
            gone |= {rank: self._restarts[rank] for rank in outdated}
            # A rank that has rejoined must count for all or for none, so adopt what the others have
            # noted. (Only of earlier processes: this rank must see for itself that a rank's present
            # process has ended, or it would lack that rank's last row.)
            for rank in np.flatnonzero(self._in_pass()).tolist():
                if rank in living and self._is_current(rank):
                    noted = self.rows["gone"][rank]
                    gone |= {r: noted[r] for r in living if 0 < noted[r] <= self._restarts[r]}
            gone.pop(self.rank, None)
        for rank, process in gone.items():
            self._own["gone"][rank] = max(process, self._own["gone"][rank])
            self._is_anyone_gone = True
        for rank in np.flatnonzero(self._own["gone"]).tolist():
            if self.rows["pass"][rank] == self._own["pass"]:
                self._own["done"] |= self.rows["done"][rank]
                self._inherited |= self.rows["begun"][rank]
        self._own["begun"] |= self._inherited

    def _may_count(self, living: Sequence[int]) -> bool:
        """Return whether no other rank has noted this one as gone, and none will."""
        others = [r for r in living if r != self.rank and self.rows["restarts"][r] != NOT_YET]
        return not self.is_rejoining and all(
            self._is_current(rank)
            and self._is_here(rank)
            and not self.rows["gone"][rank][self.rank]
            for rank in others
        )

    def _is_current(self, rank: int) -> bool:
        """Return whether the row of `rank` is of its present process."""
        return bool(self.rows["restarts"][rank] == self._restarts[rank])

    def _counting(self, living: Sequence[int]) -> list[int]:
        """Return the living ranks that share this pass out among them, and this rank."""
        return [rank for rank in living if rank == self.rank or not self._own["gone"][rank]]

    def _owned(self, living: Sequence[int]) -> Integers:
        if self._owners[0] != tuple(living):
            self._owners = (tuple(living), owners(self._heads, living))
        return self._owners[1]

    def _may_take(self, living: Sequence[int]) -> Bits:
        mine: Bits = (self._owned(living) == self.rank) & self._counts
        is_settled = all(self._has_noted(rank) for rank in living)
        return mine if is_settled else mine & (self._heads == self.rank)

    def _has_come(self, rank: int) -> bool:
        """Return whether `rank` lets this pass end; in lockstep, once it has begun the pass."""
        return not self.lockstep or self._is_here(rank)

    def _is_here(self, rank: int) -> bool:
        return self._cells_of[rank][_PASS] >= self._cells[_PASS]

    def _has_noted(self, rank: int) -> bool:
        """Return whether the row of `rank` includes what it has of the gone ranks in this pass."""
        gone = self._own["gone"] > 0
        return not gone.any() or (self._is_here(rank) and self.rows["gone"][rank][gone].all())

    def _most_turns(self, living: Sequence[int]) -> int:
        """Return the most turns that any of these ranks has taken by this pass.

        Turns are counted over all passes, so that the other ranks make up for a turn too many.
        """
        rows = (self._cells_of[rank] for rank in living)
        now = self._cells[_PASS]
        return max(cells[_START] if cells[_PASS] > now else cells[_TURNS] for cells in rows)
