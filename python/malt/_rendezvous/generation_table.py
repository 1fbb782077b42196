"""The groups of a job whose ranks may rejoin: the server's state, without sockets.

Within a group, membership only shrinks. When a rank that has been started again asks to join, the
members move with it to a new group, a *generation*. To form the group they exchange the data for
it, round by round, through the launcher. If one dies meanwhile, the next generation is begun
without it. In a group that stands, they use the same rounds for decisions that all must make
alike: every member gets the same result of a round, even if one dies in it.

A rejoining rank gets its values from the *survivors*. When no survivor is left, and a rank has
ended for good, the job is over for the ranks that have not rejoined by then. When all have died,
all begin from the start.

When the launcher with this state is lost, another one builds it up again (`succession.py`): from
`succeed` to `settle` members say which generation they are in (`hold`), and none is begun.

Methods return the frames to send now, by rank.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from malt._rendezvous import wire
from malt._rendezvous.allgather_table import Frames, ProtocolError
from malt._rendezvous.wire import ToClient, ToServer

# No job comes near it; frames have room for twice as many.
_MAX_NUMBER = 1 << 31


class _Rounds:
    """The rounds of a generation: its members exchange bytes, and all get the same."""

    def __init__(self, number: int, members: Iterable[int]) -> None:
        self.number = number
        self.members = set(members)  # without those that have ended
        self.count = 0  # of the rounds that all have completed
        self.deadline: float | None = None
        self._parts: dict[int, bytes] = {}

    @property
    def missing(self) -> set[int]:
        return self.members - set(self._parts)

    def part(self, rank: int, round_: int, data: bytes) -> Frames:
        if round_ != self.count or rank in self._parts:
            raise ProtocolError
        self._parts[rank] = data
        return self._complete()

    def hold(self, round_: int) -> None:
        """Go on after so many rounds, if a member has completed them with the last server."""
        if round_ > self.count:
            self.count = round_
            self._parts = {}

    def drop(self, rank: int) -> Frames:
        if rank not in self.members:
            return []
        self.members.discard(rank)
        return self._complete()

    def expire(self) -> Frames:
        """Tell each rank that waits for which ranks it waits; it may come to the round again."""
        late = wire.pack_members(ToClient.LATE, self.number, self.missing)
        waiting = sorted(self.members & set(self._parts))
        self._parts = {}
        self.deadline = None
        return [(rank, [late]) for rank in waiting]

    def _complete(self) -> Frames:
        if self.missing or not self._parts:
            return []
        answer = [
            wire.COMPLETE_FRAME.pack(ToClient.COMPLETE, self.number, self.count, len(self._parts))
        ]
        answer += [wire.DATA_HEAD.pack(ToClient.DATA, r) + part for r, part in self._parts.items()]
        self.count += 1
        self._parts = {}
        self.deadline = None
        return [(rank, answer) for rank in sorted(self.members)]


class GenerationTable:
    """The generations of a job of `size` ranks. Times are of `time.monotonic`.

    Attributes:
        has_formed: a generation stands, or has stood: a rank that comes now is rejoining.
        expelled: ranks whose processes must be ended; the caller removes them from the list.
        is_over: no rank is left, and none will be, that another could rejoin.
        held: after `succeed`, by rank that has said it: its generation (0: none) and its rounds.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.has_formed = False
        self.expelled: list[int] = []
        self.is_over = False
        self.held: dict[int, tuple[int, int]] = {}
        self._is_taking_over = False
        self._is_due = False  # the last server was about to form a generation
        self._left: set[int] = set()  # have left; their processes have not ended, as far as known
        self._ended: set[int] = set()  # have ended for good
        self._here: set[int] = set()
        self._wanting: set[int] = set()
        self._number = 0  # of the last generation that has been announced
        self._standing = _Rounds(0, ())  # the last one that all members have formed
        self._forming: _Rounds | None = None  # the one after it
        self._unformed: set[int] = set()  # members that have not said yet that they have formed it
        self._seconds = 0.0
        self._deadline: float | None = None

    def join(self, rank: int) -> Frames:
        self._here.add(rank)
        # The others have begun the first generation without this rank, so they begin it anew.
        return [] if self.has_formed or self._forming is None else self._give_up_the_first()

    def leave(self, rank: int, now: float) -> Frames:
        """Handle the end of the connection of `rank`, for any reason."""
        self._left.add(rank)
        self._here.discard(rank)
        self.held.pop(rank, None)
        self._wanting.discard(rank)
        frames = self._standing.drop(rank)
        if self._forming is None or rank not in self._forming.members:
            return frames + self._begin_if_due(now)
        # No rank uses the generation that is being formed, so another can replace it.
        self._forming.members.discard(rank)
        if self.has_formed:
            return frames + self._begin(self._forming.members, now)
        # The first generation must have all ranks: the others wait until this one is here again.
        return frames + self._give_up_the_first()

    def end(self, rank: int, is_for_good: bool, now: float) -> Frames:
        """Handle the end of the process of `rank`, for good or with another one to follow."""
        self._left.discard(rank)
        if is_for_good:
            self._ended.add(rank)
        return self._begin_if_due(now)

    def start(self, rank: int) -> None:
        """Note that a process of `rank`, which had ended for good or not begun, is started."""
        self._ended.discard(rank)

    # Taking over

    def succeed(self) -> None:
        """Begin to take over from a server that is lost. Ranks are not begun from the start."""
        self.has_formed = self._is_taking_over = True

    def hold(self, rank: int, payload: bytes) -> None:
        """Handle what a rank says of the generation that it is in, by the last server."""
        _, number, newest, round_, is_due = wire.HOLD_HEAD.unpack_from(payload)
        count = (len(payload) - wire.HOLD_HEAD.size) // 4
        members = struct.unpack_from(f"!{count}I", payload, wire.HOLD_HEAD.size)
        is_member = rank in members and max(members) < self.size
        if not self._is_taking_over or rank in self.held or not number <= newest < _MAX_NUMBER:
            raise ProtocolError
        if is_member != (number > 0):
            raise ProtocolError
        self.held[rank] = number, round_
        self._number = max(self._number, newest)
        if number > self._standing.number:
            self._standing = _Rounds(number, members)
            self._is_due = False
        if number == self._standing.number > 0:
            self._standing.hold(round_)
            self._is_due = self._is_due or is_due

    def settle(self, now: float) -> Frames:
        """End the time of taking over: the ranks that have come make up the generation.

        Ranks that are an answer behind the others, or in an older generation, are expelled: the
        last server has ended while it told the ranks, and what these have missed is not known.
        """
        self._is_taking_over = False
        at = self._standing.number, self._standing.count
        behind = {rank for rank, held in self.held.items() if held[0] > 0 and held != at}
        frames: Frames = []
        for rank in sorted(self._standing.members - (set(self.held) & self._here)):
            frames += self._standing.drop(rank)
        return frames + self._expel(behind & self._here, now)

    def hear(self, rank: int, payload: bytes, now: float) -> Frames:
        """Handle a frame of a rank."""
        kind = payload[:1]
        try:
            if kind == ToServer.WANT:
                _, seconds = wire.WANT_FRAME.unpack(payload)
                if 0 <= seconds <= wire.MAX_SECONDS:
                    return self._want(rank, seconds, now)
            if kind == ToServer.HOLD:
                self.hold(rank, payload)
                return []
            if kind == ToServer.PART:
                _, number, round_ = wire.GENERATION_PART.unpack_from(payload)
                return self._part(rank, number, round_, payload[wire.GENERATION_PART.size :], now)
            if kind == ToServer.FORMED:
                return self._formed(rank, wire.FORMED_FRAME.unpack(payload)[1], now)
            if kind == ToServer.ABSENT:
                number, ranks = wire.unpack_members(payload)
                return self._absent(rank, number, set(ranks), now)
        except struct.error:
            pass
        raise ProtocolError

    def next_deadline(self) -> float | None:
        deadlines = [t for t in (self._deadline, self._standing.deadline) if t is not None]
        return min(deadlines, default=None)

    def expire(self, now: float) -> Frames:
        """End the waits that have lasted long enough."""
        late = self._standing.deadline
        frames = self._standing.expire() if late is not None and late <= now else []
        if self._deadline is None or self._deadline > now:
            return frames
        self._deadline = None
        if self._forming is None:  # ranks wait for the first generation
            missing = set(range(self.size)) - self._wanting - self._ended
            waiting, self._wanting = self._wanting, set()
            return frames + self._call_off(waiting, missing)
        missing = self._unformed & self._forming.missing
        if self._forming.count > 0 and self.has_formed:
            return frames + self._expel(missing, now)
        members, self._forming = self._forming.members, None
        return frames + self._call_off(members, missing)

    def _want(self, rank: int, seconds: float, now: float) -> Frames:
        self._seconds = seconds
        self._wanting.add(rank)
        if self._deadline is None and not self._is_taking_over:
            self._deadline = now + self._seconds
        return self._begin_if_due(now)

    def _begin_if_due(self, now: float) -> Frames:
        if self._is_taking_over:
            return []
        if self.has_formed and not self._standing.members:
            return self._conclude(self._forming.members if self._forming is not None else set())
        if self._forming is not None or not (self._wanting or self._is_due):
            return []
        if not self.has_formed and len(self._wanting) < self.size - len(self._ended):
            return []
        return self._begin(self._standing.members | self._wanting, now)

    def _give_up_the_first(self) -> Frames:
        """Give up the first generation before it stands: its members wait for another."""
        assert self._forming is not None
        members, self._forming = self._forming.members, None
        self._wanting |= members
        return self._announce(members, set())

    def _begin(self, members: set[int], now: float) -> Frames:
        members = members & self._here
        if self.has_formed and not self._standing.members:
            return self._conclude(members)
        self._wanting -= members
        self._is_due = False
        frames = self._announce(members, members)
        self._forming = _Rounds(self._number, members) if members else None
        self._unformed = members
        self._deadline = now + self._seconds if members else None
        return frames

    def _conclude(self, waiting: set[int]) -> Frames:
        """End the present generation: no survivor is left."""
        self._forming = None
        self._deadline = None
        if not self._left:  # otherwise the launcher will report how these ended
            self.is_over = bool(self._ended)
            self.has_formed = self.is_over
        if not self.has_formed:
            self.expelled += sorted(self._here)  # the ranks that came to rejoin
            self._here.clear()
            self._wanting.clear()
        return self._announce(waiting, set()) if waiting else []

    def _announce(self, to: set[int], members: set[int]) -> Frames:
        self._number += 1
        frame = wire.pack_members(ToClient.GENERATION, self._number, members)
        return [(rank, [frame]) for rank in sorted(to)]

    def _call_off(self, to: set[int], missing: set[int]) -> Frames:
        self._number += 1
        frame = wire.pack_members(ToClient.OFF, self._number, missing)
        return [(rank, [frame]) for rank in sorted(to)]

    def _part(self, rank: int, number: int, round_: int, data: bytes, now: float) -> Frames:
        rounds = self._standing if number == self._standing.number else self._forming
        if rounds is None or number != rounds.number or rank not in rounds.members:
            return []  # the rank will be told of a newer generation
        frames = rounds.part(rank, round_, data)
        if rounds is self._forming:
            self._deadline = now + self._seconds if frames else self._deadline
        elif not frames and rounds.deadline is None:
            rounds.deadline = now + self._seconds
        return frames

    def _formed(self, rank: int, number: int, now: float) -> Frames:
        if self._forming is None or number != self._forming.number:
            return []
        self._unformed.discard(rank)
        if self._unformed:
            return []
        self.has_formed = True
        self._standing, self._forming = self._forming, None
        self._deadline = None
        stands = wire.FORMED_FRAME.pack(ToClient.STANDS, number)
        frames: Frames = [(other, [stands]) for other in sorted(self._standing.members)]
        return frames + self._begin_if_due(now)

    def _absent(self, rank: int, number: int, ranks: set[int], now: float) -> Frames:
        if number != self._standing.number or rank not in self._standing.members:
            return []
        # Ignore ranks that have been started again, or that another rank has reported already.
        return self._expel(ranks & self._standing.members, now)

    def _expel(self, ranks: set[int], now: float) -> Frames:
        self.expelled += sorted(ranks)
        self._here -= ranks
        self._wanting -= ranks
        frames: Frames = []
        for rank in sorted(ranks):
            frames += self._standing.drop(rank)
        if self._forming is not None and ranks & self._forming.members:
            return frames + self._begin(self._forming.members - ranks, now)
        return frames + self._begin_if_due(now)  # the standing group goes on without these ranks
