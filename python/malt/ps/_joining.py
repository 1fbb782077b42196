"""Forms the group of a table, in which each rank has two members: its client and its server."""

from __future__ import annotations

import contextlib
import queue
import re
import struct
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from malt import _pieces as pieces
from malt._alike import check_alike
from malt._core_import import Deadline, Group, Turns
from malt._errors import (
    ConfigError,
    DamagedError,
    Error,
    PeerError,
    TimeoutError,  # noqa: A004
    describe_ranks,
)
from malt._job import calls
from malt._job.job import Job

_GRACE_SECONDS = 1.0  # by which a server's own wait for other ranks may end after its client's
_REFUSED = b"!"  # begins what a rank gives instead of a description


def of_ranks(error: PeerError | TimeoutError, what: str, job: Job) -> Error | None:
    """Return the error of the call `what` that names ranks, if `error` names servers, else None.

    The ranks of a job have twice as many members in a table's group.
    """
    if all(member < job.size for member in error.ranks):
        return None
    ranks = sorted({member % job.size for member in error.ranks} - {job.rank})
    if isinstance(error, PeerError):
        return PeerError(str(error), ranks)
    return TimeoutError(
        f"{what}: {describe_ranks(ranks)} did not come in time; a longer limit: the call's "
        "timeout=, or malt.init(timeout=)",
        ranks,
    )


class Formed(NamedTuple):
    """This rank's two members of a table's group."""

    clients: Group
    servers: Group
    ranks: list[int]


@contextlib.contextmanager
def refused_by_all(job: Job, what: str, deadline: Deadline) -> Iterator[None]:
    """Tell the other ranks of an exception in the block: this rank makes no table.

    They learn of it where they would form the table's group.

    Args:
        job: of this rank.
        what: names the call in errors.
        deadline: of the call.
    """
    try:
        yield
    except Exception as error:
        if job.size > 1 and not job.makes_due():
            kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            told = _REFUSED + f"{kind}{error}".encode()
            with contextlib.suppress(Error):
                calls.call(what, lambda group: _Exchange(group, what, deadline).all(told))
        raise


def form_first(job: Job, group: Group, what: str, description: str, deadline: Deadline) -> Formed:
    """Form the group of a table that is made. Collective over the live ranks of the job.

    Args:
        job: of this rank; the caller holds its turn.
        group: the job's present one.
        what: names the call in errors.
        description: what the ranks must agree on.
        deadline: of the call.

    Raises:
        ConfigError: the ranks make different tables, or a rank refused to make its own.
        TimeoutError: the ranks that the error names did not come.
        PeerError: a rank died meanwhile.
    """
    exchange = _Exchange(group, what, deadline)
    descriptions = exchange.all(description.encode())
    ranks = sorted(descriptions)
    for rank, theirs in descriptions.items():
        if theirs.startswith(_REFUSED):
            why = theirs.removeprefix(_REFUSED).decode(errors="replace")
            raise ConfigError(f"{what}: rank {rank}: {why}")
    check_alike(
        what,
        {r: {"the table": f"of {d.decode(errors='replace')}"} for r, d in descriptions.items()},
        "give all ranks the same arguments",
    )
    return form(job, what, ranks, exchange.all, deadline)


