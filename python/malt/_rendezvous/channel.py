"""A connection of the rendezvous whose ends prove the job's key to each other, like a socket."""

from __future__ import annotations

import builtins
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from malt._core_import import Call, TlsContext
from malt._rendezvous.wire import Introduction

if TYPE_CHECKING:
    from typing_extensions import Buffer

Result = TypeVar("Result")


class Channel:
    """One end of a connection, over TLS or plain.

    It waits as a socket does, by `settimeout`; with 0, the default, it raises BlockingIOError
    instead. A connection that is lost raises another OSError.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._limit: float | None = 0.0
        self._taken = 0  # bytes of the caller's that wait to be written

    def settimeout(self, seconds: float | None) -> None:
        self._limit = seconds

    def fileno(self) -> int:
        return self._call.fileno()

    def close(self) -> None:
        self._call.close()

    def shake_hands(self) -> bytes:
        """Return the session's key, once both ends have proved the job's.

        Raises:
            malt.ConfigError: one of them refuses.
        """
        return self._until(self._call.shake_hands)

    def recv(self, most: int) -> bytes:
        """Return bytes, none at the end; some more than `most`, where no selector sees these."""
        received = self._until(lambda: self._call.receive(most), select.POLLIN)
        while self._call.has_buffered and (more := self._call.receive(most)):
            received += more
        return received

    def recv_into(self, buffer: memoryview) -> int:
        received = self._until(lambda: self._call.receive(len(buffer)), select.POLLIN)
        buffer[: len(received)] = received
        return len(received)

    def send(self, data: Buffer) -> int:
        """Send some of `data`. After BlockingIOError call again with the same data."""
        return self._until(lambda: self._send(data), select.POLLOUT)

    def sendall(self, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]

    def _send(self, data: Buffer) -> int | None:
        if not self._taken:
            self._taken = self._call.send(data)
        elif self._call.wants_write:
            self._call.send(b"")
        if self._call.wants_write:  # TLS has taken them, and not written all of them
            return None
        taken, self._taken = self._taken, 0
        return taken or None

    def _until(self, step: Callable[[], Result | None], event: int = 0) -> Result:
        """Return the first result of `step` but None; `event` 0: as the handshake needs it."""
        deadline = None if self._limit is None else time.monotonic() + self._limit
        while (result := step()) is None:
            if self._limit == 0:
                raise BlockingIOError
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise builtins.TimeoutError("timed out")
            due = select.POLLOUT if self._call.wants_write else select.POLLIN
            waiting = select.poll()
            waiting.register(self, event or due)
            waiting.poll(None if left is None else 1000 * left)
        return result


def call(
    connected: socket.socket, key: bytes, introduction: Introduction, tls: TlsContext | None
) -> Channel:
    """Take over a connection that this end has opened; the handshake is still to be made."""
    connected.setblocking(False)
    number, about = introduction.pack()
    return Channel(Call(connected.detach(), key, number, about, tls))
