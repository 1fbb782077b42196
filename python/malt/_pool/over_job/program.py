"""A program of MALT on a rank of a job that has a pool, in a job of its own.

The program's job has the same ranks, and ends with the program. So a program that fails, is stopped
or leaves its job does not disturb the calls that the ranks make together afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from malt._core_import import Deadline, Turns
from malt._engines.stopping import Stop, stop_thread
from malt._job import job as jobs
from malt._job.job import Job
from malt._messages import values
from malt._rejoining.forming import AllGather


class StoppedError(Exception):
    """The program was stopped."""


class Program:
    """A program on this rank. Another thread may stop it inside `listening`."""

    def __init__(self, job: Job, listening: Callable[[], AbstractContextManager[None]]) -> None:
        self._job = job
        self._listening = listening
        self._lock = threading.Lock()
        self._thread: int | None = None  # that runs the program, unless it was stopped

    def run(
        self,
        members: Sequence[int],
        allgather: AllGather,
        function: Callable[..., Any],
        argument: Sequence[bytes | memoryview],
    ) -> values.Parts:
        """Run it; return the parts of its result. Collective over the members.

        Raises:
            StoppedError: stop() was called.
        """
        job, turns = self._job, Turns()
        args, named = values.unpack([memoryview(part).toreadonly() for part in argument])
        make = job.make_further(job.rank, job.size, turns, False)
        group = make(list(members), allgather, Deadline(job.settings.timeout))
        own = Job(job.rank, job.size, job.settings, turns, group, job.make_further)
        with jobs.in_program(own), self._listening():
            return self._stoppable(
                lambda: values.pack(function(*args, **named), "a result of pool.run()")
            )

    def stop(self) -> None:
        """Stop the program, if it runs, at its next step in Python or in a wait of MALT."""
        with self._lock:
            if self._thread is not None:
                stop_thread(self._thread)
                self._thread = None

    def _stoppable(self, call: Callable[[], values.Parts]) -> values.Parts:
        try:
            self._thread = threading.get_ident()
            try:
                return call()
            finally:
                with self._lock:
                    self._thread = None
                _step()
        except Stop:
            with self._lock:
                self._thread = None
            raise StoppedError from None


def _step() -> None:
    """Let Python raise what stop() has sent."""
