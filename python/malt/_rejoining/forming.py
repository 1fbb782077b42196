"""Forms the group of each generation to which the launcher calls this rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from malt import _errors as errors
from malt._core_import import Deadline, Group
from malt._errors import Error, PeerError, describe_ranks
from malt._rendezvous.member_session import Member, NewerError

# Forming a group may fail because a rank has died: this is how long the launcher may take to report
# that. If the error certainly comes from other ranks, the launcher has the whole time limit.
_NEWS_SECONDS = 2.0

Result = TypeVar("Result")
AllGather = Callable[[bytes, Deadline], list[bytes]]
MakeGroup = Callable[[list[int], AllGather, Deadline], Group]


class Formed(NamedTuple):
    """A group that this rank has formed together with its other members."""

    number: int  # of its generation
    group: Group
    members: set[int]  # without those that have been reported as evicted


class Forming:
    """A rank's side of forming groups. Only the rank's own thread may use it.

    Attributes:
        number: of the last generation that this rank has looked at.
    """

    def __init__(self, member: Member, make_group: MakeGroup, timeout: float) -> None:
        self.number = 0
        self._member = member
        self._make_group = make_group
        self._timeout = timeout
        self._formed: Formed | None = None  # the last one

    def join(self, is_in_vain: Callable[[], bool]) -> Formed | None:
        """Join and return the next group; None if it is called off, or once `is_in_vain()`."""
        while True:
            limit = 2 * self._timeout + 1  # longer than the launcher's limit: it decides first
            call = self._member.await_call(self.number, limit, is_in_vain)
            if call.number <= self.number:
                return None
            self.number = call.number
            if not call.members:
                return None
            if (group := self._form(call.members)) is not None:
                self._formed = Formed(self.number, group, set(call.members))
                return self._formed

    def _form(self, members: list[int]) -> Group | None:
        """Form the group of the present generation; None if another generation follows it."""
        group = None
        try:
            self._await_evictions(set(members))
            allgather = partial(self._allgather, self.number)
            group = self._make_group(members, allgather, Deadline(self._timeout))
            self._member.formed(self.number, self._timeout, self._report_evicted)
        except NewerError:
            if group is not None:
                group.leave()
            return None
        except Error as error:
            is_others = isinstance(error, PeerError | errors.TimeoutError)
            limit = self._timeout if is_others else _NEWS_SECONDS
            with contextlib.suppress(errors.TimeoutError):
                self._member.await_call(self.number, limit, lambda: False)
                return None
            raise
        return group

    def _await_evictions(self, members: set[int]) -> None:
        """Wait until this rank's group has evicted the ranks that the next group lacks.

        Two launchers may call ranks at once, after a cut between them. A group evicts by proof or
        by majority, so the ranks of one part at most can go on to another group.

        Raises:
            NewerError: another generation follows.
            malt.TimeoutError: the group has not evicted the ranks that the error names.
        """
        if self._formed is None:
            return
        group = self._formed.group

        def left_behind() -> list[int]:
            return sorted(set(group.alive()) - members)

        if not self._member.await_done(self.number, self._timeout, lambda: not left_behind()):
            ranks = left_behind()
            raise errors.TimeoutError(
                f"the next group lacks {describe_ranks(ranks)}, which the present one has not "
                f"evicted within {self._timeout:g} s",
                ranks,
            )

    def _allgather(self, number: int, data: bytes, deadline: Deadline) -> list[bytes]:
        return self._member.allgather(number, data, deadline.left, self._report_evicted)

    def agree(self, group: Group, data: bytes) -> list[bytes]:
        """Return every member's bytes: all ranks get the same, even if a rank dies meanwhile."""
        return self.complete(
            group,
            lambda: self._member.agree(self.number, data, self._timeout, self._report_evicted),
        )

    def complete(self, group: Group, step: Callable[[], Result]) -> Result:
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
                ranks = set(error.ranks)
                if group.is_left_out(group.rank) or not ranks or ranks & set(group.alive()):
                    raise
            except errors.TimeoutError as error:
                if set(error.ranks) <= reported:
                    raise
                reported.update(error.ranks)
                self._member.absent(self.number, error.ranks)

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
