"""One rank's copy of a shared array: it sends, receives and compares deltas.

The ranks exchange deltas by messages (`Messages` of the core), and compare what they have by an
allreduce. streams.py has the rules, and wire.py the messages.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt import _errors as errors
from malt._alike import check_alike
from malt._core_import import Deadline, Group, Messages, Reducer
from malt._errors import ConfigError, DamagedError, PeerError, describe_ranks
from malt._job import job as jobs
from malt._shared import deltas, wire
from malt._shared.streams import Delta, Held, Part, Streams, are_equal
from malt._uninterrupted import uninterrupted

_DEPTH = 4  # messages on their way from each rank
_MOST_STEPS = 8  # of sending a float change and what its rounding left; two are the rule
_EVEN_ELEMENTS = 1 << 16  # of a copy that are evened out at a time
# Words of a rank's row in a comparison, before its `held`.
_IS_HERE, _IS_FRESH, _CHECKSUM, _CLOCK, _FIRST_HELD = range(5)


class Replica:
    """A flat array of this rank's, and the copy of it that was last exchanged.

    It moves with its rank from group to group, as vectors do. Its steps raise SupersededError where
    the rank has to move first; they are then made again.

    Attributes:
        name: for error messages.
        what: the call in progress, for error messages.
        streams: which deltas the copy has.
        due: kinds and parts of the messages to be sent.
        is_comparing: all ranks have come to the drain, and have not compared yet.
        rounded: elements of a float copy that the drain has rounded alike; None: it has not begun.
        is_drained: a drain is over for all ranks, and has yet to return here.
        is_used: this rank has exchanged or drained it.
        has_begun: the last exchange() was counted, and ended by an exception.
        added: how many deltas of other ranks have been added.
        drained: the ranks that took part in the last drain.
    """

    def __init__(self, flat: npt.NDArray[Any], name: str) -> None:
        job = jobs.current()
        self.name = name
        self.what = f"making shared array {name!r}"
        self.streams = Streams(job.rank, job.size)
        self.due: deque[tuple[int, Part]] = deque()
        self.is_comparing = False
        self.rounded: int | None = None
        self.is_drained = False
        self.is_used = False
        self.has_begun = False
        self.added = 0
        self.drained: list[int] = []
        self._flat = flat
        self._copy = flat.copy()
        self._rank, self._size = job.rank, job.size
        self._marks = [0] * job.size  # by rank: how many drains it has come to in this group
        self._is_marked = False  # this rank has told that it has come to the next one
        self._is_first = True  # the first comparison has yet to be made
        self._is_fresh = False  # this rank is rejoining and has no values yet
        self._rejoining: set[int] = set()  # ranks without values, in the present drain
        self._pieces = 0  # of the values that this fresh rank has received
        self._has_values_due = False  # this rank is to send its copy to the ranks that are fresh
        self._messages: Messages | None = None
        self._group: Group | None = None  # the group into which the messages have moved
        self._reducers: list[Reducer] = []  # of the present group
        self._before: int | None = None  # reductions before the one whose result is not used yet
        self._rows = np.zeros((job.size, _FIRST_HELD + job.size), np.int64)
        self._room = np.zeros(min(flat.size, _EVEN_ELEMENTS), flat.dtype)

    @property
    def is_closed(self) -> bool:
        return self._messages is None or self._messages.is_closed

    @property
    def iteration(self) -> int:
        """How many messages this rank has sent."""
        return self.messages.iteration

    def clock_of(self, rank: int, /) -> int:
        """Return how many messages of `rank` have arrived here."""
        return self.messages.clock_of(rank)

    def regroup(self, group: Group) -> None:
        """Move to another group. Collective."""
        if self._group is not group:
            self.messages.regroup(group)
            self._begin_group(group)
        self._join(Deadline(jobs.current().settings.timeout))

    def enter(self, group: Group, rejoins: bool, deadline: Deadline) -> Replica:
        """Open the array in its first group, or go on with that after an error."""
        if self._group is not group:
            self.shut()
            slot_bytes = wire.head_bytes(self._size) + deltas.part_bytes(self._flat)
            self._messages = Messages(group, self.name, slot_bytes, _DEPTH, rejoins)
            self._is_fresh = rejoins
            self._begin_group(group)
        self._join(deadline)
        return self

    def drain(self, deadline: Deadline) -> None:
        """Make all ranks' arrays equal (rule 6). Collective.

        Other ranks may have ended a step of it which an exception has ended here. So the next call
        goes on with that step.
        """
        self.has_begun = False
        if self.is_drained:
            return
        if self.rounded is None:
            if not (self.is_comparing or self._is_marked):
                self._send_changes(deadline)
            self._settle(deadline, is_drain=True)
        self._round_alike(deadline)

    @property
    def is_draining(self) -> bool:
        """Whether the last drain has ended with an error which the other ranks may not have had."""
        return self.is_comparing or self.rounded is not None

    def _begin_group(self, group: Group) -> None:
        for reducer in self._reducers:
            reducer.shut()
        self._reducers.clear()
        self._group = group
        self.due.clear()  # the drain in the new group passes these deltas on (rule 7)
        self._marks = [0] * self._size
        self._is_marked = self.is_comparing = False
        self.rounded = self._before = None
        self.is_drained = False

    def _join(self, deadline: Deadline) -> None:
        kinds = {"rows": (self._rows.dtype, self._rows.size)}
        if self._flat.dtype.kind == "f":
            kinds["values"] = (self._flat.dtype, len(self._room))
        assert self._group is not None
        for name, (dtype, count) in list(kinds.items())[len(self._reducers) :]:
            self._reducers.append(Reducer(self._group, dtype.name, count, f"{self.name} {name}"))
        self._settle(deadline)

    def shut(self) -> None:
        if self._messages is not None:
            self._messages.shut()
        for reducer in self._reducers:
            reducer.shut()

    # Steps of the calls

    @property
    def messages(self) -> Messages:
        if self._messages is None or self._messages.is_closed:
            raise ConfigError(f"shared array {self.name!r} has been closed")
        return self._messages

    @uninterrupted
    def begin_exchange(self) -> None:
        """Count an exchange, and number what this rank has changed as its delta."""
        self.streams.exchanges += 1
        self.has_begun = True
        self.is_drained = False
        self.begin_delta()

    @uninterrupted
    def begin_delta(self) -> bool:
        """Number what this rank has changed as a delta, to be sent; return whether it is empty."""
        payloads = deltas.difference(self._flat, self._copy)
        delta = self.streams.begin(payloads)
        deltas.add(deltas.changes(payloads, self._copy), self._copy)
        self._put(delta)
        return payloads == [b""]

    def _put(self, delta: Delta) -> None:
        self.due.extend((wire.DELTA, part) for part in delta.parts())

    def _send_changes(self, deadline: Deadline) -> None:
        """Send all that this rank has changed, as far as numbers of its kind can say it."""
        for _ in range(_MOST_STEPS):
            self.send_all(deadline)
            if self.begin_delta():
                break
        np.copyto(self._flat, self._copy)
        self.send_all(deadline)

    @uninterrupted
    def send_now(self) -> None:
        """Send what there is room for."""
        while self.due:
            kind, part = self.due[0]
            data = wire.pack(wire.Message(kind, self.streams.held, part))
            if not self.messages.try_send(data):
                return
            self.due.popleft()

    def send_all(self, deadline: Deadline) -> None:
        """Send all that is due, and receive meanwhile: other ranks may be doing the same."""

        def is_done(_: Sequence[int]) -> bool:
            self.send_now()
            return not self.due

        def missing(_: Sequence[int]) -> list[int]:
            return self.messages.blockers()

        self._wait(is_done, missing, "receive what this rank sent", deadline, for_room=True)

    def await_exchanges(self, target: int, deadline: Deadline) -> None:
        """Wait for `target` exchanges of each live rank that is not in a drain."""

        def missing(live: Sequence[int]) -> list[int]:
            mine = self._marks[self._rank]
            return [
                rank
                for rank in live
                if rank != self._rank
                and self.streams.clocks[rank] < target
                and self._marks[rank] <= mine
            ]

        self._wait(lambda live: not missing(live), missing, f"come to exchange {target}", deadline)

    def _wait(
        self,
        is_done: Callable[[Sequence[int]], bool],
        missing: Callable[[Sequence[int]], list[int]],
        to_do: str,
        deadline: Deadline,
        *,
        for_room: bool = False,
    ) -> None:
        """Receive until `is_done(live ranks)`."""
        while True:
            live = self.messages.live()  # first: what these ranks have sent before is received here
            self.receive()
            if is_done(live):
                return
            left = deadline.left
            ranks = missing(live)
            text = f"{self.what}: {describe_ranks(ranks)} did not {to_do}"
            if not left:
                raise errors.TimeoutError(
                    f"{text} within {deadline.limit:g} s; a longer limit: the call's timeout=, "
                    "malt.init(timeout=) or MALT_TIMEOUT",
                    ranks,
                )
            self.messages.wait(for_room and bool(self.due), live, text, left)

    @uninterrupted
    def receive(self) -> None:
        for sender, data, is_old in self.messages.receive():
            kind, held, part = wire.unpack(data, self._size)
            if kind == wire.MARK and not is_old:
                self._marks[sender] = part.number
            elif kind == wire.VALUES and self._is_fresh:
                self._take_values(part, held)
            elif kind == wire.DELTA and not self._is_fresh:
                self._take_part(sender, part)
            if not is_old and not self._is_fresh:
                self.streams.hear(sender, held)

    def _take_part(self, sender: int, part: Part) -> None:
        if part.parts > deltas.most_parts(self._flat):
            raise DamagedError(
                f"shared array {self.name!r}: rank {sender} sent a delta of {part.parts:,} parts; "
                f"it can have {deltas.most_parts(self._flat):,}"
            )
        delta = self.streams.arrive(sender, part)
        if delta is not None:
            deltas.add(deltas.changes(delta.payloads, self._copy), self._copy, self._flat)
            self.streams.add(delta)
            self.added += 1

    # The drain: rules 6 and 7 of streams.py

    def _settle(self, deadline: Deadline, *, is_drain: bool = False) -> None:
        """Compare with all live ranks, and pass on what they lack, until all have the same."""
        while True:
            if not self.is_comparing:
                self._mark(deadline)
            self._compare(deadline)
            if self._judge(is_drain):
                return
            self.send_all(deadline)
            if self._has_values_due:
                self._send_values(deadline)

    def _mark(self, deadline: Deadline) -> None:
        """Wait until all live ranks have come here; all that they sent before has then arrived.

        A rank that has come, and whose call timed out, may have sent deltas since. They are not
        waited for: ranks that compare receive nothing.
        """
        self._put_mark()

        def missing(live: Sequence[int]) -> list[int]:
            mine = self._marks[self._rank]
            return [rank for rank in live if self._marks[rank] < mine]

        def is_done(live: Sequence[int]) -> bool:
            self.send_now()
            is_told = all(kind != wire.MARK for kind, _ in self.due)
            return is_told and not missing(live)

        def late(live: Sequence[int]) -> list[int]:
            return missing(live) or self.messages.blockers()

        self._wait(is_done, late, "come", deadline, for_room=True)
        self._is_marked, self.is_comparing = False, True

    @uninterrupted
    def _put_mark(self) -> None:
        if not self._is_marked:
            self._marks[self._rank] += 1
            mark = Part(self._rank, self._marks[self._rank], 0, 0, 1, b"")
            self.due.append((wire.MARK, mark))
            self._is_marked = True

    def _compare(self, deadline: Deadline) -> None:
        """Get the rows of all ranks that take part, the same on each of them."""
        if self._may_reduce(self._reducers[0]):
            self._rows[:] = 0
            row = self._rows[self._rank]
            checksum = self._checksum() if self._is_first else 0
            row[:_FIRST_HELD] = True, self._is_fresh, checksum, self.streams.clocks[self._rank]
            row[_FIRST_HELD:] = self.streams.held
            data, count = self._rows.ctypes.data, self._rows.size
            self._reducers[0].allreduce(data, count, False, deadline.left)

    def _checksum(self) -> int:
        value = 0
        for piece in self._pieces_of_copy():
            value = zlib.crc32(piece.data, value)
        return value

    def _may_reduce(self, reducer: Reducer) -> bool:
        """Return whether the last result has been used, or has not come."""
        if self._before not in (None, reducer.count):
            return False
        self._before = reducer.count
        return True

    @uninterrupted
    def _judge(self, is_drain: bool) -> bool:
        """Begin what a comparison has shown to be due; return whether all have the same."""
        self._before = None
        self.is_comparing = self._has_values_due = False
        rows = {rank: row.copy() for rank, row in enumerate(self._rows) if row[_IS_HERE]}
        self._rejoining.update(rank for rank, row in rows.items() if row[_IS_FRESH])
        held = {rank: row[_FIRST_HELD:] for rank, row in rows.items() if not row[_IS_FRESH]}
        if not held:
            raise PeerError("the other ranks ended before this rank had rejoined", self._rejoining)
        if self._is_first and not self._rejoining:
            self._check_alike(rows)
        self._is_first = False
        if not are_equal(held):
            if not self._is_fresh:
                for delta in self.streams.to_pass_on(held):
                    self._put(delta)
            return False
        if len(held) < len(rows):
            self._has_values_due = self._rank == min(held)
            return False
        self._restart_streams(rows)
        self.streams.even_out()
        self.drained = sorted(rows)
        if is_drain:
            self.rounded = 0 if self._flat.dtype.kind == "f" else None
            self.is_drained = self.rounded is None
        return True

    def _restart_streams(self, rows: dict[int, Held]) -> None:
        clocks = [int(row[_CLOCK]) for rank, row in rows.items() if rank not in self._rejoining]
        for rank in self._rejoining:
            self.streams.restart(rank, min(clocks, default=0))
        if self._rejoining:  # it has got no delta that told these
            for rank in rows.keys() - self._rejoining:
                self.streams.clocks[rank] = rows[rank][_CLOCK]
        self._rejoining.clear()

    def _check_alike(self, rows: dict[int, Held]) -> None:
        check_alike(
            f"shared array {self.name!r}",
            {rank: {"the checksum of its first values": rows[rank][_CHECKSUM]} for rank in rows},
            "begin with the same on all ranks (zeros, say), and make each rank's own changes "
            "afterwards",
        )

    def _send_values(self, deadline: Deadline) -> None:
        pieces = self._pieces_of_copy()
        for index, piece in enumerate(pieces):
            part = Part(self._rank, 0, 0, index, len(pieces), piece.tobytes())
            self.due.append((wire.VALUES, part))
            self.send_all(deadline)

    def _take_values(self, part: Part, held: Held) -> None:
        pieces = self._pieces_of_copy()
        if part.place == 0:
            self._pieces = 0  # its sender may have begun again, or have died and be another
        if part.place != self._pieces:
            return
        if part.parts != len(pieces) or len(part.payload) != pieces[part.place].nbytes:
            raise DamagedError(f"shared array {self.name!r}: rank {part.origin} sent wrong values")
        pieces[part.place][:] = np.frombuffer(part.payload, self._copy.dtype)
        self._pieces += 1
        if self._pieces == len(pieces):
            np.copyto(self._flat, self._copy)
            self.streams.held[:] = held
            self._is_fresh = False

    def _pieces_of_copy(self) -> list[npt.NDArray[Any]]:
        step = max(1, deltas.part_bytes(self._copy) // self._copy.itemsize)
        return [self._copy[start : start + step] for start in range(0, self._copy.size, step)]

    def _round_alike(self, deadline: Deadline) -> None:
        """Give float copies the same bits; the order of additions has rounded them differently."""
        spare = (self._size - 1).bit_length()  # so that no sum of the ranks' copies overflows
        while self.rounded is not None:
            if self._may_reduce(self._reducers[1]):
                self._room[:] = 0
                piece = self._copy[self.rounded : self.rounded + len(self._room)]
                self._room[: len(piece)] = np.ldexp(piece, -spare)
                data, count = self._room.ctypes.data, len(self._room)
                self._reducers[1].allreduce(data, count, True, deadline.left)
            self._take_rounded(spare)

    @uninterrupted
    def _take_rounded(self, spare: int) -> None:
        assert self.rounded is not None
        self._before = None
        end = min(self.rounded + len(self._room), self._copy.size)
        copy, flat = self._copy[self.rounded : end], self._flat[self.rounded : end]
        rounded = np.ldexp(self._room[: end - self.rounded], spare)
        # The program may have changed its array since an exception ended the last call.
        flat[:] = np.where(flat == copy, rounded, flat + (rounded - copy))
        copy[:] = rounded
        self.rounded = end if end < self._copy.size else None
        self.is_drained = self.rounded is None
