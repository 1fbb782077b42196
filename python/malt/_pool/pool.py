"""malt.Pool: many ranks from one ordinary Python process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from malt._arguments import function as check_function
from malt._errors import ConfigError
from malt._job.job import Job
from malt._launch import channel
from malt._pool import starting
from malt._pool.local.calls import Calls
from malt._pool.over_job import calls as job_calls
from malt._pool.over_job.calls import JobCalls
from malt._pool.store import SharedData, is_count
from malt._words import no_attribute_of_pool

_MOST_RANKS = channel.MOST_DESCRIPTORS - 8  # a rank gets a queue of each with one message


class PoolStats(NamedTuple):
    """Counters of a pool since it began.

    Attributes:
        calls: calls of sum() and run().
        chunks_copied: chunks that share() has put into shared memory, or into that of rank 0.
        bytes_copied: their bytes.
        chunks_found: chunks that share() has found there already.
        chunks_taken: chunks that an idle rank has taken from another rank; over a job also those
            that a rank has done in place of a dead one.
        restarts: ranks that were started again.
        chunks_sent: over a job, chunks that rank 0 has sent to other ranks. A rank that has a chunk
            is not sent it again.
        bytes_sent: their bytes.
    """

    calls: int
    chunks_copied: int
    bytes_copied: int
    chunks_found: int
    chunks_taken: int
    restarts: int
    chunks_sent: int = 0
    bytes_sent: int = 0


class Pool:
    """Ranks on this machine, started by a script, a notebook or a REPL; or the ranks of a job.

        with malt.Pool(4) as pool:
            data = pool.share(X, y)                    # once: in shared memory, in chunks
            pool.sum(cost_and_gradient, theta, data)   # the sum over all chunks
            models = pool.run(train, X, y)             # a program of MALT, on 4 ranks

    Each rank is a process of its own, which is forked from a fresh interpreter. Functions may be
    defined anywhere, also in a notebook's cell: they are sent with the variables that they refer
    to. Their output appears in this process's `sys.stdout`, with the rank. An exception
    comes out of the call, with the rank's traceback as its `__cause__`. A rank that dies is started
    again, as is one that is stopped (SIGSTOP) for longer than MALT_SILENCE. Ctrl-C stops the call;
    a function that goes on for 2 s is killed, and the pool can be used again.

    Any thread may call; one call is made at a time. A rank has as many threads of BLAS as there are
    cores for each, unless OMP_NUM_THREADS or its like say otherwise.

    In a program that runs as a job, on any number of hosts, the ranks of that job are the pool's:

        with malt.Pool(over=malt.init()) as pool:          # every rank comes here
            if pool:                                       # rank 0 makes the calls
                data = pool.share(X, y)
                pool.sum(cost_and_gradient, theta, data)   # a function at the top of the script

    The other ranks serve inside malt.Pool() until rank 0 closes the pool; there the pool is then
    closed, and so false. Rank 0 computes too. Functions go to the other ranks by name, and have to
    be the program's own; data go as numbers, never as a pickle. A chunk goes to a rank before the
    first sum that needs it there, and moves to an idle rank if that pays. The chunks of a rank that
    dies are done by the others, if the job goes on without it (`malt run --keep-going`).

    Needs cloudpickle: pip install "malt-sgd[pool]".
    """

    def __init__(self, ranks: int | None = None, *, over: Job | None = None) -> None:
        """Start the ranks, and wait until they are there. With `over` collective: join the others.

        Args:
            ranks: how many; None: one a core, or those of the job.
            over: the job whose ranks the pool has, as malt.init() returns it.

        Raises:
            ConfigError: the number is impossible, or the job cannot have a pool.
            TimeoutError: over a job: the ranks that the error names did not come.
            PeerError: over a job, on the ranks that serve: rank 0 has died.
        """
        calls: Calls | JobCalls | None
        if over is not None:
            if ranks is not None:
                raise ConfigError(
                    f"malt.Pool({ranks!r}, over=...): a pool over a job has the ranks of that job; "
                    "leave the number away"
                )
            module = sys._getframe(1).f_globals.get("__name__", "__main__")
            calls = job_calls.join(over, module)
            ranks = over.size
        else:
            ranks = _checked(ranks)
            calls = Calls(ranks)
        self._ranks = ranks
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._is_in_call = False
        self._calls = calls
        self._close = weakref.finalize(self, _close, calls, self._process)
        if calls is None:
            self._close()

    if not TYPE_CHECKING:  # where it would hide misspelt names

        def __getattr__(self, name: str) -> Any:
            raise no_attribute_of_pool(name)

    @property
    def ranks(self) -> int:
        """How many ranks the pool has."""
        return self._ranks

    def share(self, *arrays: Any, chunks: int | None = None) -> SharedData:
        """Cut data into chunks of rows, and put those that are new into shared memory.

        A chunk is known by the hash of its content. One that is there already, from this call or
        one before, is not copied again. Every rank reads the chunks in place.

        Args:
            arrays: NumPy arrays, SciPy's sparse matrices, pandas' frames and series, CPU tensors of
                PyTorch, Arrow's tables and columns, or lists; all with as many rows.
            chunks: how many chunks, at most 1024; None: 4 a rank. The same number gives the same
                bits of a sum, however many ranks there are.

        Raises:
            ConfigError: the arrays have no rows, or not equally many; there is no memory.
        """
        with self._use("share") as calls:
            calls.store.drop_unused()
            return calls.store.share(arrays, chunks, self._ranks)

    def sum(
        self,
        function: Callable[..., Any],
        theta: Any,
        data: SharedData,
        *,
        progress: bool = False,
    ) -> Any:
        """Return the sum of `function(theta, *chunk)` over all chunks of the data.

        A chunk has an array for each that share() was given; results are numbers, arrays, None, or
        tuples, lists and dictionaries of them, which are added item by item. The sum has the same
        bits whichever rank does which chunk. A rank that has done its own chunks takes those of
        slower ones. Chunks of a rank that dies are done by the others.

        The function must not change its arguments, nor keep arrays of `theta` for later: NumPy's
        arrays are read-only views of shared memory, which the next call writes over.

        Args:
            function: what is computed on each chunk.
            theta: its first argument. Arrays in it are not pickled.
            data: what share() returned.
            progress: show a bar, by tqdm.

        Raises:
            ConfigError: the function cannot be sent, or the results cannot be added.
            PeerError: three ranks have died in the same chunk.
            Exception: what the function raised on a rank.
        """
        with self._use("sum") as calls:
            _check(calls, data)
            check_function("pool.sum()'s function", function)
            if not progress:
                return calls.sum(function, theta, data, None)
            from tqdm.auto import tqdm

            with tqdm(total=data.chunks, unit=" chunks") as bar:
                total = calls.sum(
                    function, theta, data, lambda done: bar.update(max(0, done - bar.n))
                )
                bar.update(data.chunks - bar.n)
                return total

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run `function(*args, **kwargs)` as a program of MALT on all ranks; return its results.

        In the function, malt.init() joins a job of all ranks, and `malt.vector`, `malt.shard` and
        the others work as under `malt run`. The ranks read the arrays among the arguments in one
        place, or over a job in copies, and cannot write there.

        Over a job, the job that malt.init() returns in the function has the same ranks, and ends
        with the function.

        Returns:
            what each rank returned, by rank. Over a job, that of a rank which has died is a
            PeerError: the others go on.

        Raises:
            ConfigError: the function, an argument or a result cannot be sent.
            PeerError: a rank has died. The others are stopped. Over a job: a rank has died before
                the function began, or a rank raised it.
            TimeoutError: over a job, the ranks that the error names did not begin in time.
            Exception: what the function raised on a rank. The others are stopped; over a job, a
                rank that is still in one step after 2 s is stopped later.
        """
        with self._use("run") as calls:
            check_function("pool.run()'s function", function)
            return calls.run(function, args, kwargs)

    def stats(self) -> PoolStats:
        """Return what the pool has done since it began."""
        calls = self._calls
        if calls is None:
            return PoolStats(0, 0, 0, 0, 0, 0)
        return PoolStats(
            calls=calls.count,
            chunks_copied=calls.store.chunks_copied,
            bytes_copied=calls.store.bytes_copied,
            chunks_found=calls.store.chunks_found,
            chunks_taken=calls.chunks_taken,
            restarts=calls.restarts,
            chunks_sent=calls.chunks_sent,
            bytes_sent=calls.bytes_sent,
        )

    def close(self) -> None:
        """End the ranks, or let those of a job go on, and free the memory.

        Idempotent; also done at exit.
        """
        with self._lock:
            if self._close.alive:  # until this has succeeded: it may be interrupted
                _close(self._calls, self._process)
            self._close()

    def __bool__(self) -> bool:
        """Return whether calls can be made here: not in a closed pool, nor on ranks that serve."""
        return self._close.alive

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if not self._close.alive else str(self.stats())
        return f"<malt.Pool of {self._ranks} ranks: {state}>"

    @contextlib.contextmanager
    def _use(self, call: str) -> Iterator[Calls | JobCalls]:
        if os.getpid() != self._process:
            raise ConfigError(
                f"pool.{call}() in process {os.getpid()}, which was forked from the pool's, "
                f"process {self._process}: make a malt.Pool in this process instead"
            )
        with self._lock:
            if self._calls is None:
                raise ConfigError(
                    f"pool.{call}() on a rank that serves the pool: rank 0 alone makes its calls; "
                    "put them under `if pool:`"
                )
            if not self._close.alive:
                raise ConfigError(f"pool.{call}(): the pool is closed; make another malt.Pool")
            if self._is_in_call:
                raise ConfigError(f"pool.{call}() inside another call of the same pool")
            self._is_in_call = True
            try:
                yield self._calls
            finally:
                self._is_in_call = False


def _checked(ranks: int | None) -> int:
    """Return how many ranks to start."""
    if ranks is None:
        ranks = min(len(os.sched_getaffinity(0)), _MOST_RANKS)
    if not is_count(ranks, _MOST_RANKS):
        raise ConfigError(f"malt.Pool({ranks!r}): a pool has 1 to {_MOST_RANKS} ranks")
    starting.check_ranks(ranks)
    return ranks


def _check(calls: Calls | JobCalls, data: object) -> None:
    if not isinstance(data, SharedData):
        raise ConfigError(
            f"pool.sum() got data of {type(data).__module__}.{type(data).__qualname__}; give "
            "it what pool.share() returned"
        )
    if calls.store.datasets.get(data._number) is not data._places:
        raise ConfigError("pool.sum() got data that another pool has shared; share it in this pool")


def _close(calls: Calls | JobCalls | None, process: int) -> None:
    if calls is not None and os.getpid() == process:  # a forked child has no ranks
        calls.close()
