"""A queue of arrays from one rank to one other: malt.messages.Edge."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._arguments import MOST_DEPTH, seconds, unmasked, whole
from malt._core_import import Duplex, Group
from malt._errors import (
    ConfigError,
    DamagedError,
    Error,
    PeerError,
    TimeoutError,  # noqa: A004
)
from malt._job import job as jobs
from malt._job.agreement import Report
from malt._messages import array_head
from malt._messages.array_head import Head
from malt._messages.subgroup import Subgroups
from malt._uninterrupted import uninterrupted

_MOST_CAPACITY = 1 << 48
_VERDICT_SECONDS = 1.0  # that the job may take longer than an edge to know who is dead
_KINDS = "biufc"  # of dtypes: bool, int, unsigned int, float, complex


class Edge:
    """A queue of arrays from rank `src` to rank `dst`. Making it is collective over the job.

        edge = malt.messages.Edge(0, 1, capacity=1 << 20)
        if malt.rank() == 0:
            edge.send(array)              # waits while `depth` arrays are on their way
        if malt.rank() == 1:
            array = edge.receive()        # in the order in which they were sent, each once

    Arrays may differ in shape and dtype from one to the next. Between ranks of one host an array is
    copied once into memory that both share, and once out of it. An edge works by itself: it needs
    no other rank than these two, and an edge may wait in one thread while another thread uses the
    job's vectors. Several threads may send, and several may receive: each array comes to one.

    Args:
        src: the rank that sends.
        dst: the rank that receives.
        capacity: the most bytes of an array.
        depth: how many arrays can be on their way. Both ranks have memory for so many.

    Raises:
        ConfigError: on all ranks: an argument is out of range or differs between ranks, there is no
            room, or ranks of the job may rejoin.
        PeerError: on all ranks: `src` or `dst` is dead or has left.
        TimeoutError: the ranks that the error names did not make the edge.
    """

    def __init__(self, src: int, dst: int, *, capacity: int = 1 << 20, depth: int = 4) -> None:
        job = jobs.current()
        call = "malt.messages.Edge"
        subgroups = Subgroups(call)

        def check() -> Report:
            report = {
                "src": whole("src", src, 0, job.size - 1),
                "dst": whole("dst", dst, 0, job.size - 1),
                "capacity": whole("capacity", capacity, 1, _MOST_CAPACITY),
                "depth": whole("depth", depth, 1, MOST_DEPTH),
            }
            if src == dst:
                raise ConfigError(f"src and dst are both {src}; an edge goes to another rank")
            return report

        subgroups.agree(check)
        self.src, self.dst = int(src), int(dst)
        self.capacity, self.depth = int(capacity), int(depth)
        self._rank = job.rank
        self._timeout = job.settings.timeout
        self._duplex: Duplex | None = None
        self._group: Group | None = None
        # From the look at a message until it is taken. Only the thread that has it can release it.
        self._receiving = threading.RLock()
        self._taken: npt.NDArray[Any] | None = None  # by the main thread, and not returned yet
        subgroups.form([self.src, self.dst], self._open)
        job.companions.add(self)

    def _open(self, group: Group) -> None:
        room = self.capacity + array_head.MOST_BYTES
        self._duplex = Duplex(group, repr(self), self._peer, room, self.depth)
        self._group = group

    def send(self, array: npt.ArrayLike) -> None:
        """Send an array: a NumPy array, or anything on the CPU with DLPack, such as a tensor.

        Returns when the array has been copied: it may then be changed. Waits while `depth` arrays
        have not been received, at most as long as malt.init() says.

        Raises:
            ConfigError: this rank is not `src`; the array is larger than the capacity or not of
                numbers; the edge is closed.
            TimeoutError: `dst` did not receive in time; nothing was sent.
            PeerError: `dst` is dead, has left, or has closed the edge.
            KeyboardInterrupt: Ctrl-C, or another exception of a signal handler: the array may have
                been sent, so a repeated call may send it twice.
        """
        duplex = self._end(self.src, "send")
        given = _array(array)
        if given.nbytes > self.capacity:
            raise ConfigError(
                f"an array of {given.nbytes:,} bytes (shape {given.shape}, {given.dtype}) is more "
                f"than the edge takes, {self.capacity:,}: make it with capacity={given.nbytes}"
            )
        head = Head(0, given.dtype.name, given.shape)
        with self._naming_a_close():
            duplex.send(head.pack(), given.ctypes.data, given.nbytes)

    def receive(self, *, timeout: float | None = None) -> npt.NDArray[Any]:
        """Return the next array, in memory of the caller's own; torch.from_numpy() takes it.

        Args:
            timeout: the most seconds to wait for it; that of malt.init() if None.

        Raises:
            ConfigError: this rank is not `dst`; the edge is closed.
            TimeoutError: none came in time.
            PeerError: `src` is dead, has left, or has closed the edge, and what it had sent has
                been received. Between hosts, arrays that were still on their way when `src` was
                killed are lost.
        """
        duplex = self._end(self.dst, "receive")
        given = seconds(timeout)
        timeout = self._timeout if given is None else given
        deadline = time.monotonic() + timeout
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._taken is not None:  # an interrupt has ended the call that took it
            array, self._taken = self._taken, None
            return array
        try:
            if not self._receiving.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
                raise TimeoutError(
                    f"{self!r}: another thread has waited for an array for {timeout:g} s",
                    [self.src],
                )
            with self._naming_a_close():
                data, body_bytes = duplex.peek(max(0, deadline - time.monotonic()))
                head = array_head.unpack(data)
                dtype = _dtype(head.dtype)
                head.check_length(body_bytes, dtype.itemsize)
                array = np.empty(head.shape, dtype)
                if is_main:
                    self._take(duplex, array)
                else:
                    duplex.take(array.ctypes.data, array.nbytes)
        finally:
            try:  # noqa: SIM105  to enter a context would be a moment for an interrupt
                self._receiving.release()
            except RuntimeError:  # this thread has not got it
                pass
        if is_main:
            self._taken = None  # last: Python looks for signals after calls, and none follows
        return array

    @uninterrupted
    def _take(self, duplex: Duplex, array: npt.NDArray[Any]) -> None:
        duplex.take(array.ctypes.data, array.nbytes)
        self._taken = array

    def close(self) -> None:
        """Leave: what was sent can still be received, and no more can be sent. Idempotent.

        Between hosts it waits until the other rank has what was sent, for as long as malt.init()
        says.
        """
        self.leave()

    def leave(self, *, timeout: float | None = None) -> None:
        """Close it within `timeout` seconds; when the job is left."""
        if self._duplex is not None:
            self._duplex.shut()
            self._duplex = None
        if self._group is not None:
            self._group.leave(timeout)
            self._group = None

    def __repr__(self) -> str:
        return f"edge {self.src} -> {self.dst}"

    @property
    def _peer(self) -> int:
        return self.dst if self._rank == self.src else self.src

    def _end(self, of: int, verb: str) -> Duplex:
        if self._rank != of:
            raise ConfigError(f"{self!r}: this is rank {self._rank}; {verb} on rank {of}")
        if self._duplex is None:
            raise ConfigError(f"{self!r} is closed: this rank has closed it, or left the job")
        return self._duplex

    @contextmanager
    def _naming_a_close(self) -> Iterator[None]:
        """If another thread closes the edge in a wait, say so."""
        try:
            yield
        except Error as error:
            if self._duplex is None:
                raise ConfigError(
                    f"{self!r} has been closed by another thread, or with the job"
                ) from error
            peer, group = self._peer, jobs.current().group
            group.check_standing()  # it may be this rank that was stopped, and then evicted
            if isinstance(error, PeerError):
                is_of_peer = error.ranks == (peer,)
                if is_of_peer and peer in group.alive():  # as far as the job knows
                    raise PeerError(
                        f"{self!r}: rank {peer} has closed it, or has just died", [peer]
                    ) from error
                if is_of_peer or _is_dead(peer):
                    raise PeerError(f"{self!r}: rank {peer} died or left", [peer]) from error
            raise


def _is_dead(peer: int) -> bool:
    """Return whether the job says so, where the edge's own two ranks cannot tell who is dead."""
    job = jobs.current()
    end = time.monotonic() + _VERDICT_SECONDS
    while {job.rank, peer} <= {*job.group.alive()} and time.monotonic() < end:
        time.sleep(0.01)
    alive = job.group.alive()
    return job.rank in alive and peer not in alive


def _array(given: Any) -> npt.NDArray[Any]:
    unmasked(given)
    if not isinstance(given, np.ndarray) and hasattr(given, "__dlpack__"):
        try:
            for settle in ("detach", "resolve_conj", "resolve_neg"):  # PyTorch's; DLPack needs them
                given = getattr(given, settle)() if hasattr(given, settle) else given
            given = np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError) as error:
            raise ConfigError(
                f"cannot send a {type(given).__name__}: {error}; an edge takes arrays on the CPU "
                "of NumPy's dtypes: convert it first"
            ) from error
    try:
        array = np.asarray(given, order="C")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"cannot send a {type(given).__name__}: {error}; an edge takes arrays, numbers, and "
            "lists of them whose rows have the same length"
        ) from error
    if array.dtype.kind not in _KINDS or not array.dtype.isnative:
        raise ConfigError(
            f"an array of dtype {array.dtype} cannot be sent; bool, int, float and complex of this "
            "machine's byte order can: convert it first"
        )
    return array


def _dtype(name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):  # of a text that is a list of dtypes
        dtype = np.dtype(object)
    if dtype.kind not in _KINDS:
        raise DamagedError(f"a message says that it carries an array of dtype {name!r}")
    return dtype
