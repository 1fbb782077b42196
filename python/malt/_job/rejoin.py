"""Moves a rank from one group of the job to the next, in which restarted ranks take part.

The launcher calls the ranks to form the next group (`_rendezvous/generation_table.py`). A rank
follows the call when it next scatters its first vector, or while it waits: it joins the next group.
When no rank can make progress in the old group any more (`look_again`), all move their vectors, in
the order in which these were made (`go_over`). A rejoining rank makes its vectors in the same order
(`rejoin`), and in the end receives the others' values.
"""

from __future__ import annotations

import struct
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from malt import _errors as errors
from malt._core_import import Group
from malt._errors import ConfigError, Error, PeerError, describe_ranks
from malt._job import handover
from malt._job.vector_types import AnyVector
from malt._rendezvous.member_session import Member, NewerError

_STATE = struct.Struct("=?IIIIQ")
# A vote: whether the rank has made progress, whether it is in the old group, to how many exchanges
# it has posted there, a checksum of its open vectors' names, and the sum of their iterations.
_VOTE = struct.Struct("=??QIQ")
# Forming a group may fail because a rank has died: this is how long the launcher may take to report
# that. If the error certainly comes from other ranks, the launcher has the whole time limit.
_NEWS_SECONDS = 2.0
_NAP_SECONDS = 0.001

Made = TypeVar("Made", bound=AnyVector)
Result = TypeVar("Result")
MakeGroup = Callable[[list[int], Callable[[bytes, float], list[bytes]]], Group]


class Follower(Protocol):
    """An object that is told of every change of the group; its calls must wait for no rank."""

    def leave_group(self) -> None:
        """This rank is about to leave the present group; all ranks' data can still be read here."""

    def enter_group(self, group: Group) -> None:
        """All open vectors have moved into the next group."""


@dataclass
class _Kept:
    vector: weakref.ref[AnyVector]
    description: str
    has_shared_values: bool  # False: each rank has values of its own
    round: _Round | None = None  # the last one that has ended while the group was superseded


class _Round(NamedTuple):
    call: int  # the group's superseded_by at that time
    iteration: int
    values: handover.Copy  # as the round's gather left them


class _State(NamedTuple):
    is_back: bool
    restarts: int
    vectors: int
    epoch: int
    kept: int  # how many vectors this rank has kept a round of
    rounds: int  # the sum of the iterations of these rounds


class _Vote(NamedTuple):
    has_moved: bool = False
    is_in_old: bool = False
    posted: int = 0
    names: int = 0
    sent: int = 0


class _Formed(NamedTuple):
    number: int
    group: Group
    members: set[int]  # without those that have been reported as evicted


