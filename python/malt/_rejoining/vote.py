"""The vote of the next group's ranks: can any of them still make progress in the old group?"""

from __future__ import annotations

import contextlib
import struct
import zlib
from typing import NamedTuple

from malt._core_import import Group
from malt._errors import DamagedError, TimeoutError  # noqa: A004
from malt._rejoining.await_ranks import await_ranks
from malt._rejoining.forming import Formed, Forming
from malt._rejoining.open_vectors import OpenVectors

_VOTE = struct.Struct("=??QIQ")


class _Vote(NamedTuple):
    has_moved: bool = False  # the rank has made progress since its last vote
    is_in_old: bool = False  # it is in the old group
    posted: int = 0  # to how many exchanges it has posted there
    names: int = 0  # a checksum of its open vectors' names
    sent: int = 0  # the sum of their iterations


class Voting:
    """All votes on the way from one group to the next. Only the rank's own thread may use it.

    Each rank votes as soon as it can go no further. A rank that has made progress since its last
    vote says so, and all look again. They also look again when a voter has ended, because a rank
    may have waited for it. When no rank has made progress, none can any more.

    Attributes:
        group: the next group.
        is_decided: all agree that no rank can make progress in the old group.
    """

    def __init__(
        self,
        old: Group | None,
        formed: Formed,
        forming: Forming,
        vectors: OpenVectors,
        timeout: float,
    ) -> None:
        """`old` is None on a rejoining rank."""
        self.group = formed.group
        self.is_decided = False
        self._old = old
        self._forming = forming
        self._vectors = vectors
        self._timeout = timeout
        self._voters = set(formed.members)  # of the last vote

    def vote(self, *, has_moved: bool) -> None:
        """Vote. On return, everything that the voters sent in the old group has arrived."""
        posted, names, sent = 0, 0, 0
        if self._old is not None:
            vectors = self._vectors.all()
            posted = self._old.posted
            names = zlib.crc32("\n".join(vector.name for vector in vectors).encode())
            sent = sum(vector.iteration for vector in vectors)
        mine = _VOTE.pack(has_moved, self._old is not None, posted, names, sent)
        posts = self._forming.agree(self.group, mine)
        votes = [_vote_of(rank, post) if post else _Vote() for rank, post in enumerate(posts)]
        if self._old is not None:
            self._await_ends(self._old, {r for r, vote in enumerate(votes) if vote.is_in_old})
            self._old.await_posts([vote.posted for vote in votes], self._timeout)
            sent_by = {r: vote.sent for r, vote in enumerate(votes) if vote.names == names}
            self._await_scatters(self._old, sent_by)
        before, self._voters = self._voters, {rank for rank, post in enumerate(posts) if post}
        has_ended = not before <= self._voters
        self.is_decided = not (has_ended or any(vote.has_moved for vote in votes))

    def decide(self, *, has_moved: bool) -> None:
        """Vote until it is decided; this rank makes no more progress."""
        while not self.is_decided:
            self.vote(has_moved=has_moved)
            has_moved = False

    def _await_ends(self, old: Group, going: set[int]) -> None:
        """Wait until all ranks but `going` are known to be dead in the old group.

        A rank that is not in `going` has been started again or has ended. Its old process may have
        ended only just now; an old process that has lost its launcher goes on until it is killed. A
        rank that waits for such a process must still reach the end of its round in the old group.
        """
        with contextlib.suppress(TimeoutError):
            await_ranks(lambda: set(old.alive()) - going, "end", self._timeout)

    def _await_scatters(self, old: Group, sent: dict[int, int]) -> None:
        """Wait until all that these ranks have scattered in the old group has reached this host.

        A clock never exceeds the number of its sender's scatters, so equal sums mean equal clocks.
        """
        vectors = self._vectors.all()

        def missing() -> set[int]:
            others = set(sent) & set(old.alive()) & set(self.group.alive()) - {old.rank}
            return {r for r in others if sum(v.clock_of(r) for v in vectors) < sent[r]}

        await_ranks(missing, "deliver what they sent last", self._timeout)


def _vote_of(rank: int, post: bytes) -> _Vote:
    if len(post) != _VOTE.size:
        raise DamagedError(f"the vote of rank {rank} that arrived is damaged")
    return _Vote(*_VOTE.unpack(post))
