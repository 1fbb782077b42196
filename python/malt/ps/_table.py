"""The table: what a program makes, pushes to and pulls from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from malt import _core_import as core
from malt._arguments import seconds, text, whole
from malt._checkpoint.layout import SLOW_DISK
from malt._checkpoint.spread import Spread
from malt._core_import import Codec
from malt._errors import ConfigError, PeerError, SupersededError, TimeoutError  # noqa: A004
from malt._job import calls
from malt._job import job as jobs
from malt._job.numbering import recount
from malt._job.parting import PARTING_SECONDS
from malt._partition import Partition
from malt.ps import _joining
from malt.ps._arguments import (
    Keys,
    Values,
    check_out,
    gradients_of,
    keys_of,
)
from malt.ps._options import TableOptions
from malt.ps._rules import Rule, UpdateFunction, states_of
from malt.ps._saving import TableRows
from malt.ps._seat import Seat
from malt.ps._stats import TableStats

Result = TypeVar("Result")

_MOST_PUSHES = 1 << 62


class Table(Spread):
    """Rows of numbers, spread over the ranks of the job. Every rank is a server and a client.

    A range of rows lies on one rank, its primary, which rendezvous hashing chooses. A thread of
    that rank, which needs no GIL, applies what is pushed and answers what is pulled.

    As a context manager, the table is closed at the end of the block; when the block raises, this
    rank leaves the table at once.

    Args:
        rows: how many rows there are; their keys are 0 to rows - 1.
        width: how many values a row has; a row is then an array of shape (width,). None: a row is
            one number.
        update: what a server does with pushed gradients: a rule of this module, or a function
            `f(values, gradients)` that changes `values`, of shape (n, width) or (n,), in place.
            It runs in the server's thread, for rows of one range at a time. None: Add().
        dtype: float32 or float64.
        initial: the value of each element before the first push.
        replicas: on how many other ranks each row is. A push counts as acknowledged when all of
            them have it, so so many ranks may die at a time and nothing acknowledged is lost. When
            a rank has died, its rows are copied to another one.
        staleness: how many clocks a pull may be behind. 0 (BSP): it sees exactly the pushes of
            earlier clocks, of all ranks. s (SSP): it sees at least all pushes up to s clocks back.
            None: whatever is there.
        codec: how pushed gradients and pulled values go over the wire in fewer bytes: FLOAT16,
            BFLOAT16 or INT8. The servers keep and update values of the table's dtype.
        threshold: a pushed row in which no value's magnitude reaches it is held back on this
            rank and added to the later ones, until the sum reaches it. `wait()` and `close()`
            send what is held back; `clock()` does not. 0: nothing is held back. Not with Assign().
        cached_keys: how many keys each rank and each server remember for one another. A list of
            keys that is sent again is then a few bytes. It takes as many keys x 8 bytes x ranks
            on each rank, twice. 0: none.
        hot: rows that many ranks pull in each iteration, as ints in any order. Between hosts, a
            pull of these goes through a tree of servers that keep them, so that no server has to
            answer all ranks. Such a pull is as fresh as `staleness` says, but may lack this rank's
            own later pushes. Each rank needs memory for a copy of them. Needs a staleness.
        partition: of data whose columns are the rows: what malt.data.partition returned. A row's
            primary is then the rank that owns its column, while that rank is live, and calls of
            ranks that have the rows of their part send least. It takes 10 bytes for each row on
            each rank, and 4 more for each row of its own once it is saved.
        name: in errors; the ranks number their tables if it is None.
        timeout: seconds to wait for the other ranks, which make the same table; the job's if None.

    Raises:
        ConfigError: an argument is wrong on a rank, differs between ranks, or asks for more memory
            than there is. Raised on every rank.
        TimeoutError: the ranks that the error names did not make the table in time.
    """

    def __init__(
        self,
        rows: int,
        width: int | None = None,
        *,
        update: Rule | UpdateFunction | None = None,
        dtype: npt.DTypeLike = np.float32,
        initial: float = 0.0,
        replicas: int = 0,
        staleness: int | None = None,
        codec: Codec | None = None,
        threshold: float = 0.0,
        cached_keys: int = 0,
        hot: npt.ArrayLike = (),
        partition: Partition | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._seat: Seat | None = None
        job = jobs.current()
        job.makes_due()  # a rank that joins enters the job's group
        self.name = name if name is not None else f"table {job.tables + 1}"
        deadline = job.deadline(timeout)
        with _joining.refused_by_all(job, f"malt.ps.Table {self.name!r}", deadline):
            text("name", self.name)
            self._options = TableOptions(
                self.name,
                job,
                rows=rows,
                width=width,
                update=update,
                dtype=dtype,
                initial=initial,
                replicas=replicas,
                staleness=staleness,
                codec=codec,
                threshold=threshold,
                cached_keys=cached_keys,
                hot=hot,
                partition=partition,
            )
            made = self._options.make()
        self.rows, self.dtype = self._options.rows, self._options.dtype
        description = self._options.text
        seat = Seat(job, self.name, description, made, deadline.limit)
        enter = partial(seat.enter, deadline=deadline)
        try:
            if job.generations is None:
                with job.turns.hold("making a table"):
                    enter(job.group, False)
            else:
                about = f"malt.ps.Table {self.name!r} of {description}"
                calls.make(enter, about, has_shared_values=False, is_of_loop=True)
        except ConfigError as error:
            job.tables = recount(job.tables, error)
            raise
        except (PeerError, TimeoutError) as error:
            if named := _joining.of_ranks(error, f"malt.ps.Table {self.name!r}", job):
                raise named from error
            raise
        job.tables += 1
        self._seat = seat
        job.companions.add(self)

    def push(self, keys: Keys, gradients: npt.ArrayLike, *, timeout: float | None = None) -> int:
        """Send gradients to the rows' servers, which apply the update rule to them.

        Returns before the servers have done so; it waits only while much is on its way. A push is
        sent whole or not at all: a large one goes in pieces, and if there is no room for a later
        piece in time, the rest is sent without waiting, and the call returns.

        Args:
            keys: which rows: an int64 array or a sequence of ints that grow, a range of step 1, or
                None for all rows.
            gradients: of shape (number of keys, width), or (number of keys,) without a width; a
                scalar is for all of them. Cast to the table's dtype.
            timeout: seconds to wait for room; the job's limit if None.

        Returns:
            The number of this push, for wait().

        Raises:
            ConfigError: the keys or shapes are wrong.
            PeerError: rows are lost, or this rank has been evicted.
            TimeoutError: the servers that the error names did not answer earlier pushes; nothing
                was sent.
        """
        return self._push(keys, gradients, jobs.current().deadline(timeout))

    def _push(self, keys: Keys, gradients: npt.ArrayLike, deadline: core.Deadline) -> int:
        array, first, count = keys_of(self.name, keys, self.rows)
        given = gradients_of(self.name, gradients, (count, *self._options.row_shape), self.dtype)
        if self._options.placing is not None:
            array, order = self._options.placing.of(array, first, count)
            given = given[order]
        rows = np.ascontiguousarray(given)
        return self._call("push", lambda table: table.push(array, first, rows, deadline))

    def pull(
        self, keys: Keys = None, *, out: Values | None = None, timeout: float | None = None
    ) -> Values:
        """Return the values of rows, as stale as the table's `staleness` allows.

        Without staleness a pull sees all earlier pushes of this rank to the rows.

        Args:
            keys: as in push(); None: all rows.
            out: an array of the table's dtype and the result's shape, C-contiguous, to be filled.
            timeout: seconds that the call may take; the job's limit if None.

        Returns:
            An array of shape (number of keys, width), or (number of keys,) without a width.

        Raises:
            ConfigError: the keys or `out` are wrong.
            PeerError: rows are lost, or this rank has been evicted.
            TimeoutError: servers did not answer, or ranks are too far behind in clock().
        """
        return self._pull(keys, out, jobs.current().deadline(timeout))

    def _pull(self, keys: Keys, out: Values | None, deadline: core.Deadline) -> Values:
        array, first, count = keys_of(self.name, keys, self.rows)
        shape = (count, *self._options.row_shape)
        if out is None:
            out = np.empty(shape, dtype=self.dtype)
        else:
            check_out(self.name, out, shape, self.dtype)
        if self._options.placing is None:
            self._call("pull", lambda table: table.pull(array, first, out, deadline))
            return out
        places, order = self._options.placing.of(array, first, count)
        found = np.empty(shape, dtype=self.dtype)
        self._call("pull", lambda table: table.pull(places, 0, found, deadline))
        out[order] = found
        return out

    def push_pull(
        self, keys: Keys, gradients: npt.ArrayLike, *, timeout: float | None = None
    ) -> Values:
        """Push to rows, then pull the same rows, both within `timeout`.

        If the pull times out or is interrupted, the push is made all the same: go on with pull(),
        since another push_pull() would count the gradients twice.
        """
        deadline = jobs.current().deadline(timeout)
        self._push(keys, gradients, deadline)
        return self._pull(keys, None, deadline)

    def wait(self, push: int | None = None, *, timeout: float | None = None) -> None:
        """Wait until a push has been acknowledged: its primary and all replicas have it.

        A row that is held back counts as pushed when it is sent.

        Args:
            push: what push() returned; it and all earlier ones. None: all, and what is held back
                is sent first.
            timeout: seconds that the call may take; the job's limit if None.

        Raises:
            PeerError: rows of a push are lost.
            TimeoutError: the servers that the error names did not answer.
            malt.Error: the update function raised; the text has its traceback. Or, at staleness 0,
                servers keep too many pushes of this rank already, and have dropped one.
        """
        number = None if push is None else whole("push", push, 0, _MOST_PUSHES)
        deadline = jobs.current().deadline(timeout)
        self._call("wait", lambda table: table.wait(number, deadline))

    def clock(self, *, timeout: float | None = None) -> int:
        """Wait for this rank's pushes, and say that it has ended its iteration.

        Held-back rows stay so; call wait() before, to send them in this iteration. At staleness 0
        it also waits for ranks that would be more than 8 iterations behind, or fewer if this rank
        has pushed more than 1 GiB in these: servers keep pushes until all have ended the iteration.

        Returns:
            `iteration`.

        Raises:
            TimeoutError: the ranks that the error names did not answer, or are behind. The
                iteration has not ended.
        """
        deadline = jobs.current().deadline(timeout)
        self._call("clock", lambda table: table.advance(deadline), is_clock=True)
        return self.iteration

    @property
    def iteration(self) -> int:
        """How often this rank has called clock().

        A rank that joins begins at the lowest of the others.
        """
        return self._open().core.clock

    def alive(self) -> tuple[int, ...]:
        """Return the ranks of the table that are live as far as this rank knows, sorted."""
        clients = self._open().clients
        assert clients is not None
        size = clients.size // 2
        return tuple(member for member in clients.alive() if member < size)

    def stats(self) -> TableStats:
        """Return what this rank's calls have moved. Copies for replicas are not in it."""
        return TableStats.of(self._open().core)

    def close(self, *, timeout: float | None = None) -> None:
        """Wait until every live rank has called it; then the table's values are gone. Idempotent.

        Raises:
            PeerError: rows of a push are lost. The table is then closed on this rank, which has
                left it.
            TimeoutError: ranks did not call it, or servers did not answer in time. The table is
                then closed on this rank as well. In a job whose ranks join and leave, this rank
                then hands its rows over, which may take half of the limit again.
        """
        if (seat := self._seat) is None or not seat.is_open:
            return
        job = jobs.current()
        is_fixed, deadline = job.generations is None, job.deadline(timeout)
        try:
            if is_fixed:
                seat.core.finish(deadline)
            else:
                self._finish(seat, deadline)
        finally:
            hands_over = not (is_fixed or seat.is_closed)
            # Nothing of the limit may be left.
            least = deadline.limit / 2 if hands_over else PARTING_SECONDS
            seat.leave(hands_over=hands_over, deadline=core.Deadline(max(deadline.left, least)))

    def _finish(self, seat: Seat, deadline: core.Deadline) -> None:
        """Wait for all ranks, in the job's group: so all of them close the table in one edition."""

        def step(group: core.Group) -> None:
            seat.core.finish(deadline)
            group.exchange(f"close of table {self.name!r}", b"", deadline.left)

        self._call("wait", lambda table: table.wait(None, deadline))
        calls.call("malt.ps.Table.close", step)
        seat.is_closed = True

    def leave(self, *, timeout: float | None = None) -> None:
        """Leave. For the other ranks it is then as if this rank had died. Idempotent.

        In a job whose ranks join and leave (`malt run --respawn`, `--elastic`) this rank first
        hands its rows over to other ranks. Otherwise it leaves at once.

        Args:
            timeout: seconds for handing rows over, and, between hosts, for telling the other ranks;
                the job's limit if None.
        """
        if self._seat is not None:
            job = jobs.present()
            hands_over = job is not None and job.generations is not None
            limit = seconds(timeout)
            deadline = None if limit is None else core.Deadline(limit)
            self._seat.leave(hands_over=hands_over, deadline=deadline)

    def _spread(self, limit: float | None) -> TableRows:
        options = self._options
        facts = {
            "partition": None if options.placing is None else options.placing.text,
            "rows": options.rows,
            "width": options.row_shape[0] if options.row_shape else None,
            "dtype": str(options.dtype),
            "update": type(options.rule).__name__
            if isinstance(options.rule, Rule)
            else "a function",
        }
        limit = jobs.current().deadline(limit).limit
        return TableRows(
            self._open(),
            facts,
            states_of(options.rule),
            jobs.current().size,
            limit + options.places * options.row_bytes / SLOW_DISK,
            placing=options.placing,
            is_bsp=options.staleness == 0,
        )

    def __enter__(self) -> Table:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.leave()

    def _open(self) -> Seat:
        jobs.current()
        assert self._seat is not None
        if not self._seat.is_open:
            raise ConfigError(f"table '{self.name}' has been closed")
        return self._seat

    def _call(
        self, name: str, step: Callable[[core.Table], Result], *, is_clock: bool = False
    ) -> Result:
        """Make a call, again in the next group if it is superseded."""
        seat = self._open()
        job = jobs.current()
        call = f"malt.ps.Table.{name}"
        try:
            if job.generations is None:
                return step(seat.core)
            with job.turns.hold(call):
                seat.is_used = True
                seat.go_over_if_due(is_clock=is_clock)
                while True:
                    try:
                        return step(seat.core)
                    except SupersededError:
                        jobs.regroup()
        except (PeerError, TimeoutError) as error:
            if named := _joining.of_ranks(error, call, job):
                raise named from error
            raise