def form(
    job: Job,
    what: str,
    ranks: list[int],
    exchange: Callable[[bytes], dict[int, bytes]],
    deadline: Deadline,
) -> Formed:
    """Form a group of a table among `ranks`. Collective.

    Args:
        job: of this rank.
        what: names the call in errors.
        ranks: sorted; this rank is among them.
        exchange: gives bytes to the other ranks, and returns what each rank that is there gave.
        deadline: of the call.

    Raises:
        PeerError: a rank died meanwhile.
        TimeoutError: a rank did not take part.
    """
    members = [*ranks, *(job.size + rank for rank in ranks)]
    servers = _Servers(job, members, deadline)

    def allgather(data: bytes, limit: Deadline) -> list[bytes]:
        """Exchange what the two members of each rank give."""
        other = servers.given(limit)
        parts = [b""] * (2 * job.size)
        gathered = exchange(struct.pack("!I", len(data)) + data + other)
        if sorted(gathered) != ranks:
            dead = sorted(set(ranks) - set(gathered))
            raise PeerError(f"{what}: ranks {dead} died while the table was made", dead)
        for rank, both in gathered.items():
            if len(both) < 4:
                raise _damaged(what, rank)
            (length,) = struct.unpack_from("!I", both)
            parts[rank], parts[job.size + rank] = both[4 : 4 + length], both[4 + length :]
        servers.take(parts)
        return parts

    try:
        make = job.make_further(job.rank, 2 * job.size, Turns(), False)
        clients = make(members, allgather, deadline)
    except BaseException as error:
        servers.give_up()
        if type(error) is ConfigError:
            raise ConfigError(f"{what}: {_with_ranks(str(error), job.size)}") from error
        raise
    try:
        return Formed(clients, servers.join(), ranks)
    except BaseException:
        clients.leave(deadline.left)
        raise


def _with_ranks(text: str, size: int) -> str:
    """Name the ranks of a job of `size` where an error of a table's group names members."""
    return re.sub(r"\brank (\d+)", lambda member: f"rank {int(member[1]) % size}", text)


def _damaged(what: str, rank: int) -> DamagedError:
    return DamagedError(f"{what}: what rank {rank} sent to form the table's group is damaged")


class _Exchange:
    """Exchanges bytes of any length among the live ranks of a job's group."""

    def __init__(self, group: Group, what: str, deadline: Deadline) -> None:
        self._group = group
        self._what = what
        self._deadline = deadline
        self._step = 0

    def all(self, data: bytes) -> dict[int, bytes]:
        """Return what each live rank gave, by rank."""
        return pieces.exchange(data, self._once, lambda rank: _damaged(self._what, rank))

    def _once(self, _begin: int, piece: bytes) -> list[bytes | None]:
        self._step += 1
        return self._group.exchange(f"{self._what}, step {self._step}", piece, self._deadline)


class _Servers:
    """Joins the group as this rank's server, in a thread, while the caller joins as its client."""

    def __init__(self, job: Job, members: list[int], deadline: Deadline) -> None:
        self._job = job
        self._members = members
        self._deadline = deadline
        self._given: queue.Queue[bytes | None] = queue.Queue()
        self._gathered: queue.Queue[list[bytes] | None] = queue.Queue()
        self._group: Group | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="malt table", daemon=True)
        self._thread.start()

    def given(self, limit: Deadline) -> bytes:
        """Return what the server gives to the others at this step.

        Raises:
            Error: the server has failed; its own error, which names the ranks.
            TimeoutError: it has not come to this step.
        """
        try:
            data = self._given.get(timeout=limit.left + _GRACE_SECONDS)
        except queue.Empty:
            raise TimeoutError(
                f"the server of a table on this rank, {self._job.rank}, did not come within "
                f"{limit.limit:g} s",
                [self._job.rank],
            ) from None
        if data is None:
            assert self._failure is not None
            raise self._failure
        return data

    def take(self, parts: list[bytes]) -> None:
        """Give the server what all members gave."""
        self._gathered.put(parts)

    def give_up(self) -> None:
        """End the thread: the client could not join."""
        self._gathered.put(None)
        self._thread.join()
        if self._group is not None:
            self._group.leave(self._deadline.left)

    def join(self) -> Group:
        """Return the server's group, once the client has joined its own."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._group is not None, self._members
        return self._group

    def _run(self) -> None:
        def allgather(data: bytes, _: Deadline) -> list[bytes]:
            self._given.put(data)
            gathered = self._gathered.get()  # the client ends this wait, which has the limit
            if gathered is None:
                raise ConfigError("this rank's client could not join")
            return gathered

        size = self._job.size
        further = self._job.make_further
        try:
            make = further(self._job.rank + size, 2 * size, Turns(), True)
            self._group = make(self._members, allgather, self._deadline)
        except BaseException as error:
            self._failure = error
            self._given.put(None)
