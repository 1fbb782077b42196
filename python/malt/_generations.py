"""The groups of a job whose ranks come back: the server's books, without sockets.

Membership only shrinks within a group. When a rank that has been started anew asks for it, the
members move to a new group with it, a *generation*: all of them exchange what they need for that,
round by round, through the launcher. If one dies meanwhile, the next generation is begun without
it.

Who comes back takes up what the *survivors* have. When none is left, and a rank has ended for good,
the job is over for those who are not back by then. When all have died, all begin from the start.

Methods return the frames to send now, by rank.
"""

from __future__ import annotations

import struct

from malt import _wire as wire
from malt._rounds import Frames, ProtocolError


class Generations:
    """Those of a job of `size` ranks. Times are of `time.monotonic`.

    Attributes:
        has_formed: a generation stands, or has: who comes now, comes back.
        expelled: ranks whose processes are to be ended; for the caller to remove.
        is_over: nobody is left, and nobody will be, to whom a rank could come back.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.has_formed = False
        self.expelled: list[int] = []
        self.is_over = False
        self._left: set[int] = set()  # and their processes have not ended, as far as is known
        self._ended: set[int] = set()  # for good
        self._here: set[int] = set()
        self._wanting: set[int] = set()
        self._number = 0
        self._members: set[int] = set()  # of this generation
        self._settled: set[int] = set()  # of the last one that has formed,
        self._standing = 0  # and its number
        self._unformed: set[int] = set()  # members that do not say yet that it stands
        self._round = 0
        self._parts: dict[int, bytes] = {}
        self._seconds = 0.0
        self._deadline: float | None = None

    def join(self, rank: int) -> Frames:
        self._here.add(rank)
        # It begins with the others, who have begun without it.
        return [] if self.has_formed or not self._unformed else self._give_up_the_first()

    def leave(self, rank: int, now: float) -> Frames:
        """The connection of `rank` has ended, in whatever way."""
        self._left.add(rank)
        self._here.discard(rank)
        self._wanting.discard(rank)
        self._settled.discard(rank)
        is_in_vain = bool(self._unformed) and rank in self._members  # none uses it yet
        self._members.discard(rank)
        if not is_in_vain:
            return self._begin_if_due(now)
        if self.has_formed:
            return self._begin(self._members, now)
        # All ranks are to be in the first: the others wait until it is here again.
        return self._give_up_the_first()

    def end(self, rank: int, is_for_good: bool, now: float) -> Frames:
        """The process of `rank` has ended; another one follows, or not."""
        self._left.discard(rank)
        if is_for_good:
            self._ended.add(rank)
        return self._begin_if_due(now)

    def start(self, rank: int) -> None:
        """A process of `rank`, which had ended for good or not begun, is started."""
        self._ended.discard(rank)

    def hear(self, rank: int, payload: bytes, now: float) -> Frames:
        """What a rank says."""
        kind = payload[:1]
        try:
            if kind == wire.WANT:
                _, seconds = wire.WANT_FRAME.unpack(payload)
                if 0 <= seconds <= wire.MAX_SECONDS:
                    return self._want(rank, seconds, now)
            if kind == wire.PART:
                _, number, round_ = wire.GENERATION_PART.unpack_from(payload)
                return self._part(rank, number, round_, payload[wire.GENERATION_PART.size :], now)
            if kind == wire.FORMED:
                return self._formed(rank, wire.FORMED_FRAME.unpack(payload)[1], now)
            if kind == wire.ABSENT:
                number, ranks = wire.unpack_members(payload)
                return self._absent(rank, number, set(ranks), now)
        except struct.error:
            pass
        raise ProtocolError

    def next_deadline(self) -> float | None:
        return self._deadline

    def expire(self, now: float) -> Frames:
        """Somebody has waited long enough."""
        if self._deadline is None or self._deadline > now:
            return []
        self._deadline = None
        if not self._unformed:  # for the first
            missing = set(range(self.size)) - self._wanting - self._ended
            waiting, self._wanting = self._wanting, set()
            return self._call_off(waiting, missing)
        missing = self._unformed - set(self._parts)
        if self._round > 0 and self.has_formed:
            return self._expel(missing, now)
        members, self._members, self._unformed = self._members, self._settled, set()
        return self._call_off(members, missing)

    def _want(self, rank: int, seconds: float, now: float) -> Frames:
        self._seconds = seconds
        self._wanting.add(rank)
        if self._deadline is None:
            self._deadline = now + self._seconds
        return self._begin_if_due(now)

    def _begin_if_due(self, now: float) -> Frames:
        if self.has_formed and not self._settled:
            return self._conclude()
        if self._unformed or not self._wanting:
            return []
        if not self.has_formed and len(self._wanting) < self.size - len(self._ended):
            return []
        return self._begin(self._members | self._wanting, now)

    def _give_up_the_first(self) -> Frames:
        """Before it stands: its members wait for another."""
        self._wanting |= self._members
        frames = self._announce(self._members, set())
        self._members, self._unformed = set(), set()
        return frames

    def _begin(self, members: set[int], now: float) -> Frames:
        self._members = members & self._here
        if self.has_formed and not self._settled:
            return self._conclude()
        self._unformed = set(self._members)
        self._wanting -= self._members
        self._round = 0
        self._parts = {}
        self._deadline = now + self._seconds if self._members else None
        return self._announce(self._members, self._members)

    def _conclude(self) -> Frames:
        """No survivor is left."""
        waiting, self._members, self._unformed = self._members, set(), set()
        self._deadline = None
        if not self._left:  # else the launcher will say how they ended
            self.is_over = bool(self._ended)
            self.has_formed = self.is_over
        if not self.has_formed:
            self.expelled += sorted(self._here)  # who came to come back
            self._here.clear()
            self._wanting.clear()
        return self._announce(waiting, set()) if waiting else []

    def _announce(self, to: set[int], members: set[int]) -> Frames:
        self._number += 1
        frame = wire.pack_members(wire.GENERATION, self._number, members)
        return [(rank, [frame]) for rank in sorted(to)]

    def _call_off(self, to: set[int], missing: set[int]) -> Frames:
        self._number += 1
        frame = wire.pack_members(wire.OFF, self._number, missing)
        return [(rank, [frame]) for rank in sorted(to)]

    def _part(self, rank: int, number: int, round_: int, data: bytes, now: float) -> Frames:
        if number != self._number or rank not in self._members:
            return []  # it will hear of a newer one
        if round_ != self._round or rank in self._parts:
            raise ProtocolError
        self._parts[rank] = data
        if len(self._parts) < len(self._members):
            return []
        answer = [wire.GENERATION_PART.pack(wire.COMPLETE, number, round_)]
        answer += [wire.DATA + self._parts[other] for other in sorted(self._members)]
        self._round += 1
        self._parts = {}
        self._deadline = now + self._seconds
        return [(other, answer) for other in sorted(self._members)]

    def _formed(self, rank: int, number: int, now: float) -> Frames:
        if number != self._number:
            return []
        self._unformed.discard(rank)
        if self._unformed:
            return []
        self.has_formed = True
        self._settled = set(self._members)
        self._standing = number
        self._deadline = None
        stands = wire.FORMED_FRAME.pack(wire.STANDS, number)
        frames: Frames = [(other, [stands]) for other in sorted(self._members)]
        return frames + self._begin_if_due(now)

    def _absent(self, rank: int, number: int, ranks: set[int], now: float) -> Frames:
        if number != self._standing or rank not in self._settled:
            return []
        ranks &= self._settled  # not who has been started anew, nor of whom another has said so
        return self._expel(ranks, now) if ranks else []

    def _expel(self, ranks: set[int], now: float) -> Frames:
        self.expelled += sorted(ranks)
        self._here -= ranks
        self._settled -= ranks
        return self._begin(self._members - ranks, now)
