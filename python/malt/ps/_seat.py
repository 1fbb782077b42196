"""This rank's part of a table, which moves from group to group with the job.

A table is a sequence of editions, one for each group of the job; `src/vol/ps/server.hpp` has the
rules (P10). Each step in which the ranks agree brings all of them the same bytes, even if a rank
dies meanwhile (`Generations.agree`). So all ranks go on with the same step, and to the next edition
together or not at all.
"""

from __future__ import annotations

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from malt._core_import import Deadline, Group
from malt._core_import import Table as Core
from malt._errors import ConfigError, Error, PeerError, TimeoutError, describe_ranks  # noqa: A004
from malt._job import job as jobs
from malt._job.job import Job
from malt.ps import _joining

log = logging.getLogger("malt")

_NAP_SECONDS = 0.0005
_MOST_FAILURES = 3  # after the first, though no rank has ended
# A call goes over to the next group if it is the fifth of a table that was made before all vectors
# and other tables, or comes after a hundred of another one, since the ranks were called together.
_MOST_PASSED_BY, _OF_FIRST = 100, 25
# The first byte of what a rank gives in a step of moving.
_JOINS, _IS_READY, _FAILED = b"J", b"R", b"F"
_BRINGS, _IS_NEW, _HAS_LEFT = b"B", b"N", b"L"


class Seat:
    """A rank's part of a table. It moves with its rank from group to group, as vectors do.

    Attributes:
        name: for error messages.
        clients: the group of the present edition, of which this rank's client is a member.
        ranks: those of the present edition, sorted.
        edition: the same number on all ranks, and another one in each edition.
        is_used: this rank has made a call of the table.
        is_closed: all ranks have closed the table.
    """

    def __init__(self, job: Job, name: str, description: str, core: Core, timeout: float) -> None:
        self.name = name
        self.clients: Group | None = None
        self.ranks: list[int] = []
        self.edition = 0
        self.is_used = False
        self.is_closed = False
        self._core: Core | None = core
        self._job = job
        self._what = f"malt.ps.Table {name!r}"
        self._description = description
        self._timeout = timeout
        self._call = 0  # that superseded the group
        self._passed_by = 0  # weighted calls since then

    @property
    def iteration(self) -> int:
        """No message of a table goes through the job's group."""
        return 0

    def clock_of(self, _rank: int, /) -> int:
        return 0

    @property
    def is_open(self) -> bool:
        return self._core is not None

    @property
    def core(self) -> Core:
        """The compiled part."""
        if self._core is None:
            raise ConfigError(f"table '{self.name}' has been closed")
        return self._core

    def enter(self, group: Group, rejoins: bool, deadline: Deadline) -> Seat:
        """Take part in the table for the first time. Collective."""
        if rejoins:
            self._move(group)
            return self
        formed = _joining.form_first(self._job, group, self._what, self._description, deadline)
        try:
            with formed.clients.within(deadline):
                self._begin(group, formed, [])
        except BaseException:
            _leave(formed, deadline)
            raise
        self._commit(formed, [])
        return self

    def regroup(self, group: Group) -> None:
        """Move to another group of the job. Collective."""
        self._move(group)

    def go_over_if_due(self, *, is_clock: bool) -> None:
        """Move to the next group if the ranks are called there, and this is a moment for it."""
        generations = self._job.generations
        if generations is None or generations.group is None:
            return
        if not (call := generations.group.superseded_by):
            return
        if call != self._call:
            self._call, self._passed_by = call, 0
        is_first = generations.is_first(self)
        self._passed_by += _OF_FIRST if is_first else 1
        if (is_first and is_clock) or self._passed_by > _MOST_PASSED_BY:
            jobs.regroup()

    def leave(self, *, hands_over: bool, deadline: Deadline | None = None) -> None:
        """Leave the table; with `hands_over`, hand over this rank's ranges first. Idempotent.

        Without a deadline, it has the job's time limit.
        """
        core, self._core = self._core, None
        self.clients = None  # a group has a thread for as long as it exists
        if core is None:
            return
        if hands_over:
            try:
                core.hand_over(deadline)
            except Error as error:
                log.warning(
                    "%s: this rank leaves as if it had died, because it could not hand over its "
                    "rows: %s",
                    self._what,
                    error,
                )
        core.leave(deadline)

    # Steps of moving

    def _move(self, group: Group) -> None:
        """Go to the next edition."""
        generations = self._job.generations
        assert generations is not None

        def agree(data: bytes) -> list[bytes]:
            return generations.agree(group, data)

        has_seat = self.clients is not None
        has_left = self._core is None
        if has_seat:
            with contextlib.suppress(PeerError, TimeoutError):  # an error of a later call
                self.core.settle(Deadline(self._timeout))
        agree(_IS_READY)
        mine = _HAS_LEFT if has_left else _IS_NEW
        if has_seat:
            mine = _BRINGS + self.core.stop(Deadline(self._timeout))
        ranks: list[int] = []
        failures = 0
        while True:
            brought = agree(mine)
            before, ranks = ranks, [r for r, each in enumerate(brought) if each[:1] not in _NOT_IN]
            failures = failures + 1 if ranks == before else 0
            attempt = _Attempt(ranks, agree)
            if has_left:
                attempt.follow()
            else:
                self._attempt(attempt, group, brought)
            if attempt.has_succeeded:
                return
            if failures >= _MOST_FAILURES:
                raise Error(f"{self._what} cannot move to the next group: {attempt.text}")

    def _attempt(self, attempt: _Attempt, group: Group, brought: Sequence[bytes]) -> None:
        formed, deadline = None, Deadline(self._timeout)
        try:
            ranks, exchange = attempt.ranks, attempt.exchange
            formed = _joining.form(self._job, self._what, ranks, exchange, deadline)
            self._begin(group, formed, brought)
            self._await_ranges(formed)
        except Error as error:
            attempt.end(error)
        except BaseException as error:
            attempt.end(error)
            raise
        else:
            attempt.end(None)
        finally:
            if attempt.has_succeeded and formed is not None:
                self._commit(formed, brought)
            else:
                self.core.abandon()
                if formed is not None:
                    _leave(formed)

    def _begin(self, group: Group, formed: _joining.Formed, brought: Sequence[bytes]) -> None:
        self.core.begin(
            formed.clients,
            formed.servers,
            job=group if self._job.generations is not None else None,
            ranks=formed.ranks,
            brought=[each[1:] if each[:1] == _BRINGS else None for each in brought],
        )

    def _commit(self, formed: _joining.Formed, brought: Sequence[bytes]) -> None:
        self.core.commit()
        self.clients = formed.clients
        self.ranks = formed.ranks
        self.edition = zlib.crc32(b"".join(brought))

    def _await_ranges(self, formed: _joining.Formed) -> None:
        """Wait until all ranges that other ranks hand to this one have come."""
        size = self._job.size
        members = {*formed.ranks, *(size + rank for rank in formed.ranks)}
        deadline = Deadline(self._timeout)
        while True:
            movers = self.core.movers()
            if dead := sorted({member % size for member in members - set(formed.clients.alive())}):
                raise PeerError(f"{describe_ranks(dead)} died while the table moved", dead)
            if not movers:
                return
            if not deadline.left:
                raise TimeoutError(
                    f"ranges of {describe_ranks(movers)} did not come within {self._timeout:g} s",
                    movers,
                )
            time.sleep(_NAP_SECONDS)


