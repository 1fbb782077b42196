"""Which chunks of the data are whose, and which are finished: no communication, no data.

**Whose.** Each chunk has a list of all ranks, the same everywhere, and is the first one's on it
that lives. At its head is the rank it was dealt to: that of the highest random weight (Thaler &
Ravishankar 1998) with room left, as in consistent hashing with bounded loads (Mirrokni et al.
2018), so that nobody has two more than another. The rest follow by weight. So when a rank dies only
its chunks move, and they spread over all survivors. Loads are bounded among all ranks, not among
the living: ranks that see a death at different times would deal differently.

Two living ranks never have one chunk at once, though they may differ on who else lives: each counts
both as living, so the one that is further down that chunk's list leaves it.

**Finished.** Each rank writes its own row (`row_type`), and has the last row that has come from
each other, the dead included. When it sees that a rank is gone it takes over into its own row what
that one had begun and finished, and notes this. Chunks of the dead are taken once every living rank
has noted the death: a last row that a network has brought to some only has come to all then.

**Repeated.** So of what a dead rank has begun, only the chunk it had in hand is given out again.

**Coming back.** A rank that has been started again has another *life*, which its rows name. It
begins in the pass of the slowest, and keeps step there; but who has been noted as gone stays so to
the end of the pass, whether or not it lives again. So it may take its chunks in the first pass in
which none of the others has noted it, and from then on it *counts*. Before, it notes as gone only
who does not live, since it may lack the rows of others that come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
Turn = int | Literal["idle", "wait", "over"]

NOT_YET: Final = -1  # the life of a rank that has come back, and has not caught up
_UNHEARD: Final = -2  # where this one has come back: of one that has not told yet
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
_MASK: Final = 2**64 - 1


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash each of them: SplitMix64's finalizer (Steele, Lea & Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def draw(at: Integers, *key: int) -> npt.NDArray[np.uint64]:
    """Random numbers by their places in a stream, the same on every machine, whatever its NumPy."""
    start = np.zeros(1, np.uint64)
    for part in key:
        start = mix((start ^ np.uint64(part & _MASK)) + np.uint64(_GOLDEN))
    return mix(start + (at.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))


def permutation(count: int, seed: int, pass_: int) -> Integers:
    return np.argsort(draw(np.arange(count), seed, pass_), kind="stable")


def heaviest(chunks: Integers, ranks: Sequence[int]) -> Integers:
    """The rank with the highest random weight for each chunk."""
    best: Integers = np.full(len(chunks), ranks[0])
    most = draw(chunks, ranks[0])
    for rank in ranks[1:]:
        weight = draw(chunks, rank)
        best[weight > most] = rank
        np.maximum(most, weight, out=most)
    return best


def deal(chunks: int, roster: Sequence[int]) -> Integers:
    """The rank of the roster at the head of each chunk's list; equally many each, or one more."""
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
    """Whose each chunk is: the first living rank's on its list."""
    return np.where(np.isin(heads, living), heads, heaviest(np.arange(len(heads)), living))


_PASS, _START, _TURNS, _ENDED, _LIFE = range(5)  # words of a row
_OF_PASS: Final = 5  # and from this one on of this pass alone


