"""The launcher's side of the rendezvous of `malt run`; the protocol is in `_wire`."""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from malt import _wire as wire
from malt._rounds import Frames, ProtocolError, Rounds

# How long, and (in Server) how many at once, may be connected without having proven the key.
HANDSHAKE_SECONDS = 5.0


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    born: float
    inbox: bytearray = field(default_factory=bytearray)
    outbox: deque[memoryview] = field(default_factory=deque)
    hello: bytes = b""
    nonce: bytes = b""
    rank: int | None = None  # once it has joined, hence proven the key
    process: int = 0
    opener: wire.Sealer | None = None
    sealer: wire.Sealer | None = None
    closing: bool = False  # when all that is in the outbox has been sent


class Server:
    """Where the ranks of one job meet; on loopback, in a thread of the launcher.

    The key is never logged. `start` after the ranks have been forked: they wait in the listening
    socket's queue until then.
    """

    def __init__(self, size: int, *, host: str = "127.0.0.1", key: bytes | None = None) -> None:
        self.size = size
        self._key = secrets.token_bytes(wire.KEY_BYTES) if key is None else key
        self._rounds = Rounds(size)
        self._joined: dict[int, _Connection] = {}
        self._connections: set[_Connection] = set()
        self._pending: dict[_Connection, None] = {}  # oldest first
        self._max_pending = max(64, 2 * size)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running = True
        self._listener = socket.create_server((host, 0), backlog=max(128, 2 * size))
        self._listener.setblocking(False)
        self._waker, self._wakened = socket.socketpair()
        self._wakened.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="malt-rendezvous", daemon=True)
        name, port = self._listener.getsockname()[:2]
        self.address = f"{name}:{port}"

    def environ(self, rank: int) -> dict[str, str]:
        """What the process of `rank` needs in its environment to join."""
        return {
            "MALT_RENDEZVOUS": self.address,
            "MALT_JOB_KEY": self._key.hex(),
            "MALT_RANK": str(rank),
            "MALT_SIZE": str(self.size),
        }

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End all sessions; idempotent."""
        if self._thread.is_alive():
            self._call(self._stop)
            self._thread.join()
        self._shut()

    def rank_ended(self, rank: int, process: int, how: str) -> None:
        """Tell the ranks that wait for `rank` that its process has ended ("was killed by ...")."""
        self._call(lambda: self._rank_ended(rank, process, how))

    def _call(self, function: Callable[[], None]) -> None:
        self._calls.put(function)
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _stop(self) -> None:
        self._running = False

    def _rank_ended(self, rank: int, process: int, how: str) -> None:
        connection = self._joined.get(rank)
        if connection is not None:
            if connection.process != process:
                return  # the rank is a child of what the launcher started
            self._drop(connection)  # a process that it forked may still hold it open
        self._deliver(self._rounds.end(rank, how))

    # The thread

    def _serve(self) -> None:
        try:
            while self._running:
                for key, events in self._selector.select(self._seconds_to_deadline()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._wakened:
                        self._run_calls()
                    else:
                        self._attend(key.data, events)
                now = time.monotonic()
                while self._pending and self._oldest().born + HANDSHAKE_SECONDS <= now:
                    self._drop(self._oldest())
                self._deliver(self._rounds.expire(now))
        finally:
            self._shut()

    def _shut(self) -> None:
        for connection in self._connections:
            connection.socket.close()
        self._connections.clear()
        self._selector.close()
        for end in (self._listener, self._waker, self._wakened):
            end.close()

    def _run_calls(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakened.recv(4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()

    def _seconds_to_deadline(self) -> float | None:
        deadlines = [self._oldest().born + HANDSHAKE_SECONDS] if self._pending else []
        if (deadline := self._rounds.next_deadline()) is not None:
            deadlines.append(deadline)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _oldest(self) -> _Connection:
        return next(iter(self._pending))

    # Connections

    def _accept(self) -> None:
        if len(self._pending) >= self._max_pending:
            self._drop(self._oldest())
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left, most likely
            if self._pending:
                self._drop(self._oldest())
            else:
                time.sleep(0.01)
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(accepted, time.monotonic())
        self._connections.add(connection)
        self._pending[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _drop(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._pending.pop(connection, None)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.rank is not None:
            del self._joined[connection.rank]
            self._deliver(self._rounds.leave(connection.rank))

    def _attend(self, connection: _Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        # It may have been dropped, just now or for another's event.
        if not events & selectors.EVENT_READ or connection not in self._connections:
            return
        try:
            received = connection.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(connection)
            return
        connection.inbox += received
        while connection in self._connections and not connection.closing:
            if not (self._take_frame if connection.opener else self._take_handshake)(connection):
                return

    def _take_handshake(self, connection: _Connection) -> bool:
        """Digest the next step of the handshake; False when there is none yet."""
        inbox = connection.inbox
        length = wire.MAC_BYTES if connection.hello else wire.HELLO.size
        if len(inbox) < length:
            return False
        message = bytes(inbox[:length])
        del inbox[:length]
        if inbox:  # nobody says more before it has been answered
            self._drop(connection)
        elif not connection.hello:
            self._challenge(connection, message)
        else:
            hello, nonce = connection.hello, connection.nonce
            if hmac.compare_digest(message, wire.proof(self._key, b"client", hello, nonce)):
                connection.opener, connection.sealer = wire.sealers(self._key, hello, nonce)
                self._join(connection)
            else:
                self._drop(connection)
        return True

    def _challenge(self, connection: _Connection, hello: bytes) -> None:
        if not hello.startswith(wire.MAGIC):
            self._drop(connection)
            return
        connection.hello = hello
        connection.nonce = secrets.token_bytes(wire.NONCE_BYTES)
        proof = wire.proof(self._key, b"server", hello, connection.nonce)
        self._send(connection, wire.CHALLENGE.pack(connection.nonce, proof))

    def _join(self, connection: _Connection) -> None:
        self._pending.pop(connection, None)
        _, rank, size, process, _ = wire.HELLO.unpack(connection.hello)
        refusal = ""
        if size != self.size or rank >= self.size:
            refusal = f"rank {rank} of {size} is not of this job of {self.size}"
        elif rank in self._joined:
            refusal = (
                f"rank {rank} has joined already, as process {self._joined[rank].process}; a "
                "process that a rank starts must not join the job again"
            )
        if refusal:
            connection.closing = True
            self._send_frame(connection, wire.REFUSED + refusal.encode())
            return
        connection.rank = rank
        connection.process = process
        self._joined[rank] = connection
        self._rounds.join(rank)
        self._send_frame(connection, wire.WELCOME)

    def _take_frame(self, connection: _Connection) -> bool:
        """Digest the next genuine frame; False when there is none yet."""
        inbox = connection.inbox
        if len(inbox) < wire.LENGTH.size:
            return False
        (length,) = wire.LENGTH.unpack_from(inbox)
        if not 0 < length <= wire.MAX_FRAME:
            self._drop(connection)
            return False
        end = wire.LENGTH.size + length
        if len(inbox) < end + wire.MAC_BYTES:
            return False
        payload, mac = (
            bytes(inbox[wire.LENGTH.size : end]),
            bytes(inbox[end : end + wire.MAC_BYTES]),
        )
        del inbox[: end + wire.MAC_BYTES]
        assert connection.opener is not None
        assert connection.rank is not None
        # One that speaks again before it has taken the last answer would fill the outbox.
        if not connection.opener.is_genuine(payload, mac) or connection.outbox:
            self._drop(connection)
            return False
        try:
            self._deliver(self._rounds.part(connection.rank, payload, time.monotonic()))
        except ProtocolError:  # or its farewell
            self._drop(connection)
        return True

    def _deliver(self, frames: Frames) -> None:
        for rank, payloads in frames:
            for payload in payloads:
                if rank in self._joined:
                    self._send_frame(self._joined[rank], payload)

    def _send_frame(self, connection: _Connection, payload: bytes) -> None:
        assert connection.sealer is not None
        self._send(connection, connection.sealer.seal(payload))

    def _send(self, connection: _Connection, message: bytes) -> None:
        connection.outbox.append(memoryview(message))
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        outbox = connection.outbox
        try:
            while outbox:
                sent = connection.socket.send(outbox[0])
                if sent < len(outbox[0]):
                    outbox[0] = outbox[0][sent:]
                else:
                    outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if connection.closing and not outbox:
            self._drop(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if outbox else 0)
        self._selector.modify(connection.socket, events, connection)
