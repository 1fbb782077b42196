"""Moves a rank from one group of the job to the next, in which rejoining ranks take part.

The launcher calls the ranks to form the next group (`_rendezvous/generation_table.py`). A rank
follows the call when it next scatters its first vector, or ends a clock of its first table, or
while it waits: it joins the next group (`forming.py`). When no rank can make progress in the old
group any more (`vote.py`), all move their vectors, in the order in which these were made
(`move_to_next`). A rejoining rank makes its vectors in the same order (`rejoin`), and in the end
receives the others' values (`handover.py`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from malt import _errors as errors
from malt import _pieces as pieces
from malt._core_import import Deadline, Group
from malt._errors import ConfigError, describe_ranks
from malt._rejoining import handover, roles
from malt._rejoining.await_ranks import await_ranks
from malt._rejoining.forming import Forming, MakeGroup
from malt._rejoining.open_vectors import OpenVectors
from malt._rejoining.vote import Voting
from malt._rendezvous.member_session import Member
from malt._vector_types import Movable

Made = TypeVar("Made", bound=Movable)


class Follower(Protocol):
    """An object that is told of every change of the group; its calls must wait for no rank."""

    def leave_group(self) -> None:
        """This rank is about to leave the present group; all ranks' data can still be read here."""

    def enter_group(self, group: Group) -> None:
        """All open vectors have moved into the next group."""