_NOT_IN = (b"", _HAS_LEFT)


class _Attempt:
    """An attempt at forming an edition among `ranks`: each of them gives one byte or more a step.

    All ranks see the same steps. So all of them know at the same step that the attempt is over.
    """

    def __init__(self, ranks: list[int], agree: Callable[[bytes], list[bytes]]) -> None:
        self.ranks = ranks
        self.has_succeeded = False
        self.text = ""  # why it failed
        self._agree = agree
        self._is_over = False

    def exchange(self, data: bytes) -> dict[int, bytes]:
        """Give bytes to the other ranks, and return what each gave.

        Raises:
            PeerError: the attempt has failed.
        """
        posts = self._step(_JOINS + data)
        if self._is_over:
            raise PeerError(self.text, [])
        return {rank: posts[rank][1:] for rank in self.ranks}

    def end(self, error: BaseException | None) -> None:
        """Say how it ended on this rank, unless it is over already."""
        if not self._is_over:
            self._step(_IS_READY if error is None else _FAILED + str(error).encode())

    def follow(self) -> None:
        """Take part as a rank that has left the table."""
        while not self._is_over:
            self._step(_HAS_LEFT)

    def _step(self, mine: bytes) -> list[bytes]:
        posts = self._agree(mine)
        kinds = {posts[rank][:1] for rank in self.ranks}
        self._is_over = kinds != {_JOINS}
        self.has_succeeded = kinds == {_IS_READY}
        if self._is_over and not self.has_succeeded:
            texts = [posts[r][1:].decode(errors="replace") for r in self.ranks]
            failed = [t for r, t in zip(self.ranks, texts, strict=True) if posts[r][:1] == _FAILED]
            self.text = failed[0] if failed else "a rank ended meanwhile"
        return posts


def _leave(formed: Any, deadline: Deadline | None = None) -> None:
    formed.clients.leave(None if deadline is None else deadline.left)
    formed.servers.leave(None if deadline is None else deadline.left)
