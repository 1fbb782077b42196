"""A pool over a job, on rank 0, which makes the calls; the other ranks serve (serving.py).

A call that ends by an exception is given up. Messages name their call, and those of an earlier one
are dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from malt._errors import Error
from malt._job import values
from malt._job.job import Job
from malt._pool import naming, serving
from malt._pool.copies import Copies
from malt._pool.ear import Ear
from malt._pool.post import Post
from malt._pool.running import Running
from malt._pool.store import SharedData, Store
from malt._pool.summing import Summing


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
        self._post = Post(job)
        self._ear = Ear()
        self._copies = Copies(self.store, self._post, job.size)

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
            summing = Summing(self._post, self._copies, call, name, argument, data, self._job.size)
            try:
                return summing.total(self._ear, function, show)
            finally:
                self.chunks_taken += summing.taken

    def run(
        self, function: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> list[Any]:
        """Run a program of MALT on all ranks; return its results by rank."""
        name = self._names.name_of(function)
        argument = values.pack((tuple(arguments), dict(named)), "an argument of pool.run()")
        with self._call() as call:
            members = self._post.live()
            for rank in self._post.others():
                self._post.send(rank, "run", call, *name, members, parts=argument)
            running = Running(self._job, self._post, self._ear, call, members)
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
            for rank in self._post.others():
                self._post.send(rank, "close")
            self._post.flush()
        self._ear.close()
        self._post.close()
        self.store.close()
        serving.end()

    @contextlib.contextmanager
    def _call(self) -> Iterator[int]:
        self._ear.forget()
        self.store.drop_unused()
        self._copies.drop()
        self.count += 1
        try:
            yield self.count
        except BaseException:
            with contextlib.suppress(Error):
                for rank in self._post.others():
                    self._post.send(rank, "stop")
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
