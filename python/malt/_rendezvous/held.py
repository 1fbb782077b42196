"""The knowledge that a member of the job hands to a server that takes over; `succession.py`."""

from __future__ import annotations

import struct

from malt._rendezvous import wire
from malt._rendezvous.wire import ToServer

_MOST_GENERATIONS = 8  # whose rounds are counted: one stands, and another is formed


class Held:
    """A member's news so far, and its words to which it may have no answer.

    Attributes:
        standing: the last generation that stands, according to the launcher.
    """

    def __init__(self, rank: int) -> None:
        self.standing = 0
        self._rank = rank
        self._members: list[int] = []  # of the standing generation
        self._rounds: dict[int, int] = {}  # by generation: how many rounds have been completed
        self._formed = 0  # the last generation that this rank has said to have formed
        self._want = b""  # the frame, until a generation with this rank stands
        self._part = b""  # the frame, until the round is completed
        self._absent: tuple[int, set[int]] = 0, set()

    def sent(self, payload: bytes) -> None:
        """Note a frame that this rank is about to send."""
        kind = payload[:1]
        if kind == ToServer.WANT:
            self._want = payload
        elif kind == ToServer.PART:
            self._part = payload
        elif kind == ToServer.FORMED:
            self._formed = wire.FORMED_FRAME.unpack(payload)[1]
        elif kind == ToServer.ABSENT:
            number, ranks = wire.unpack_members(payload)
            earlier = self._absent[1] if number == self._absent[0] else set()
            self._absent = number, earlier | set(ranks)

    def stands(self, number: int, members: list[int]) -> None:
        """Note that a generation stands."""
        self.standing, self._members = number, members
        self._rounds = {number: self._rounds.get(number, 0)}
        self._want = b""

    def completed(self, number: int, round_: int) -> None:
        self._rounds[number] = round_ + 1
        if len(self._rounds) > _MOST_GENERATIONS:
            del self._rounds[min(self._rounds.keys() - {self.standing})]
        self._part = b""

    def late(self) -> None:
        """Note that the round is not completed, and that this rank no longer waits for it."""
        self._part = b""

    def is_unsure(self, newest: int) -> bool:
        """Return whether generation `newest` may stand for others without this rank's knowing."""
        return self._formed == newest > self.standing

    def frames(self, newest: int, is_due: bool) -> list[bytes]:
        """Return what to send to a server that takes over.

        `newest` is the last generation that has been announced to this rank; `is_due`: another is
        to follow the one that stands.
        """
        head = wire.HOLD_HEAD.pack(
            ToServer.HOLD, self.standing, newest, self._rounds.get(self.standing, 0), is_due
        )
        frames = [head + struct.pack(f"!{len(self._members)}I", *self._members)]
        if self._want:
            frames.append(self._want)
        if self._part and wire.GENERATION_PART.unpack_from(self._part)[1] == self.standing:
            frames.append(self._part)
        if self._absent[0] == self.standing and self._absent[1]:
            frames.append(wire.pack_members(ToServer.ABSENT, *self._absent))
        return frames
