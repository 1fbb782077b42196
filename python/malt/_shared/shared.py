"""An array that all ranks add to: `malt.ps.Shared`. Its machinery is in replica.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt

from malt._alike import check_alike
from malt._arguments import text, whole
from malt._core_import import Held as Turn
from malt._core_import import Stats
from malt._errors import ConfigError, SupersededError
from malt._job import calls
from malt._job import job as jobs
from malt._job.agreement import Together, resumed
from malt._shared.replica import Replica
from malt._vectors.arrays import as_array
from malt._vectors.device_arrays import is_on_gpu


class Shared:
    """An array that all ranks add to and read, such as the counts of a topic model.

    The ranks change their arrays in place, between these calls. exchange() sends what this rank has
    changed since it last did, and adds what has arrived from other ranks. After drain() all ranks
    have the same sum of all changes.

    Threads: as for malt.vector().

    Source: Smola & Narayanamurthy, An Architecture for Parallel Topic Models (VLDB 2010).

    Attributes:
        array: the array that was given.
    """

    @resumed
    def __init__(self, data: Any, *, name: str | None = None) -> None:
        """Share an array. Collective.

        Args:
            data: an array as malt.vector() takes it (float32, float64, int32 or int64), whose
                memory is shared, not copied, with the same values on every rank. On a rejoining
                rank the values do not matter: it gets the present sum.
            name: for error messages; each open array has a name of its own.

        Raises:
            ConfigError: the array cannot be shared; or, on every rank, the ranks' arrays differ.
            TimeoutError: the ranks that the error names did not share theirs.
        """
        if is_on_gpu(data):
            raise ConfigError(
                "malt.ps.Shared takes an array on the CPU, and this one is on a GPU: share a copy "
                "(w.cpu()), and copy between the two around exchange(); malt.vector(w) takes "
                "arrays on a GPU"
            )
        array = as_array(data)
        if name is not None:
            text("name", name)
        job = jobs.current()
        deadline = jobs.current().deadline()
        self.array = data
        with job.turns.hold("making a malt.ps.Shared"):
            name = f"shared-{job.vectors + 1}" if name is None else name
            self._replica = Replica(array.reshape(-1), name)
            _compare(name, array)
            enter = partial(self._replica.enter, deadline=deadline)
            about = f"shared array {name!r} of {array.dtype} {list(array.shape)}"
            try:
                calls.make(
                    enter, about, has_shared_values=False, is_of_loop=True, deadline=deadline
                )
            except BaseException:
                self._replica.shut()
                raise

    def __repr__(self) -> str:
        return f"<malt.ps.Shared {self.name!r}>"

    def exchange(self, *, staleness: int | None = None, timeout: float | None = None) -> int:
        """Send what this rank has changed, and add what has arrived.

        Args:
            staleness: None never waits. While other ranks have yet to receive earlier deltas of
                this rank, its changes wait in the array, and go with a later call. k >= 0 sends
                them now, and waits until each other live rank has made at most k exchanges less
                than this one; it does not wait for ranks that have come to drain().
            timeout: seconds that the call may take; that of malt.init() if None.

        Returns:
            How many deltas of other ranks have been added.

        Raises:
            ConfigError: a float change is infinite or NaN, and nothing was sent; or a drain() ended
                with an error when the ranks had begun to compare, and has to be called again.
            TimeoutError: the ranks that the error names did not receive or send in time. Call
                exchange() again with the same staleness: it goes on with this exchange, and sends
                no later changes.
        """
        bound = None if staleness is None else whole("staleness", staleness, 0)
        deadline, replica = jobs.current().deadline(timeout), self._replica
        with self._turn("exchange"):
            self._check_drained()
            before = replica.added
            if bound is None:
                self._in_group(replica.send_now)
                if replica.due:
                    replica.streams.exchanges += 1
                else:
                    replica.begin_exchange()
                    self._in_group(replica.send_now)
                replica.receive()
            else:
                self._in_group(lambda: replica.send_all(deadline))
                if not replica.has_begun:
                    replica.begin_exchange()
                self._in_group(lambda: replica.send_all(deadline))
                target = self.iteration - bound
                self._in_group(lambda: replica.await_exchanges(target, deadline))
            replica.has_begun = False
            replica.streams.forget_known(replica.messages.live())
            return replica.added - before

    def poll(self) -> int:
        """Go on sending what exchange() had no room for, and add what has arrived. Never waits.

        It begins no new delta, and so does not compare the array. Call it now and then between two
        exchanges if the array is larger than a megabyte: a delta travels in pieces, of which only
        a few are on their way at a time.

        Returns:
            How many deltas of other ranks have been added.

        Raises:
            ConfigError: a drain() ended with an error and has to be called again.
        """
        replica = self._replica
        with self._turn("poll"):
            self._check_drained()
            before = replica.added
            self._in_group(replica.send_now)
            replica.receive()
            return replica.added - before

    def drain(self, *, timeout: float | None = None) -> list[int]:
        """Make all ranks' arrays equal: the sum of all changes. Collective.

        Args:
            timeout: seconds that the call may take; that of malt.init() if None.

        Returns:
            The ranks that took part, this one too, sorted. All of their changes are in the sum.

        Raises:
            ConfigError: a float change is infinite or NaN.
            TimeoutError: the ranks that the error names did not come. Call drain() again: it goes
                on with this drain. Changes that are made meanwhile stay, for the call after it.
        """
        deadline = jobs.current().deadline(timeout)
        with self._turn("drain"):
            self._in_group(lambda: self._replica.drain(deadline))
        drained, self._replica.is_drained = self._replica.drained, False
        return drained  # no call is between these: nor can an exception of a signal handler be

    @property
    def name(self) -> str:
        """For error messages."""
        return self._replica.name

    @property
    def iteration(self) -> int:
        """How many exchanges this rank has made.

        A rejoining rank begins at the lowest of the other ranks.
        """
        return self._replica.streams.exchanges

    @property
    def iterations(self) -> list[int]:
        """By rank: of how many of its exchanges the changes are in this rank's array."""
        clocks: list[int] = self._replica.streams.clocks.tolist()
        return clocks

    @property
    def acknowledged(self) -> int:
        """How many of this rank's exchanges all other live ranks are known to have.

        Their changes are in the sum for good, even if this rank dies now. exchange() and drain()
        bring it up to date.
        """
        return self._replica.streams.acknowledged

    def stats(self) -> Stats:
        """Return the counters of the messages that carry the deltas."""
        return self._replica.messages.stats()

    def close(self) -> None:
        """Leave the array: the other ranks no longer wait for this one. Idempotent.

        Deltas that are not acknowledged may then be lost, as if this rank had died.
        """
        self._replica.shut()

    @property
    def is_closed(self) -> bool:
        """Whether this rank has closed it."""
        return self._replica.is_closed

    def _turn(self, call: str) -> Turn:
        self._replica.what = f"{call} of shared array {self.name!r}"
        self._replica.messages.live()  # ConfigError where it is closed
        return jobs.current().turns.hold(f"malt.ps.Shared.{call}")

    def _check_drained(self) -> None:
        if self._replica.is_draining:
            raise ConfigError(
                f"{self._replica.what}: the last drain() ended with an error; call it again first"
            )

    def _in_group(self, step: Callable[[], None]) -> None:
        """Make a step, again in the next group if it is superseded."""
        self._replica.is_used = True
        while True:
            try:
                return step()
            except SupersededError:
                jobs.regroup()


def _compare(name: str, array: npt.NDArray[Any]) -> None:
    """Check that all ranks share arrays of one kind. Collective, but not on a rejoining rank."""
    if not jobs.current().makes_due():
        what = f"malt.ps.Shared, {name!r}"
        report = {"dtype": str(array.dtype), "shape": list(array.shape)}
        _, given = Together(what, None).step("the array", lambda: (None, report))
        check_alike(what, given, "share an array of one dtype and shape on all ranks")
