"""A rank of a job that serves the pool of rank 0: it has chunks, and adds up what it is asked for.

A rank that is asked for something else in the middle of a sum gives that sum up: rank 0 asks a rank
for one thing at a time, unless it has given up the call itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from malt._errors import ConfigError, DamagedError, PeerError
from malt._job import job as jobs
from malt._job.job import Job
from malt._pool import failures, naming, planning, values
from malt._pool.chunks import Chunks
from malt._pool.post import Message, Post

_is_open = False  # this process has a pool over its job, or serves one


class _GivenUpError(Exception):
    """Rank 0 has given up the call."""


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


def serve(job: Job) -> None:
    """Serve until rank 0 closes its pool. Collective, after begin().

    Raises:
        PeerError: rank 0 has died, or has left the job.
    """
    post = Post(job)
    try:
        _Server(post).serve()
    finally:
        post.close()


class _Server:
    def __init__(self, post: Post) -> None:
        self._post = post
        self._chunks = Chunks()

    def serve(self) -> None:
        while (message := self._next()).subject[0] != "close":
            kind, *told = message.subject
            if kind == "chunk":
                block, offset = told
                self._chunks.keep((block, offset), message.parts)
            elif kind == "drop":
                self._chunks.drop(told[0])
            elif kind == "sum":
                self._sum(told, message.parts)
            elif kind != "stop":
                raise DamagedError(f"rank 0 asks for {kind!r}, which malt.Pool does not know")

    def _next(self) -> Message:
        while True:
            live = self._post.live()  # first: what rank 0 sent before its end is here then
            if (message := self._post.receive()) is not None:
                return message
            if 0 not in live:
                raise PeerError(
                    "rank 0, whose malt.Pool this rank serves, has died or left the job", [0]
                )
            self._post.wait(live)

    def _sum(self, told: Sequence[Any], theta: Sequence[memoryview]) -> None:
        call, module, name, total, asked = told
        try:
            function = naming.find(module, name)
            value = planning.add_up(function, values.unpack(theta), self._load(asked), total)
            parts = values.pack(value, "a result")
        except _GivenUpError:
            return
        except (Exception, SystemExit) as error:  # rank 0 raises it
            self._post.send(0, "failed", call, *failures.describe(error))
        else:
            self._post.send(0, "done", call, parts=parts)
            self._post.flush()

    def _load(self, asked: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        for chunk, block, offset in asked:
            if self._post.has_message():
                raise _GivenUpError
            yield chunk, self._chunks[block, offset]
