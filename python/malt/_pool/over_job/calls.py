"""A pool over a job, on rank 0, which makes the calls; the other ranks serve (serving.py).

A call that ends by an exception is given up. Messages name their call, and those of an earlier one
are dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from malt._errors import Error
from malt._job.job import Job
from malt._messages import values
from malt._pool.over_job import naming, serving
from malt._pool.over_job.copies import Copies
from malt._pool.over_job.inbox import Inbox
from malt._pool.over_job.messenger import Messenger
from malt._pool.over_job.running import Running
from malt._pool.over_job.summing import Summing
from malt._pool.store import SharedData, Store


class JobCalls:
    """Makes one call after the other.

    Attributes:
        store: of all data.
        count: how many calls were made.
        chunks_taken: how many chunks were moved to another rank than the one they are dealt to.
        restarts: none; a rank that has died stays dead.
    """

    restarts = 0

    def __init__(self, job: Job, names: naming.Names) -> None:
        self.store = Store(lambda chunk: values.pack(chunk, "a chunk of pool.share()"))
        self.count = 0
        self.chunks_taken = 0
        self._job = job
        self._names = names
        self._messenger = Messenger(job)
        self._inbox = Inbox()
        self._copies = Copies(self.store, self._messenger, job.size)

    def sum(
        self,
        function: Callable[..., Any],
        theta: object,
        data: SharedData,
        show: Callable[[int], object] | None,
    ) -> Any:
        """Return the sum of function(theta, *chunk) over the chunks.

        `show` is called with the number of chunks that are done whenever a rank has answered.
        """
        name = self._names.name_of(function)
        argument = values.pack(theta, "theta")
        with self._call() as call:
            summing = Summing(
                self._messenger, self._copies, call, name, argument, data, self._job.size
            )
            try:
                return summing.total(self._inbox, function, show)
            finally:
                self.chunks_taken += summing.taken

    def run(
        self, function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> list[Any]:
        """Run a program of MALT on all ranks; return its results by rank."""
        name = self._names.name_of(function)
        argument = values.pack((tuple(arguments), dict(named)), "an argument of pool.run()")
        with self._call() as call:
            members = self._messenger.live()
            for rank in self._messenger.others():
                self._messenger.send(rank, "run", call, *name, members, parts=argument)
            running = Running(self._job, self._messenger, self._inbox, call, members)
            return running.results(function, argument)

    @property
    def chunks_sent(self) -> int:
        return self._copies.chunks_sent

    @property
    def bytes_sent(self) -> int:
        return self._copies.bytes_sent

    def close(self) -> None:
        """Let the other ranks go on."""
        with contextlib.suppress(Error):  # the job has ended for this rank
            for rank in self._messenger.others():
                self._messenger.send(rank, "close")
            self._messenger.flush()
        self._inbox.close()
        self._messenger.close()
        self.store.close()
        serving.end()

    @contextlib.contextmanager
    def _call(self) -> Iterator[int]:
        self._inbox.forget()
        self.store.drop_unused()
        self._copies.drop()
        self.count += 1
        try:
            yield self.count
        except BaseException:
            with contextlib.suppress(Error):
                for rank in self._messenger.others():
                    self._messenger.send(rank, "stop")
            raise


def join(job: Job, module: str) -> JobCalls | None:
    """Return what makes calls, on rank 0; on the other ranks serve them, and return None.

    Collective over the live ranks of the job. `module`: the program's, which makes the pool.

    Raises:
        malt.ConfigError: the job cannot have a pool, or has one.
        malt.TimeoutError: the ranks that the error names did not come.
        malt.PeerError: rank 0 has died.
    """
    serving.begin(job)
    names = naming.Names(module)
    try:
        if job.rank == 0:
            return JobCalls(job, names)
        serving.serve(job, names)
    except BaseException:
        serving.end()
        raise
    serving.end()
    return None