class Generations:
    """One rank's way through the groups of its job. Only the rank's own thread may use it.

    Attributes:
        group: the present group; None: this rank is rejoining and has not needed a group yet.
        epoch: the number that is added to the group's own epoch.
        is_waited_for: this rank is rejoining and has not used its vectors yet.
        lives: by rank: 0, or how often a rank that has rejoined has been started again.
        followers: the objects that are told of a change of the group.
    """

    def __init__(
        self, member: Member, restarts: int, make_group: MakeGroup, timeout: float
    ) -> None:
        self.group: Group | None = None
        self.epoch = 0
        self.lives = [0] * member.size
        if member.is_back:
            self.lives[member.rank] = restarts
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._member = member
        self._make_group = make_group
        self._timeout = timeout
        self._number = 0  # of the last generation that this rank has looked at
        self._formed: _Formed | None = None  # the last group that this rank was in
        self._next: Group | None = None
        self._is_decided = False  # all agree that no rank can make progress in the old group
        self._voters: set[int] = set()  # of the last vote
        self._kept: list[_Kept] = []
        self._due = 0  # vectors that this rejoining rank has yet to make
        self._back: list[int] = []  # the ranks that rejoin in this group
        self._senders: list[int] = []  # the ranks that may send them the values, the best first
        self._is_between = True  # the group must not be superseded now
        self._is_in_next = True  # this rank's collective steps run in the next group, or the first
        self._lock = threading.Lock()
        self.is_back = member.is_back
        member.on_call = self._supersede

    # Joining

    def start(self) -> Group:
        """Join the first group; a rejoining rank joins the next one. Collective.

        Raises:
            malt.TimeoutError: the ranks that the error names did not come.
        """
        self._member.want(self._timeout)
        joined = self._join(lambda: False)
        if joined is None:
            missing = self._member.latest().missing
            raise errors.TimeoutError(
                f"{describe_ranks(missing)} did not come within {self._timeout:g} s; a longer "
                "limit: malt.init(timeout=...) or MALT_TIMEOUT",
                missing,
            )
        if self.is_back:
            self._next = joined
            self._vote_to_the_end(has_moved=False)
            self._next = None
            self._due = self._exchange_state(joined, is_back=True)
        self.group = joined
        if self._due == 0:
            self._complete()
        return joined

    def _join(self, is_in_vain: Callable[[], bool]) -> Group | None:
        """Join and return the next group; None if it is called off, or once `is_in_vain()`."""
        member = self._member
        while True:
            limit = 2 * self._timeout + 1  # longer than the launcher's limit: it decides first
            call = member.await_call(self._number, limit, is_in_vain)
            if call.number <= self._number:
                return None
            self._number = call.number
            if not call.members:
                return None
            number = call.number
            group = None
            try:
                group = self._make_group(call.members, partial(self._allgather, number))
                member.formed(number, self._timeout, self._report_evicted)
            except NewerError:
                if group is not None:
                    group.leave()
                continue
            except Error as error:
                is_others = isinstance(error, PeerError | errors.TimeoutError)
                limit = self._timeout if is_others else _NEWS_SECONDS
                try:
                    member.await_call(number, limit, lambda: False)
                except errors.TimeoutError:
                    pass
                else:
                    continue
                raise
            self._formed = _Formed(number, group, set(call.members))
            self._voters = set(call.members)
            return group

    def _allgather(self, number: int, data: bytes, timeout: float) -> list[bytes]:
        return self._member.allgather(number, data, timeout, self._report_evicted)

    def _agree(self, group: Group, data: bytes) -> list[bytes]:
        """Return every member's bytes: all ranks get the same, even if a rank dies meanwhile."""
        return self._go_on(
            group,
            lambda: self._member.agree(self._number, data, self._timeout, self._report_evicted),
        )

    def _report_evicted(self) -> None:
        """Report evicted ranks, so that the next group does not wait for them.

        The process of an evicted rank may still live. A rank that has left or died is not reported:
        its process may be well, and the launcher learns of its end by itself.
        """
        if self._formed is None:
            return
        number, group, members = self._formed
        if evicted := {rank for rank in members if group.is_left_out(rank)}:
            members -= evicted
            self._member.absent(number, evicted)

    def _supersede(self) -> None:
        """Supersede the group: there is a newer generation. The listening thread calls this."""
        with self._lock:
            if not self._is_between and self.group is not None:
                self.group.supersede(self._member.latest().number)

    def _settle(self) -> None:
        """Begin to work in the present group; from now on a newer generation may supersede it."""
        with self._lock:
            self._is_between = self._is_in_next = False
            for kept in self._kept:
                kept.round = None  # frees the memory of its values
            if self._member.latest().number > self._number:
                assert self.group is not None
                self.group.supersede(self._member.latest().number)

    # Moving to the next group

    def look_again(self, is_new: bool) -> bool:
        """Return whether a wait in a superseded group may still succeed.

        A rank that is only in the old group first joins the next one. Then all ranks vote, each as
        soon as it can go no further. A rank that has made progress since its last vote says so, and
        all look again. They also look again when a voter has ended, because a rank may have waited
        for it. When no rank has made progress, none can any more.

        In the next group a wait always ends by itself. Another rank of this host may supersede that
        group already: it has then completed the last exchange there, and this rank can too.
        """
        if self._is_in_next:
            return True
        if self._next is None:
            return not self._prepare() or self._vote(has_moved=True)
        self._is_decided = not self._vote(has_moved=is_new)
        return not self._is_decided

    def _prepare(self) -> bool:
        """Join the next group. False: there is none after all, and the present one goes on."""
        group = self.group
        assert group is not None
        with self._lock:
            self._is_between = True
        self._is_decided = False
        self._next = self._join(lambda: not group.is_superseded)
        if self._next is None:
            group.restore()
            self._settle()
            return False
        return True

    def _await_ends(self, going: set[int]) -> None:
        """Wait until all ranks but `going` are known to be dead in the old group.

        A rank that is not in `going` has been started again or has ended. Its old process may have
        ended only just now; an old process that has lost its launcher goes on until it is killed. A
        rank that waits for such a process must still reach the end of its round in the old group.
        """
        assert self.group is not None
        deadline = time.monotonic() + self._timeout
        while set(self.group.alive()) - going and time.monotonic() < deadline:
            time.sleep(_NAP_SECONDS)

    def _vote(self, *, has_moved: bool) -> bool:
        """Vote; return whether any rank has made progress in the old group, or has ended.

        On return, everything that the voters sent in the old group has arrived.
        """
        assert self._next is not None
        posted, names, sent = 0, 0, 0
        if self.group is not None:
            vectors = self.vectors()
            posted = self.group.posted
            names = zlib.crc32("\n".join(vector.name for vector in vectors).encode())
            sent = sum(vector.iteration for vector in vectors)
        mine = _VOTE.pack(has_moved, self.group is not None, posted, names, sent)
        posts = self._agree(self._next, mine)
        votes = [_Vote(*_VOTE.unpack(post)) if post else _Vote() for post in posts]
        if self.group is not None:
            self._await_ends({rank for rank, vote in enumerate(votes) if vote.is_in_old})
            self.group.await_posts([vote.posted for vote in votes], self._timeout)
            self._await_scatters({r: v.sent for r, v in enumerate(votes) if v.names == names})
        before, self._voters = self._voters, {rank for rank, post in enumerate(posts) if post}
        return any(vote.has_moved for vote in votes) or not before <= self._voters

    def _await_scatters(self, sent: dict[int, int]) -> None:
        """Wait until all that these ranks have scattered in the old group has reached this host.

        A clock never exceeds the number of its sender's scatters, so equal sums mean equal clocks.
        """
        old, new = self.group, self._next
        assert old is not None
        assert new is not None
        vectors = self.vectors()

        def missing() -> set[int]:
            others = set(sent) & set(old.alive()) & set(new.alive()) - {old.rank}
            return {r for r in others if sum(v.clock_of(r) for v in vectors) < sent[r]}

        _until(lambda: not missing(), self._timeout, missing, "deliver what they sent last")

    def _vote_to_the_end(self, *, has_moved: bool) -> None:
        while self._vote(has_moved=has_moved):
            has_moved = False

    def go_over(self) -> None:
        """Leave the old group for the next, with all vectors. Collective.

        Rejoining ranks that do not make the vectors within the time limit are evicted.
        """
        if self._next is not None:
            if not self._is_decided:
                self._vote_to_the_end(has_moved=True)
        elif self._prepare():
            self._vote_to_the_end(has_moved=True)
        else:
            return
        old = self.group
        assert old is not None
        for follower in self.followers:
            follower.leave_group()
        self._is_in_next = True
        try:
            assert self._next is not None
            self._rebuild(self._next)
        finally:
            self._is_in_next = False
        self.group, self._next = self._next, None
        old.leave()
        self._settle()

    def _rebuild(self, group: Group) -> None:
        """Move all vectors to the next group."""
        opened = self._open()
        self._exchange_state(group, is_back=False)
        for vector, kept in opened:
            self._compare(group, kept.description)
            self._go_on(group, lambda vector=vector: vector.regroup(group))  # type: ignore[misc]
        self._share(group)
        for follower in self.followers:
            follower.enter_group(group)
        self._go_on(group, lambda: group.barrier(self._timeout))

    def _go_on(self, group: Group, step: Callable[[], Result]) -> Result:
        """Run a collective step; repeat it without the ranks that die in it or do not come to it.

        This rank reports those that do not come, and they are killed: all others then go on without
        them in this group. This is needed because of a rank that comes at the very end of the time
        limit: some ranks have seen it come and some have not.
        """
        reported: set[int] = set()
        while True:
            try:
                return step()
            except PeerError as error:
                lost = set(error.ranks)
                if group.is_left_out(group.rank) or not lost or lost & set(group.alive()):
                    raise
            except errors.TimeoutError as error:
                if set(error.ranks) <= reported:
                    raise
                reported.update(error.ranks)
                self._member.absent(self._number, error.ranks)

    def _exchange_state(self, group: Group, *, is_back: bool) -> int:
        """Exchange the ranks' states; return how many vectors the survivors have."""
        old_epoch = self.epoch + (self.group.epoch if self.group is not None else 0)
        restarts = self.lives[group.rank]
        opened = self._open()
        rounds = [r.iteration for _, kept in opened if (r := self._round_of(kept)) is not None]
        mine = _STATE.pack(is_back, restarts, len(opened), old_epoch, len(rounds), sum(rounds))
        posts = self._agree(group, mine)
        states = {rank: _State(*_STATE.unpack(post)) for rank, post in enumerate(posts) if post}
        self._back = [rank for rank, state in states.items() if state.is_back]
        for rank, state in states.items():
            self.lives[rank] = state.restarts
        self.epoch = 1 + max(state.epoch for state in states.values())
        there = {rank: state for rank, state in states.items() if not state.is_back}
        # A rejoining rank gets the iteration of the rank that is furthest behind.
        order = {rank: (-state.kept, state.rounds, rank) for rank, state in there.items()}
        self._senders = sorted(there, key=order.__getitem__)
        return max((state.vectors for state in there.values()), default=0)

    def _share(self, group: Group) -> None:
        """Hand the values to the rejoining ranks."""
        vectors = [
            (vector, kept_round.values if (kept_round := self._round_of(kept)) else None)
            for vector, kept in self._open()
            if kept.has_shared_values
        ]
        handover.share(group, vectors, self._back, self._senders, self._timeout)

    def _compare(self, group: Group, description: str) -> None:
        """Check that all ranks make the same vector.

        A rejoining rank that makes another one leaves the group again; the survivors wait for that.
        """
        mine = description.encode()[:768]
        posts = self._go_on(
            group, lambda: group.exchange("a vector that goes over", mine, self._timeout)
        )
        texts = {rank: post.decode(errors="replace") for rank, post in enumerate(posts) if post}
        right = next((text for rank, text in texts.items() if rank not in self._back), description)
        if group.rank in self._back and texts[group.rank] != right:
            group.leave()
            raise ConfigError(
                f"rank {group.rank} has come back and makes {texts[group.rank]}, where the others "
                f"have {right}; the script must make the same vectors in the same order"
            )
        wrong = {rank for rank in self._back if texts.get(rank, right) != right}
        _until(lambda: not wrong & set(group.alive()), self._timeout, lambda: wrong, "leave")

    # Vectors

    def keep(self, vector: AnyVector, description: str, has_shared_values: bool) -> None:
        """Add a vector that moves to the groups to come."""
        self._kept.append(_Kept(weakref.ref(vector), description, has_shared_values))

    def keep_round(self, name: str) -> None:
        """Keep the values that a gather or an allreduce of vector `name` left.

        The group is superseded. A rejoining rank begins its round with these values. The survivors'
        present values would not do: they move to the next group at the beginning of a round, when
        they have made its step already.
        """
        assert self.group is not None
        call = self.group.superseded_by
        for vector, kept in self._open():
            if kept.has_shared_values and vector.name == name:
                kept.round = _Round(call, vector.iteration, handover.copy_of(vector))
        self.group.keep_round(name)

    def _round_of(self, kept: _Kept) -> _Round | None:
        """Return the kept round, or None if there is none or later rounds may have ended.

        Later rounds may have ended if another rank of the host restored the group since.
        """
        if self.group is None or kept.round is None:
            return None
        return kept.round if kept.round.call == self.group.superseded_by else None

    def vectors(self) -> list[AnyVector]:
        """Return the open vectors, in the order in which they were made."""
        return [made for made, _ in self._open()]

    def _open(self) -> list[tuple[AnyVector, _Kept]]:
        opened = [
            (made, kept) for kept in self._kept if (made := kept.vector()) and not made.is_closed
        ]
        self._kept = [kept for _, kept in opened]
        return opened

    @property
    def makes_due(self) -> bool:
        """Whether the next vector is one that the others have. Collective, as making it is."""
        if self.group is None:
            self.start()
        return self._due > 0

    def rejoin(
        self, make: Callable[[Group, bool], Made], description: str, has_shared_values: bool
    ) -> Made | None:
        """Rejoin: make a vector that the others have; None when they have no more. Collective."""
        if not self.makes_due:
            return None
        group = self.group
        assert group is not None
        self._compare(group, description)
        made = self._go_on(group, lambda: make(group, True))
        self.keep(made, description, has_shared_values)
        self._due -= 1
        if self._due == 0:
            self._complete()
        return made

    def _complete(self) -> None:
        """End joining: this rank has made all the vectors that the others have."""
        group = self.group
        assert group is not None
        if self.is_back:
            self._share(group)
            self._go_on(group, lambda: group.barrier(self._timeout))
        self._settle()

    @property
    def is_asked_to_leave(self) -> bool:
        return self._member.is_asked_to_leave

    @property
    def is_waited_for(self) -> bool:
        if self.is_back and any(
            vector.is_used for vector, kept in self._open() if kept.has_shared_values
        ):
            self.is_back = False
        return self.is_back

    def close(self) -> None:
        """Leave the job."""
        self._member.leave()  # first, so that the next group does not wait for this rank
        for group in (self.group, self._next):
            if group is not None:
                group.leave()
        self._member.close()


def _until(
    is_true: Callable[[], bool], limit: float, awaited: Callable[[], set[int]], what: str
) -> None:
    deadline = time.monotonic() + limit
    while not is_true():
        if time.monotonic() > deadline:
            ranks = sorted(awaited())
            raise errors.TimeoutError(
                f"{describe_ranks(ranks)} did not {what} within {limit:g} s", ranks
            )
        time.sleep(_NAP_SECONDS)