def row_type(size: int, chunks: int) -> np.dtype[Any]:
    """What a rank says of itself. Whole words, so that a vector can carry it."""
    bits = -(-chunks // 64) * 8
    return np.dtype(
        [
            ("pass", np.int64),  # the one it is in, from 1; 0 before
            ("start", np.int64),  # its turns before this pass
            ("turns", np.int64),  # that its loop has begun, in all passes
            ("ended", np.int64),  # and come to the end of
            ("life", np.int64),  # how often the rank has come back, or NOT_YET
            # By rank: which life of it has been noted in this pass as gone, from 1; or 0.
            ("gone", np.int32, (-(-size // 2) * 2,)),
            ("done", np.uint8, (bits,)),  # a bit a chunk of this pass: finished
            ("begun", np.uint8, (bits,)),  # likewise; by it, or by those gone
        ]
    )


class Ledger:
    """One rank's view: a row of each rank, of which it writes its own.

    In lockstep all living ranks take equally many turns in each pass, with or without a chunk.

    `lives` are the caller's, who keeps them up to date: by rank, how often it has come back. With
    `comes_back` this rank has, since the others began.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        chunks: int,
        lockstep: bool,
        lives: Sequence[int],
        *,
        comes_back: bool = False,
    ) -> None:
        self.rank = rank
        self._lives = lives
        self.chunks = chunks
        self.lockstep = lockstep
        self.rows = np.zeros(size, row_type(size, chunks))
        self.words = self.rows.view(np.int64).reshape(size, -1)  # the same memory
        self._own = self.rows[rank]  # a view
        # The same once more, for a turn in which nobody is gone: NumPy takes some ten times as long
        # for one word, and a hundred times where the loop's body has had the caches.
        self._cells_of = [row.data for row in self.words]
        self._done_of, self._begun_of = (
            [row.data for row in self.rows[bits]] for bits in ("done", "begun")
        )
        self._cells = self._cells_of[rank]
        self._of_pass = self._cells.cast("B")[_OF_PASS * 8 :]
        self._nothing = bytes(len(self._of_pass))
        self._all = (1 << chunks) - 1  # a bit a chunk
        self.rows["life"] = _UNHEARD if comes_back else lives
        if comes_back:
            self._own["life"] = NOT_YET
        self._counts = not comes_back
        self._over = True
        self._heads = deal(chunks, range(size))
        self._dealt = np.flatnonzero(self._heads == rank).tolist()
        self._inherited = np.zeros_like(self._own["begun"])  # begun by those gone, in this pass
        self._is_anyone_gone = False  # as noted in this pass
        self._next = 0  # of those dealt: the first unfinished one, as long as all have lived
        self._owners = (tuple(range(size)), self._heads)  # by whom they were asked for last

    @property
    def pass_(self) -> int:
        return self._cells[_PASS]

    @property
    def passes(self) -> int:
        """How many have come to their end."""
        return self.pass_ - (not self._over)

    @property
    def comes_back(self) -> bool:
        """Whether it has yet to catch up with the others."""
        return self._cells[_LIFE] == NOT_YET

    def unheard(self, living: Sequence[int]) -> list[int]:
        """Who has told nothing since this rank has come back."""
        return [rank for rank in living if self.rows["life"][rank] == _UNHEARD]

    def catch_up(self, living: Sequence[int]) -> None:
        """Come back: be about to begin what the slowest is at. The others' rows have come."""
        there = [rank for rank in living if self.rows["life"][rank] != NOT_YET]
        self._own["life"] = self._lives[self.rank]
        if there:
            self._own["pass"] = max(int(self.rows["pass"][there].min()) - 1, 0)
            self._own["turns"] = self._own["ended"] = self.rows["ended"][there].min()

    def enter(self) -> None:
        """Begin the next pass, unless one has been begun and not come to its end."""
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
        """The loop asks for the next one."""
        self._cells[_ENDED] = self._cells[_TURNS]

    def take_turn(self, living: Sequence[int]) -> Turn:
        """What the loop does next: a chunk, or nothing.

        Args:
            living: the ranks that lived before the rows of all were read.

        Returns:
            a chunk; "idle": a turn without one, since another has taken one more; "wait": for other
            rows; or "over".
        """
        if self.all_have_lived(living):
            counting = living
            if self._next < len(self._dealt):
                return self._begin(self._dealt[self._next])  # nobody else takes it
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
        # For all, whatever of the dead came through to this rank alone.
        done = self._done_of[self.rank]
        done[:] = b"\xff" * len(done)
        self._over = True
        return "over"

    def all_have_lived(self, living: Sequence[int]) -> bool:
        """Whether nobody has ever been gone."""
        return len(living) == len(self._cells_of) and not any(self._lives)

    def _begin(self, chunk: int) -> int:
        self._cells[_TURNS] += 1
        self._begun_of[self.rank][chunk // 8] |= 1 << chunk % 8
        return chunk

    def was_begun(self, chunk: int) -> bool:
        """Whether another rank has begun it."""
        if not self._is_anyone_gone:
            return False
        others = self._in_pass()
        others[self.rank] = False
        # Who is gone may have come back since, and its row tell of its new life alone.
        told = np.bitwise_or.reduce(self.rows["begun"][others, chunk // 8])
        return bool((told | self._inherited[chunk // 8]) >> chunk % 8 & 1)

    def finish(self, chunk: int) -> None:
        """Note that this rank is done with it; told with the next turn."""
        self._done_of[self.rank][chunk // 8] |= 1 << chunk % 8
        self._next += 1

    def awaited(self, living: Sequence[int]) -> tuple[int, list[int]]:
        """How many chunks are unfinished, and which ranks keep this one waiting."""
        left = self._left(self._finished())
        counting = self._counting(living)
        ranks = {int(rank) for rank in np.unique(self._owned(counting)[left])} - {self.rank}
        ranks |= {rank for rank in counting if not (self._has_come(rank) and self._has_noted(rank))}
        return int(left.sum()), sorted(ranks)

    def _in_pass(self) -> Bits:
        here: Bits = self.rows["pass"] == self._own["pass"]
        return here

    def _finished(self) -> int:
        """A bit a chunk, of those that are finished as far as this rank has heard."""
        finished = 0
        for cells, done in zip(self._cells_of, self._done_of, strict=True):
            if cells[_PASS] > self._cells[_PASS]:  # and has seen the end of this one
                return self._all
            if cells[_PASS] == self._cells[_PASS]:
                finished |= int.from_bytes(done, "little")
        return finished & self._all

    def _left(self, finished: int) -> Bits:
        """The chunks that are not, by chunk."""
        left = (self._all & ~finished).to_bytes(len(self._done_of[0]), "little")
        bits = np.unpackbits(np.frombuffer(left, np.uint8), count=self.chunks, bitorder="little")
        return bits.view(np.bool_)

    def note_gone(self, living: Sequence[int]) -> None:
        """Note who is gone, and what it has begun and finished; `living` as of take_turn()."""
        self._counts = self._counts or self._may_count(living)
        gone = {rank: self._lives[rank] + 1 for rank in range(len(self.rows)) if rank not in living}
        if self._counts and any(self._lives):
            back = [rank for rank in living if not self._is_in_its_life(rank)]
            gone |= {rank: self._lives[rank] for rank in back}
            # Those who live again count for all, or for none. (That the present life of one is
            # over, this rank is to see for itself, or it would lack what that one told last.)
            for rank in np.flatnonzero(self._in_pass()).tolist():
                if rank in living and self._is_in_its_life(rank):
                    noted = self.rows["gone"][rank]
                    gone |= {r: noted[r] for r in living if 0 < noted[r] <= self._lives[r]}
            gone.pop(self.rank, None)
        for rank, life in gone.items():
            self._own["gone"][rank] = max(life, self._own["gone"][rank])
            self._is_anyone_gone = True
        for rank in np.flatnonzero(self._own["gone"]).tolist():
            if self.rows["pass"][rank] == self._own["pass"]:
                self._own["done"] |= self.rows["done"][rank]
                self._inherited |= self.rows["begun"][rank]
        self._own["begun"] |= self._inherited

    def _may_count(self, living: Sequence[int]) -> bool:
        """Whether none of the others has noted this rank as gone, and none will."""
        others = [r for r in living if r != self.rank and self.rows["life"][r] != NOT_YET]
        return not self.comes_back and all(
            self._is_in_its_life(rank)
            and self._is_here(rank)
            and not self.rows["gone"][rank][self.rank]
            for rank in others
        )

    def _is_in_its_life(self, rank: int) -> bool:
        return bool(self.rows["life"][rank] == self._lives[rank])

    def _counting(self, living: Sequence[int]) -> list[int]:
        """The living ranks that share this pass out among them, and this one."""
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
        """Whether this pass may end, as far as that rank goes: in lockstep not before it begins."""
        return not self.lockstep or self._is_here(rank)

    def _is_here(self, rank: int) -> bool:
        return self._cells_of[rank][_PASS] >= self._cells[_PASS]

    def _has_noted(self, rank: int) -> bool:
        """Whether what it has of those gone, in this pass, is in its row."""
        gone = self._own["gone"] > 0
        return not gone.any() or (self._is_here(rank) and self.rows["gone"][rank][gone].all())

    def _most_turns(self, living: Sequence[int]) -> int:
        """Taken by any in this pass. Over all passes, so that a turn too many is made up for."""
        rows = (self._cells_of[rank] for rank in living)
        now = self._cells[_PASS]
        return max(cells[_START] if cells[_PASS] > now else cells[_TURNS] for cells in rows)