class Generations:
    """One rank's way through the groups of its job. Only the rank's own thread may use it.

    Attributes:
        group: the present group; None: this rank is rejoining and has not needed a group yet.
        epoch: the number that is added to the group's own epoch.
        restarts: by rank: 0, or how often a rank that has rejoined has been started again.
        followers: the objects that are told of a change of the group.
    """

    def __init__(
        self, member: Member, restarts: int, make_group: MakeGroup, timeout: float
    ) -> None:
        self.group: Group | None = None
        self.epoch = 0
        self.restarts = [0] * member.size
        if member.is_rejoining:
            self.restarts[member.rank] = restarts
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._member = member
        self._timeout = timeout
        self._forming = Forming(member, make_group, timeout)
        self._vectors = OpenVectors()
        self._voting: Voting | None = None  # this rank is in the old group and in the next
        self._roles: roles.Roles | None = None  # of the present group's ranks, if some rejoin
        self._due = 0  # vectors that this rejoining rank has yet to make
        self._is_between = True  # the group must not be superseded now
        self._is_in_next = True  # this rank's collective steps run in the next group, or the first
        self._is_rejoining = member.is_rejoining
        self._lock = threading.Lock()
        member.on_call = self._supersede

    @property
    def is_rejoining(self) -> bool:
        """Whether this rank rejoins and has not used a vector yet; the other ranks are ahead."""
        if self._is_rejoining and self._vectors.are_used():
            self._is_rejoining = False
        return self._is_rejoining

    @property
    def is_asked_to_leave(self) -> bool:
        return self._member.is_asked_to_leave

    def start(self) -> Group:
        """Join the first group; a rejoining rank joins the next one. Collective.

        Raises:
            malt.TimeoutError: the ranks that the error names did not come.
        """
        self._member.want(self._timeout)
        formed = self._forming.join(lambda: False)
        if formed is None:
            missing = self._member.latest().missing
            raise errors.TimeoutError(
                f"{describe_ranks(missing)} did not come within {self._timeout:g} s; a longer "
                "limit: malt.init(timeout=...) or MALT_TIMEOUT",
                missing,
            )
        if self._member.is_rejoining:
            self._voting = Voting(None, formed, self._forming, self._vectors, self._timeout)
            self._voting.decide(has_moved=False)
            self._voting = None
            self._due = self._assign_roles(formed.group).vectors
        self.group = formed.group
        if self._due == 0:
            self._end_joining()
        return formed.group

    def close(self, timeout: float) -> None:
        """Leave the job."""
        deadline = Deadline(timeout)
        self._member.leave()  # first, so that the next group does not wait for this rank
        for group in (self.group, self._voting.group if self._voting else None):
            if group is not None:
                group.leave(deadline.left)
        self._member.close()

    # Moving to the next group

    def _supersede(self) -> None:
        """Supersede the group: there is a newer generation. The listening thread calls this."""
        with self._lock:
            if not self._is_between and self.group is not None:
                self.group.supersede(self._member.latest().number)

    def _settle(self) -> None:
        """Begin to work in the present group; from now on a newer generation may supersede it."""
        with self._lock:
            self._is_between = self._is_in_next = False
            self._vectors.forget_rounds()
            if self._member.latest().number > self._forming.number:
                assert self.group is not None
                self.group.supersede(self._member.latest().number)

    def look_again(self, is_new: bool) -> bool:
        """Return whether a wait in a superseded group may still succeed.

        A rank that is only in the old group first joins the next one. Then all ranks vote. With
        `is_new`, this rank has made progress since it last looked.

        In the next group a wait always ends by itself. Another rank of this host may supersede that
        group already: it has then completed the last exchange there, and this rank can too.
        """
        if self._is_in_next:
            return True
        if self._voting is None:
            self._voting = self._prepare()
            is_new = True
        if self._voting is None:
            return True
        self._voting.vote(has_moved=is_new)
        return not self._voting.is_decided

    def _prepare(self) -> Voting | None:
        """Join the next group. None: there is none after all, and the present one goes on."""
        group = self.group
        assert group is not None
        with self._lock:
            self._is_between = True
        formed = self._forming.join(lambda: not group.is_superseded)
        if formed is None:
            group.restore()
            self._settle()
            return None
        return Voting(group, formed, self._forming, self._vectors, self._timeout)

    def move_to_next(self) -> None:
        """Leave the old group for the next, with all vectors. Collective.

        Rejoining ranks that do not make the vectors within the time limit are evicted.
        """
        if self._voting is None:
            self._voting = self._prepare()
        if self._voting is None:
            return
        self._voting.decide(has_moved=True)
        old, group = self.group, self._voting.group
        assert old is not None
        for follower in self.followers:
            follower.leave_group()
        self._is_in_next = True
        try:
            self._rebuild(group)
        finally:
            self._is_in_next = False
        self.group, self._voting = group, None
        old.leave()
        self._settle()

    def _rebuild(self, group: Group) -> None:
        """Move all vectors to the next group."""
        described = self._vectors.described()  # no vector is freed before it has moved
        self._assign_roles(group)
        for vector, description in described:
            self._compare(group, description)
            self._forming.complete(group, partial(vector.regroup, group))
        self._share(group)
        for follower in self.followers:
            follower.enter_group(group)
        self._forming.complete(group, lambda: group.barrier(self._timeout))

    def _assign_roles(self, group: Group) -> roles.Roles:
        """Agree with the other ranks of the next group which of them rejoin."""
        rounds = self._vectors.kept_iterations(self.group)
        mine = roles.State(
            is_rejoining=self.group is None,
            restarts=self.restarts[group.rank],
            vectors=len(self._vectors.all()),
            epoch=self.epoch + (self.group.epoch if self.group is not None else 0),
            kept=len(rounds),
            rounds=sum(rounds),
        )
        self._roles = roles.assign(self._forming.agree(group, mine.pack()))
        for rank, restarts in self._roles.restarts.items():
            self.restarts[rank] = restarts
        self.epoch = self._roles.epoch
        return self._roles

    def _share(self, group: Group) -> None:
        """Hand the values to the rejoining ranks."""
        assert self._roles is not None
        rejoining, senders = self._roles.rejoining, self._roles.senders
        vectors = self._vectors.shared(self.group)
        handover.share(group, vectors, rejoining, senders, self._timeout)

    def _compare(self, group: Group, description: str) -> None:
        """Check that all ranks make the same vector.

        A rejoining rank that makes another one leaves the group again; the survivors wait for that.
        """
        assert self._roles is not None
        rejoining = self._roles.rejoining
        mine = description.encode()[: pieces.MOST_BYTES]
        posts = self._forming.complete(
            group,
            lambda: group.exchange("a vector that moves to the new group", mine, self._timeout),
        )
        texts = {rank: post.decode(errors="replace") for rank, post in enumerate(posts) if post}
        right = next((text for rank, text in texts.items() if rank not in rejoining), description)
        if group.rank in rejoining and texts[group.rank] != right:
            group.leave()
            raise ConfigError(
                f"rejoining rank {group.rank} makes {texts[group.rank]}, but the other ranks have "
                f"{right}; the script must make the same vectors in the same order"
            )
        wrong = {rank for rank in rejoining if texts.get(rank, right) != right}
        await_ranks(lambda: wrong & set(group.alive()), "leave", self._timeout)

    # Vectors

    def add(
        self, vector: Movable, description: str, has_shared_values: bool, is_of_loop: bool
    ) -> None:
        """Add a vector that moves to the groups to come."""
        self._vectors.add(vector, description, has_shared_values, is_of_loop)

    def is_first(self, vector: Movable) -> bool:
        """Whether it is the open vector that was made first."""
        return self._vectors.all()[:1] == [vector]

    def agree(self, group: Group, data: bytes) -> list[bytes]:
        """Return the bytes of each rank of `group`, the same on all of them; b"": it is not there.

        For a step of moving to the group that has just been formed, which all its ranks make.
        """
        return self._forming.agree(group, data)

    def keep_round(self, name: str) -> None:
        """Keep the values of a round of vector `name`, which has ended in a superseded group."""
        assert self.group is not None
        self._vectors.keep_round(self.group, name)
        self.group.keep_round(name)

    def makes_due(self) -> bool:
        """Whether the next vector is one that the others have. Collective, as making it is."""
        if self.group is None:
            self.start()
        return self._due > 0

    def rejoin(
        self,
        make: Callable[[Group, bool], Made],
        description: str,
        has_shared_values: bool,
        is_of_loop: bool,
    ) -> Made | None:
        """Rejoin: make a vector that the others have; None when they have no more. Collective."""
        if not self.makes_due():
            return None
        group = self.group
        assert group is not None
        self._compare(group, description)
        made = self._forming.complete(group, lambda: make(group, True))
        self.add(made, description, has_shared_values, is_of_loop)
        self._due -= 1
        if self._due == 0:
            self._end_joining()
        return made

    def _end_joining(self) -> None:
        """End joining: this rank has made all the vectors that the others have."""
        group = self.group
        assert group is not None
        if self._member.is_rejoining:
            self._share(group)
            self._forming.complete(group, lambda: group.barrier(self._timeout))
        self._settle()
