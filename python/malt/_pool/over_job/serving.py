"""A rank of a job that serves the pool of rank 0: it has chunks, adds up, and runs programs.

1. A rank that is asked for something else in the middle of a sum or a program gives that up: rank 0
   asks a rank for one thing at a time, unless it has given up the call itself. Only giving chunks
   back is a part of a sum.
2. A rank says what it gives back whenever it is asked, and that it is nothing if the sum is over.
3. Only rank 0 makes calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from malt._core_import import Deadline
from malt._errors import ConfigError, DamagedError, PeerError
from malt._job import job as jobs
from malt._job.job import Job
from malt._messages import values
from malt._pool import failures, planning
from malt._pool.over_job import naming
from malt._pool.over_job.backlog import Backlog
from malt._pool.over_job.chunks import Chunks, Key
from malt._pool.over_job.inbox import Inbox
from malt._pool.over_job.messenger import Message, Messenger
from malt._pool.over_job.program import Program, StoppedError

# By the kind of a request: the types of the fields that follow; [of] is a list of any length.
_REQUESTS: dict[str, Any] = {
    "chunk": (int, int),
    "drop": ([int],),
    "sum": (int, str, str, int, [(int, int, int)]),
    "run": (int, str, str, [int]),
    "back": (int, [int]),
    "gathered": (int, int),
    "stop": (),
    "close": (),
}

_is_open = False  # this process has a pool over its job, or serves one


def begin(job: Job) -> None:
    """Note that this process is about to have a pool over the job, or to serve one.

    Raises:
        malt.ConfigError: it cannot.
    """
    global _is_open
    if not isinstance(job, Job):
        raise ConfigError(
            f"malt.Pool(over={job!r}): over= takes the job that malt.init() returns, as in "
            "malt.Pool(over=malt.init())"
        )
    if jobs.current() is not job:
        raise ConfigError("malt.Pool(over=...): this process has left that job; give the present")
    if job.generations is not None:
        raise ConfigError(
            "malt.Pool(over=...): a rank that rejoins could not enter the pool; start the job "
            "without --respawn and --elastic, and with --keep-going against deaths"
        )
    if _is_open:
        raise ConfigError("malt.Pool(over=...): this job has a pool already; close that one first")
    _is_open = True


def end() -> None:
    """Note that it has none any more."""
    global _is_open
    _is_open = False


def serve(job: Job, names: naming.Names) -> None:
    """Serve until rank 0 closes its pool. Collective, after begin().

    Raises:
        PeerError: rank 0 has died, or has left the job.
        DamagedError: another rank makes calls, or rank 0 such as there are not.
    """
    messenger, inbox = Messenger(job), Inbox()
    try:
        _Server(job, messenger, inbox, names).serve()
    finally:
        inbox.close()
        messenger.close()


class _Server:
    def __init__(self, job: Job, messenger: Messenger, inbox: Inbox, names: naming.Names) -> None:
        self._messenger = messenger
        self._names = names
        self._inbox = inbox
        self._chunks = Chunks()
        self._backlog = Backlog()
        self._call = -1  # whose chunks are in the backlog
        self._theta: Sequence[memoryview] = ()  # of that call
        self._program = Program(job, lambda: inbox.listening(self._attend_program))
        self._next: Message | None = None  # for which a call is given up

    def serve(self) -> None:
        while (message := self._await()).subject[0] != "close":
            kind, *told = message.subject
            if kind == "chunk":
                block, offset = told
                self._chunks.keep((block, offset), message.parts)
            elif kind == "drop":
                self._chunks.drop(told[0])
            elif kind == "sum":
                self._sum(told, message.parts)
            elif kind == "run":
                self._run(told, message.parts)
            elif kind == "back":
                self._give_back(told)

    def _await(self) -> Message:
        self._inbox.check()
        if (message := self._next) is not None:
            self._next = None
            return message
        while True:
            live = self._messenger.live()  # first: what rank 0 sent before its end is here then
            if (message := self._receive()) is not None:
                return message
            if 0 not in live:
                raise PeerError(
                    "rank 0, whose malt.Pool this rank serves, has died or left the job", [0]
                )
            self._messenger.wait(live)

    def _receive(self) -> Message | None:
        message = self._messenger.receive()
        if message is not None and message.sender != 0:  # rule 3
            raise DamagedError(
                f"rank {message.sender} makes calls of malt.Pool, as only rank 0 does"
            )
        if message is not None:
            _check(message.subject)
        return message

    # A sum

    def _sum(self, told: Sequence[Any], theta: Sequence[memoryview]) -> None:
        call, module, name, total, asked = told
        if call != self._call:
            self._call, self._theta = call, theta
        self._backlog = backlog = Backlog()
        backlog.add(chunk for chunk, _, _ in asked)
        keys = {chunk: (block, offset) for chunk, block, offset in asked}
        try:
            with self._inbox.listening(self._attend):
                function = self._names.find(module, name)
                argument = values.unpack(self._theta)
                value = planning.add_up(function, argument, self._begin(backlog, keys), total)
                parts = values.pack(value, "a result")
        except StoppedError:
            return
        except (Exception, SystemExit) as error:  # rank 0 raises it
            self._messenger.send(0, "failed", call, *failures.describe(error))
        else:
            self._messenger.send(0, "done", call, backlog.seconds, parts=parts)
            self._messenger.flush()

    def _begin(
        self, backlog: Backlog, keys: dict[int, Key]
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        while True:
            with self._inbox.lock:
                self._inbox.check()
                live = self._messenger.live()
                self._attend()
                if 0 not in live or self._next is not None:  # rule 1
                    raise StoppedError
                if (chunk := backlog.begin()) is None:
                    return
            yield chunk, self._chunks[keys[chunk]]

    def _attend(self) -> None:
        """Take in what comes in the middle of a call."""
        if self._next is not None:  # so that rank 0 need not wait for this rank
            self._messenger.take_in()
        while self._next is None and (message := self._receive()) is not None:
            if message.subject[0] == "back":
                self._give_back(message.subject[1:])
            else:
                self._next = message

    def _give_back(self, told: Sequence[Any]) -> None:
        call, wanted = told
        back = self._backlog.give_back(wanted) if call == self._call else []
        self._messenger.send(0, "back", call, back)

    # A program

    def _run(self, told: Sequence[Any], argument: Sequence[memoryview]) -> None:
        call, module, name, members = told
        steps = iter(range(1, 1 << 30))

        def allgather(data: bytes, _: Deadline) -> list[bytes]:
            step = next(steps)
            self._messenger.send(0, "gather", call, step, parts=[data])
            message = self._await()
            if message.subject != ["gathered", call, step]:
                self._next = message
                raise StoppedError
            return [bytes(part) for part in message.parts]

        try:
            function = self._names.find(module, name)
            parts = self._program.run(members, allgather, function, argument)
        except StoppedError:
            self._messenger.send(0, "stopped", call)
        except (Exception, SystemExit) as error:  # rank 0 raises it
            self._messenger.send(0, "failed", call, *failures.describe(error))
        else:
            self._messenger.send(0, "done", call, parts=parts)
            self._messenger.flush()

    def _attend_program(self) -> None:
        live = self._messenger.live()
        self._attend()
        if self._next is not None or 0 not in live:
            self._program.stop()


def _check(subject: list[Any]) -> None:
    """Raise DamagedError unless this is a request of rank 0."""
    kind, *told = subject or [None]
    if not (isinstance(kind, str) and kind in _REQUESTS):
        raise DamagedError(f"rank 0 asks for {kind!r}, which malt.Pool does not know")
    if not _fits(told, _REQUESTS[kind]):
        raise DamagedError(f"rank 0 asks for {kind!r} of malt.Pool in a message that is damaged")


def _fits(told: object, fields: Any) -> bool:
    if isinstance(fields, type):
        return type(told) is fields
    if isinstance(fields, list):
        return isinstance(told, list) and all(_fits(each, fields[0]) for each in told)
    is_as_long = isinstance(told, list) and len(told) == len(fields)
    return is_as_long and all(map(_fits, told, fields))  # type: ignore[call-overload]
