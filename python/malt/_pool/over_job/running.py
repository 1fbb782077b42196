"""A program of MALT on all ranks of a job, on rank 0: brings them together, and has their results.

1. Each live rank answers once: with its result, its exception, or that it was stopped. A rank that
   is no longer live has a malt.PeerError for its result, and the others go on.
2. When a rank fails, all others are stopped, because they may wait for it. The exception of a rank
   that failed by itself comes out of the call, rather than that of one that missed another rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from malt._core_import import Deadline
from malt._errors import (
    DamagedError,
    PeerError,
    TimeoutError,  # noqa: A004
    describe_ranks,
)
from malt._job.job import Job
from malt._messages import values
from malt._pool import failures
from malt._pool.over_job.inbox import Inbox
from malt._pool.over_job.messenger import Message, Messenger
from malt._pool.over_job.program import Program, StoppedError

_GRACE_SECONDS = 2.0  # for the answers of ranks that are stopped


class Running:
    """One run. attend() is for the thread that has the inbox's lock."""

    def __init__(
        self, job: Job, messenger: Messenger, inbox: Inbox, call: int, members: Sequence[int]
    ) -> None:
        self._messenger = messenger
        self._call = call
        self._size = job.size
        self._members = members
        self._waiting = set(members) - {messenger.rank}
        self._results: dict[int, Any] = {}
        self._failures: list[BaseException] = []
        self._inbox = inbox
        self._program = Program(job, lambda: inbox.listening(self.attend))
        self._step = 0
        self._given: dict[int, dict[int, bytes]] = {}  # by step, and by rank

    def results(
        self, function: Callable[..., Any], argument: Sequence[bytes | memoryview]
    ) -> list[Any]:
        """Run the program on this rank too; return the results of all, by rank."""
        try:
            parts = self._program.run(self._members, self._allgather, function, argument)
            self._results[self._messenger.rank] = _own_copy(parts)
        except StoppedError:
            pass  # because of the failure of another rank
        except (Exception, SystemExit) as error:
            self._fail(error)
        self._inbox.check()
        self._await_answers()
        if self._failures:
            raise self._first_cause()
        return [
            self._results.get(rank) if rank in self._members else _died(rank)
            for rank in range(self._size)
        ]

    def attend(self) -> list[int]:
        """Take in the ranks' answers; return the ranks that were live before."""
        live = self._messenger.live()
        while message := self._messenger.receive():
            if message.subject[1:2] == [self._call] and message.sender in self._waiting:
                self._take(message, message.subject[0], message.subject[2:])
        for rank in self._waiting.difference(live):
            self._waiting.remove(rank)
            self._results[rank] = _died(rank)
        if self._failures:
            self._program.stop()
        return live

    def _take(self, message: Message, kind: object, told: Sequence[Any]) -> None:
        rank = message.sender
        if kind == "gather":
            step = told[0] if told and type(told[0]) is int else -1
            if step - self._step not in (0, 1) or len(message.parts) != 1:  # one ahead at most
                raise DamagedError(f"rank {rank} sent a damaged part of a group's forming")
            self._given.setdefault(step, {})[rank] = bytes(message.parts[0])
            return
        self._waiting.remove(rank)
        if kind == "done":
            self._results[rank] = _own_copy(message.parts)
        elif kind == "failed":
            self._fail(failures.on_rank(rank, told))

    def _fail(self, error: BaseException) -> None:
        if not self._failures:  # rule 2
            for rank in self._messenger.others():
                self._messenger.send(rank, "stop")
        self._failures.append(error)

    def _await_answers(self) -> None:
        while live := self.attend():
            if not self._waiting:
                return
            if self._failures:
                break
            self._messenger.wait(live)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._waiting and (left := deadline - time.monotonic()) > 0:
            self._messenger.wait(live, left)
            live = self.attend()

    def _first_cause(self) -> BaseException:
        for failure in self._failures:
            if not isinstance(failure, PeerError):
                return failure
        return self._failures[0]

    def _allgather(self, data: bytes, deadline: Deadline) -> list[bytes]:
        """Exchange what each rank gives while the ranks form the program's group."""
        self._step += 1
        given = self._given.setdefault(self._step, {})
        given[self._messenger.rank] = data
        while True:
            live = self.attend()
            if self._failures:
                raise StoppedError
            if not (missing := set(self._members) - given.keys()):
                break
            if dead := missing.difference(live):
                raise PeerError(
                    f"pool.run(): {describe_ranks(dead)} died or left the job before the program "
                    "had begun",
                    dead,
                )
            if not (left := deadline.left):
                raise TimeoutError(
                    f"pool.run(): {describe_ranks(missing)} did not come within {deadline.limit:g} "
                    "s; a rank may still be busy with a call that was given up",
                    missing,
                )
            self._messenger.wait(live, left)
        parts = [given.get(rank, b"") for rank in range(self._size)]
        for rank in self._messenger.others():
            self._messenger.send(rank, "gathered", self._call, self._step, parts=parts)
        return parts


def _died(rank: int) -> PeerError:
    return PeerError(f"rank {rank} has died or left the job in pool.run(), or before", [rank])


def _own_copy(parts: Sequence[bytes | memoryview]) -> Any:
    """Return a result that the caller may write to."""
    return values.unpack([memoryview(bytearray(part)) for part in parts])
