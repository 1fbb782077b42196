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

from malt._errors import ConfigError, DamagedError, PeerError
from malt._job import job as jobs
from malt._job import values
from malt._job.job import Job
from malt._pool import failures, naming, planning
from malt._pool.chunks import Chunks, Key
from malt._pool.ear import Ear
from malt._pool.hand import Hand
from malt._pool.post import Message, Post
from malt._pool.program import Program, StoppedError

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
    post, ear = Post(job), Ear()
    try:
        _Server(job, post, ear, names).serve()
    finally:
        ear.close()
        post.close()


class _Server:
    def __init__(self, job: Job, post: Post, ear: Ear, names: naming.Names) -> None:
        self._post = post
        self._names = names
        self._ear = ear
        self._chunks = Chunks()
        self._hand = Hand()
        self._call = -1  # whose chunks are in the hand
        self._theta: Sequence[memoryview] = ()  # of that call
        self._program = Program(job, lambda: ear.listening(self._attend_program))
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
        self._ear.check()
        if (message := self._next) is not None:
            self._next = None
            return message
        while True:
            live = self._post.live()  # first: what rank 0 sent before its end is here then
            if (message := self._receive()) is not None:
                return message
            if 0 not in live:
                raise PeerError(
                    "rank 0, whose malt.Pool this rank serves, has died or left the job", [0]
                )
            self._post.wait(live)

    def _receive(self) -> Message | None:
        message = self._post.receive()
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
        self._hand = hand = Hand()
        hand.add(chunk for chunk, _, _ in asked)
        keys = {chunk: (block, offset) for chunk, block, offset in asked}
        try:
            with self._ear.listening(self._attend):
                function = self._names.find(module, name)
                argument = values.unpack(self._theta)
                value = planning.add_up(function, argument, self._begin(hand, keys), total)
                parts = values.pack(value, "a result")
        except StoppedError:
            return
        except (Exception, SystemExit) as error:  # rank 0 raises it
            self._post.send(0, "failed", call, *failures.describe(error))
        else:
            self._post.send(0, "done", call, hand.seconds, parts=parts)
            self._post.flush()

    def _begin(self, hand: Hand, keys: dict[int, Key]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        while True:
            with self._ear.lock:
                self._ear.check()
                live = self._post.live()
                self._attend()
                if 0 not in live or self._next is not None:  # rule 1
                    raise StoppedError
                if (chunk := hand.begin()) is None:
                    return
            yield chunk, self._chunks[keys[chunk]]

    def _attend(self) -> None:
        """Take in what comes in the middle of a call."""
        if self._next is not None:  # so that rank 0 need not wait for this rank
            self._post.take_in()
        while self._next is None and (message := self._receive()) is not None:
            if message.subject[0] == "back":
                self._give_back(message.subject[1:])
            else:
                self._next = message

    def _give_back(self, told: Sequence[Any]) -> None:
        call, wanted = told
        back = self._hand.give_back(wanted) if call == self._call else []
        self._post.send(0, "back", call, back)

    # A program

    def _run(self, told: Sequence[Any], argument: Sequence[memoryview]) -> None:
        call, module, name, members = told
        steps = iter(range(1, 1 << 30))

        def allgather(data: bytes, _: float) -> list[bytes]:
            step = next(steps)
            self._post.send(0, "gather", call, step, parts=[data])
            message = self._await()
            if message.subject != ["gathered", call, step]:
                self._next = message
                raise StoppedError
            return [bytes(part) for part in message.parts]

        try:
            function = self._names.find(module, name)
            parts = self._program.run(members, allgather, function, argument)
        except StoppedError:
            self._post.send(0, "stopped", call)
        except (Exception, SystemExit) as error:  # rank 0 raises it
            self._post.send(0, "failed", call, *failures.describe(error))
        else:
            self._post.send(0, "done", call, parts=parts)
            self._post.flush()

    def _attend_program(self) -> None:
        live = self._post.live()
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
