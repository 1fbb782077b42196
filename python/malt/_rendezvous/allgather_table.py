"""Which ranks have come to which allgather: the state of the rendezvous's store, without sockets.

Every method returns the frames to send now, by rank. A rank may leave and join again: its sessions
are counted, and the n-th sessions of all ranks meet one another.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from malt._rendezvous import wire
from malt._rendezvous.wire import ToClient, ToServer

Frames = list[tuple[int, list[bytes]]]


class ProtocolError(Exception):
    """A client has proven the key, but sends a frame that no correct client sends here."""


@dataclass
class _Rank:
    joined: bool = False
    session: int = 0
    next_round: int = 0
    ended: str | None = None  # how its process ended, in words


@dataclass
class _Round:
    """The present round of a session: all its ranks are in it, or on their way to it."""

    number: int
    parts: dict[int, bytes] = field(default_factory=dict)
    deadlines: list[float] = field(default_factory=list)


class Rounds:
    """The rounds under way in a job of `size` ranks. Times are of `time.monotonic`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ranks = [_Rank() for _ in range(size)]
        self._rounds: dict[int, _Round] = {}  # by session
        self._failures: dict[int, bytes] = {}  # by session: the failure that ends all later rounds

    def join(self, rank: int) -> None:
        state = self._ranks[rank]
        self._ranks[rank] = _Rank(joined=True, session=state.session + 1)

    def leave(self, rank: int) -> Frames:
        """Handle the end of the connection of `rank`, for any reason."""
        self._ranks[rank].joined = False
        return self._fail_hopeless()

    def end(self, rank: int, how: str) -> Frames:
        """Handle the end (`how`: "was killed by SIGKILL") of the process of unjoined `rank`."""
        self._ranks[rank].ended = how
        return self._fail_hopeless()

    def part(self, rank: int, payload: bytes, now: float) -> Frames:
        """Handle a rank's part of a round."""
        if len(payload) < wire.PART_HEAD.size or payload[:1] != ToServer.PART:
            raise ProtocolError
        _, number, seconds = wire.PART_HEAD.unpack_from(payload)
        state = self._ranks[rank]
        if number != state.next_round or not 0 <= seconds <= wire.MAX_SECONDS:
            raise ProtocolError
        state.next_round += 1
        if failure := self._failures.get(state.session):
            return [(rank, [failure])]
        round_ = self._rounds.setdefault(state.session, _Round(number))
        if round_.number != number:
            raise ProtocolError
        round_.parts[rank] = payload[wire.PART_HEAD.size :]
        round_.deadlines.append(now + seconds)
        if len(round_.parts) < self.size:
            return self._fail_hopeless()
        del self._rounds[state.session]
        answer = [struct.pack("!cI", ToClient.COMPLETE, number)]
        answer += [ToClient.DATA + round_.parts[other] for other in range(self.size)]
        return [(other, answer) for other in self._waiting(state.session, round_)]

    def next_deadline(self) -> float | None:
        return min((t for r in self._rounds.values() for t in r.deadlines), default=None)

    def expire(self, now: float) -> Frames:
        """End the rounds in which a rank has waited long enough, for all that wait there."""
        frames: Frames = []
        for session, round_ in list(self._rounds.items()):
            if min(round_.deadlines) <= now:
                missing = [rank for rank in range(self.size) if rank not in round_.parts]
                frames += self._fail(session, ToClient.LATE, missing, "")
        return frames

    def _fail_hopeless(self) -> Frames:
        """End the rounds that wait for ranks which can no longer come."""
        frames: Frames = []
        for session, round_ in list(self._rounds.items()):
            missing = [rank for rank in range(self.size) if rank not in round_.parts]
            hopeless = [rank for rank in missing if not self._can_come(rank, session)]
            if hopeless:
                how = self._ranks[hopeless[0]].ended if len(hopeless) == 1 else None
                frames += self._fail(session, ToClient.CANNOT_COME, hopeless, how or "")
        return frames

    def _can_come(self, rank: int, session: int) -> bool:
        state = self._ranks[rank]
        if state.joined:
            return state.session <= session
        return state.ended is None and state.session < session

    def _fail(self, session: int, kind: bytes, ranks: list[int], text: str) -> Frames:
        round_ = self._rounds.pop(session)
        failure = wire.pack_ranks(kind, ranks, text)
        # A rank that comes later is told which ranks no longer wait for it.
        self._failures[session] = (
            wire.pack_ranks(ToClient.CANNOT_COME, sorted(round_.parts), "gave up waiting")
            if kind == ToClient.LATE
            else failure
        )
        return [(rank, [failure]) for rank in self._waiting(session, round_)]

    def _waiting(self, session: int, round_: _Round) -> list[int]:
        ranks = self._ranks
        return [r for r in sorted(round_.parts) if ranks[r].joined and ranks[r].session == session]
