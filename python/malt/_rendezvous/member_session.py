"""A rank's session with the launcher, as long as it lives; it calls the rank to new generations.

`generation_table.py` has the other side. A thread listens; the rank's own thread sends and waits.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from malt import _errors as errors
from malt._errors import ConfigError, PeerError, describe_ranks
from malt._rendezvous import wire
from malt._rendezvous.channel import Channel
from malt._rendezvous.held import Held
from malt._rendezvous.session import GRACE_SECONDS, RankSession
from malt._rendezvous.wire import ToClient, ToServer
from malt._system_limits import starting

# The time between two checks for Python's signals.
_NAP_SECONDS = 0.1
_MOST_ROUNDS = 8  # whose parts are kept; this rank awaits one
_SHORT_NAP_SECONDS = 0.01  # for waits that nothing wakes


class Generation(NamedTuple):
    """The launcher's last call: the members of the next group; none if another call follows."""

    number: int
    members: list[int]
    missing: list[int]  # the ranks because of which the generation is called off


class NewerError(Exception):
    """The generation is given up: another follows."""


class Member(RankSession):
    """One rank of a job whose ranks may rejoin.

    Attributes:
        is_rejoining: this rank is rejoining: the job goes on already.
        is_asked_to_leave: `malt scale` has asked this rank to leave.
        on_call: the listening thread calls it when there is a new generation.
    """

    _kind = wire.MEMBER

    def __init__(
        self,
        address: str,
        key: bytes,
        rank: int,
        size: int,
        timeout: float,
        successors: Sequence[str] = (),
    ) -> None:
        super().__init__(address, key, rank, size, timeout, successors)
        connection = self._socket
        assert connection is not None
        self.is_rejoining = self._is_told(wire.GOES_ON)
        self.on_call: Callable[[], None] = lambda: None
        self.is_asked_to_leave = False
        self._changed = threading.Condition()
        self._latest = Generation(0, [], [])
        self._complete: dict[tuple[int, int], dict[int, bytes]] = {}  # by generation and round
        self._collecting = [0, 0, 0]  # generation, round, parts
        self._parts: dict[int, bytes] = {}
        self._late: list[int] = []  # the ranks that did not come to a round in time
        self._round = 0
        self._held = Held(rank)
        self._is_between = False  # the launcher is lost, and another has not taken over yet
        self._is_lost = False
        self._has_left = False
        self._is_closed = False
        self._access = threading.Lock()  # to the socket; TLS needs one thread at a time
        connection.settimeout(0)
        if self._is_told(wire.TAKES_OVER):
            self._resume(is_due=False)
        with starting("the thread that hears the launcher"):
            threading.Thread(
                target=partial(self._listen, connection), name="malt-member", daemon=True
            ).start()

    def latest(self) -> Generation:
        """The newest generation that has been announced."""
        return self._latest

    def want(self, timeout: float) -> None:
        """Ask for a generation with this rank, which waits for it for `timeout` seconds."""
        self._say(wire.WANT_FRAME.pack(ToServer.WANT, min(timeout, wire.MAX_SECONDS)))

    def await_call(self, beyond: int, limit: float, is_in_vain: Callable[[], bool]) -> Generation:
        """Return the next generation after number `beyond` that has members or is called off.

        Raises:
            malt.TimeoutError: there is none within `limit` seconds. If `is_in_vain` becomes true,
                the call returns at once instead.
        """

        def is_there() -> bool:
            return self._latest.number > beyond and bool(
                self._latest.members or self._latest.missing
            )

        self._wait(lambda: is_there() or is_in_vain(), limit, "did not call the ranks together")
        self._round = 0
        return self._latest

    def await_done(self, number: int, limit: float, is_done: Callable[[], bool]) -> bool:
        """Wait for something outside the session; return whether it was within `limit` seconds.

        Raises:
            NewerError: a generation beyond `number` follows.
        """
        deadline = time.monotonic() + limit
        with self._changed:
            while not is_done():
                if self._latest.number > number:
                    raise NewerError
                if time.monotonic() >= deadline:
                    return False
                self._changed.wait(_SHORT_NAP_SECONDS)
        return True

    def allgather(
        self, number: int, data: bytes, timeout: float, meanwhile: Callable[[], None]
    ) -> list[bytes]:
        """Return every member's bytes, by rank; those of other ranks are empty.

        For use while the generation is formed: if a member dies, all begin another generation.
        Calls `meanwhile` from time to time.

        Raises:
            NewerError: another generation follows.
            malt.TimeoutError: the launcher does not answer.
        """
        parts = self._exchange(
            number, data, timeout, meanwhile, lambda: self._latest.number > number
        )
        if parts is None:
            raise NewerError
        return parts

    def agree(
        self, number: int, data: bytes, timeout: float, meanwhile: Callable[[], None]
    ) -> list[bytes]:
        """Exchange bytes in a generation that stands: all get the same, even if a member dies.

        Raises:
            malt.TimeoutError: the ranks that the error names did not come; the call may be
                repeated.
        """
        self._late = []
        parts = self._exchange(number, data, timeout, meanwhile, lambda: bool(self._late))
        if parts is None:
            raise errors.TimeoutError(
                f"{describe_ranks(self._late)} did not come to the next group within {timeout:g} s",
                self._late,
            )
        return parts

    def _exchange(
        self,
        number: int,
        data: bytes,
        timeout: float,
        meanwhile: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> list[bytes] | None:
        """Return every member's bytes; None if `is_over` became true first."""
        at = (number, self._round)
        self._say(wire.GENERATION_PART.pack(ToServer.PART, *at) + data)

        def is_there() -> bool:
            meanwhile()
            return at in self._complete or is_over()

        self._wait(is_there, timeout + GRACE_SECONDS, "did not answer")
        with self._changed:
            parts = self._complete.pop(at, None)
        if parts is None:
            return None
        self._round += 1
        return [parts.get(rank, b"") for rank in range(self.size)]

    def formed(self, number: int, timeout: float, meanwhile: Callable[[], None]) -> None:
        """Report that this rank has formed the generation's group; return when all have.

        The generation then stands.

        Raises:
            NewerError: a rank has died before that, and another generation follows; no rank uses
                this one.
            malt.TimeoutError: the launcher does not answer.
        """
        self._say(wire.FORMED_FRAME.pack(ToServer.FORMED, number))

        def is_there() -> bool:
            meanwhile()
            return self._held.standing == number or self._latest.number > number

        self._wait(is_there, timeout + GRACE_SECONDS, "did not answer")
        if self._held.standing != number:
            raise NewerError

    def absent(self, number: int, ranks: Iterable[int]) -> None:
        """Report members that do not do their part: the others want a generation without them."""
        self._say(wire.pack_members(ToServer.ABSENT, number, ranks))

    def leave(self) -> None:
        """Say farewell: no later generation will have this rank. Idempotent."""
        if not self._has_left:
            self._has_left = True
            with contextlib.suppress(PeerError):
                self._say(ToServer.BYE)

    def close(self) -> None:
        """Leave, and end the session; idempotent."""
        self.leave()
        self._await_hang_up()
        self._is_closed = True
        self.abort()

    def _await_hang_up(self) -> None:
        """Wait until the launcher has read the farewell.

        Closing while data are arriving resets the connection, and the launcher might not read the
        farewell. It kills the process of a rank that leaves without one.
        """
        deadline = time.monotonic() + GRACE_SECONDS
        with self._changed:
            while not self._is_lost and time.monotonic() < deadline:
                self._changed.wait(_NAP_SECONDS)

    def _is_told(self, bit: int) -> bool:
        """Return whether the welcome says so."""
        return bool(self._greeting and self._greeting[0] & bit)

    def _say(self, payload: bytes) -> None:
        if self._is_lost:
            raise PeerError("the connection to the launcher (malt run) is lost")
        with self._access:
            self._held.sent(payload)
            if self._is_between:
                return  # `_resume` sends it
            try:
                self._write(payload)
            except OSError as error:
                if self._successors:
                    return  # the listening thread notices the loss too, and turns to the next one
                raise PeerError(
                    f"the connection to the launcher (malt run) is lost: {error}"
                ) from error

    def _write(self, payload: bytes) -> None:
        connection = self._socket
        if connection is None:
            raise ConnectionResetError("it has been closed")
        view = memoryview(self._sealer.seal(payload))
        while view:
            try:
                view = view[connection.send(view) :]
            except BlockingIOError:
                _await(connection, select.POLLOUT)

    def _wait(self, is_ready: Callable[[], bool], limit: float, what: str) -> None:
        deadline = time.monotonic() + limit
        with self._changed:
            while not is_ready():
                if self._is_lost:
                    raise PeerError("the connection to the launcher (malt run) is lost")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise errors.TimeoutError(
                        f"the launcher (malt run) {what} within {round(limit, 1):g} s"
                    )
                self._changed.wait(min(left, _NAP_SECONDS))

    # The thread

    def _listen(self, connection: Channel | socket.socket) -> None:
        self._take(connection)
        while self._turn_to_next():
            assert self._socket is not None
            self._take(self._socket)
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()

    def _take(self, connection: Channel | socket.socket) -> None:
        """Handle what comes until the connection ends."""
        inbox = bytearray()
        try:
            while not self._is_closed:
                _await(connection, select.POLLIN)
                received = b""
                with self._access, contextlib.suppress(BlockingIOError):
                    while received := connection.recv(1 << 16):
                        inbox += received
                    break  # the end of the connection
                while frame := wire.take_frame(inbox, self._opener):
                    self._hear(frame)
        except (OSError, ValueError, struct.error, IndexError):
            pass  # the connection is closed, or its data make no sense

    def _turn_to_next(self) -> bool:
        """Go on with the launcher that has taken over from the lost one; False if that fails."""
        with self._access:
            newest = self._latest
            is_unsure = self._held.is_unsure(newest.number)
            if self._is_leaving() or not self._successors or is_unsure:
                return False
            self._is_between = True
            self.abort()
        is_due = newest.number > self._held.standing and not newest.missing
        with self._changed:
            if is_due:  # a group that is being formed is given up
                self._latest = Generation(newest.number + 1, [], [])
                self._changed.notify_all()
        try:
            if not self._reach_successor() or not self._is_told(wire.TAKES_OVER):
                return False
            assert self._socket is not None
            self._socket.settimeout(0)
            with self._access:
                if self._is_leaving():
                    return False
                self._resume(is_due=is_due)
                self._is_between = False
        except (ConfigError, OSError):
            return False
        return not self._is_closed

    def _is_leaving(self) -> bool:
        return self._has_left or self._is_closed

    def _resume(self, *, is_due: bool) -> None:
        """Say to a launcher that takes over what this rank knows."""
        for frame in self._held.frames(self._latest.number, is_due):
            self._write(frame)

    def _hear(self, frame: bytes) -> None:
        kind = frame[:1]
        is_call = kind in (ToClient.GENERATION, ToClient.OFF)
        with self._changed:
            if kind == ToClient.COMPLETE:
                _, *self._collecting = wire.COMPLETE_FRAME.unpack(frame)
                self._parts = {}
            elif kind == ToClient.DATA:
                _, rank = wire.DATA_HEAD.unpack_from(frame)
                self._check([rank])
                self._parts[rank] = frame[wire.DATA_HEAD.size :]
                number, round_, count = self._collecting
                if len(self._parts) == count:
                    self._complete[number, round_] = self._parts
                    if len(self._complete) > _MOST_ROUNDS:
                        del self._complete[next(iter(self._complete))]
                    self._held.completed(number, round_)
            elif kind == ToClient.LATE:
                _, late = wire.unpack_members(frame)
                self._check(late)
                self._late = late
                self._held.late()
            elif is_call:
                number, ranks = wire.unpack_members(frame)
                self._check(ranks)
                is_on = kind == ToClient.GENERATION
                self._latest = Generation(number, ranks if is_on else [], [] if is_on else ranks)
            elif kind == ToClient.STANDS:
                self._held.stands(wire.FORMED_FRAME.unpack(frame)[1], self._latest.members)
            elif kind == ToClient.ASKED:
                self.is_asked_to_leave = True
            self._changed.notify_all()
        if is_call:
            self.on_call()

    def _check(self, ranks: list[int]) -> None:
        """Raise ConnectionError unless these are ranks of the job, each once."""
        if len({*ranks}) < len(ranks) or max(ranks, default=0) >= self.size:
            raise ConnectionError("a frame with ranks that are not of this job")


def _await(connection: Channel | socket.socket, event: int) -> None:
    waiting = select.poll()
    waiting.register(connection, event)
    waiting.poll()
