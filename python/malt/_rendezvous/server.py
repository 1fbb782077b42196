"""The server's side of the rendezvous of `malt run`; the protocol is in `_rendezvous/wire.py`."""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from malt._errors import ConfigError
from malt._rendezvous import tls, wire
from malt._rendezvous.allgather_table import Frames, ProtocolError, Rounds
from malt._rendezvous.exit_code import describe_end
from malt._rendezvous.generation_table import Generations
from malt._rendezvous.node_table import Nodes

# How long a client may be connected without having proven the key. Server limits how many.
HANDSHAKE_SECONDS = 5.0
# A select() accepts at most this, which is less than the longest time limit.
_MAX_WAIT_SECONDS = 86400.0
# How long a rank's process may go on after its session has been lost. If the process has ended, its
# launcher reports that well before. If a network has cut the session alone, the rank can be called
# to no further group, so it must be killed and rejoin.
LOST_SECONDS = 2.0
# A launcher may leave so many frames unread and still ask for another number of ranks.
_MAX_UNTAKEN = 1024


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    host: str
    born: float
    inbox: bytearray = field(default_factory=bytearray)
    outbox: deque[memoryview] = field(default_factory=deque)
    hello: bytes = b""
    nonce: bytes = b""
    kind: bytes = b""  # wire.RANK, MEMBER or NODE, once it has joined, so has proven the key
    number: int = 0
    process: int = 0
    opener: wire.Sealer | None = None
    sealer: wire.Sealer | None = None
    closing: bool = False  # close it once all of the outbox has been sent
    waits: bool = False  # for the rank's last process to end
    has_left: bool = False  # it has said farewell, or its end is known


class Server:
    """The meeting point of the launchers and the ranks of one job; runs in node 0's launcher.

    The key is never logged. First the launchers come, in `gather`, then the ranks, which a thread
    serves. `start` it after this host's ranks have been forked: until then all ranks wait in the
    listening socket's queue.
    """

    def __init__(self, nnodes: int, key: bytes, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 means any port.

        Raises:
            malt.ConfigError: the port is taken, the address is not of this host, or MALT_TLS is
                unusable.
        """
        self.size = 0
        self.has_met_ranks = False  # read by other threads
        self._key = key
        self._nodes = Nodes(nnodes)
        self._rounds = Rounds(0)
        self._generations = Generations(0)
        self._is_over = False  # no rank can rejoin any more, and the launchers know
        self._joined: dict[bytes, dict[int, _Connection]] = {
            kind: {} for kind in (wire.RANK, wire.MEMBER, wire.NODE)
        }
        # By rank whose session is lost: since when, and the rank's process.
        self._lost: dict[int, tuple[float, int]] = {}
        self._connections: set[_Connection] = set()
        # Connections found closed while frames were sent to them. They are dropped only once the
        # present frames have gone to all their receivers, because the tables answer a loss with
        # frames that must come later.
        self._broken: list[_Connection] = []
        self._pending: dict[_Connection, None] = {}  # oldest first
        self._running = True
        self._encryption = tls.context(server_side=True)
        self._listener = _listen(host, port)
        self._listener.setblocking(False)
        self._expect(nnodes)
        self._waker, self._wakened = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="malt-rendezvous", daemon=True)
        self.host, self.port = self._listener.getsockname()[:2]
        self.address = (
            f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        )

    def attach(self, hello: bytes) -> tuple[socket.socket, bytes]:
        """Open the session of the launcher that contains the server, which need not prove the key.

        Returns that session's end and nonce; the welcome is already there. Call it before `start`.
        """
        ours, theirs = socket.socketpair()
        connection = self._admit(ours, "this host")
        connection.hello = hello
        connection.nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._open(connection)
        return theirs, connection.nonce

    def gather(self) -> None:
        """Serve in this thread until all launchers have come, or one has waited long enough."""
        while not self._nodes.is_settled:
            self._turn()
        self.size = self._nodes.size
        self._rounds = Rounds(self.size)
        self._generations = Generations(self.size)
        self._expect(self.size)
        for rank in self._nodes.free():
            self._rank_ended(rank, None, "has not been started")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End all sessions; idempotent."""
        if self._thread.is_alive():
            self._running = False
            with contextlib.suppress(OSError):
                self._waker.send(b"\0")
            self._thread.join()
        self._shut()

    def _expect(self, clients: int) -> None:
        """Let so many clients come at once."""
        self._max_pending = max(64, 2 * clients)
        self._listener.listen(max(128, 2 * clients))

    # The thread

    def _serve(self) -> None:
        try:
            while self._running:
                self._turn()
        finally:
            self._shut()

    def _turn(self) -> None:
        """Wait for the next events and handle them."""
        for key, events in self._selector.select(self._seconds_to_deadline()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is not self._wakened:  # `close` uses that one to wake the thread
                self._attend(key.data, events)
            self._drop_broken()
        now = time.monotonic()
        while self._pending and (oldest := self._oldest()).born + HANDSHAKE_SECONDS <= now:
            if oldest.waits:
                self._open(oldest)  # refuses it: the last process has not ended
            else:
                self._drop(oldest)
        self._deliver(wire.NODE, self._nodes.expire(now))
        self._deliver(wire.RANK, self._rounds.expire(now))
        self._deliver_to_members(self._generations.expire(now))
        self._end_lost(now)
        self._drop_broken()
        if self._generations.is_over and not self._is_over:
            self._is_over = self._nodes.is_closed = True
            self._deliver(wire.NODE, [(node, [wire.DONE]) for node in self._joined[wire.NODE]])
            self._drop_broken()

    def _shut(self) -> None:
        for connection in self._connections:
            connection.socket.close()
        self._connections.clear()
        self._selector.close()
        for end in (self._listener, self._waker, self._wakened):
            end.close()

    def _seconds_to_deadline(self) -> float | None:
        deadlines = [self._oldest().born + HANDSHAKE_SECONDS] if self._pending else []
        deadlines += [since + LOST_SECONDS for since, _ in self._lost.values()]
        for books in (self._nodes, self._rounds, self._generations):
            deadline = books.next_deadline()
            if deadline is not None:
                deadlines.append(deadline)
        if not deadlines:
            return None
        return min(max(0.0, min(deadlines) - time.monotonic()), _MAX_WAIT_SECONDS)

    def _oldest(self) -> _Connection:
        return next(iter(self._pending))

    # Connections

    def _accept(self) -> None:
        if len(self._pending) >= self._max_pending:
            self._drop(self._oldest())
        try:
            accepted, peer = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # most likely no descriptor is left
            if self._pending:
                self._drop(self._oldest())
            else:
                time.sleep(0.01)
            return
        with contextlib.suppress(OSError):  # it is closed already; reading will notice
            wire.tune(accepted)
        if self._encryption is not None:
            accepted = tls.Socket(accepted, self._encryption, server_side=True)
        self._admit(accepted, peer[0])

    def _admit(self, accepted: socket.socket, host: str) -> _Connection:
        accepted.setblocking(False)
        connection = _Connection(accepted, host, time.monotonic())
        self._connections.add(connection)
        self._pending[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        return connection

    def _drop(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._pending.pop(connection, None)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if not connection.kind:
            return
        del self._joined[connection.kind][connection.number]
        if connection.kind == wire.RANK:
            self._deliver(wire.RANK, self._rounds.leave(connection.number))
        elif connection.kind == wire.MEMBER:
            now = time.monotonic()
            if not connection.has_left:
                self._lost[connection.number] = now, connection.process
            self._deliver_to_members(self._generations.leave(connection.number, now))
            self._open_next(connection.number)
        else:
            lost, frames = self._nodes.leave(connection.number)
            self._deliver(wire.NODE, frames)
            for rank in lost if self.size else ():  # without a size no rank waits for them yet
                self._rank_ended(rank, None, f"was lost with node {connection.number}")

    def _attend(self, connection: _Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        # An event, of this connection or another one, may have caused it to be dropped just now.
        if not events & selectors.EVENT_READ or connection not in self._connections:
            return
        try:
            received = connection.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            received = b""
            if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
                self._turn_away(connection)  # the client does not use TLS
        if not received:
            self._drop(connection)
            return
        connection.inbox += received
        if connection.waits:  # a client sends nothing more before it has an answer
            self._drop(connection)
        while connection in self._connections and not connection.closing:
            if not (self._take_frame if connection.opener else self._take_handshake)(connection):
                return

    def _take_handshake(self, connection: _Connection) -> bool:
        """Handle the next step of the handshake; False when it has not come yet."""
        inbox = connection.inbox
        if not connection.hello and inbox.startswith(tls.HANDSHAKE):
            self._turn_away(connection)
            self._drop(connection)
            return True
        length = wire.MAC_BYTES if connection.hello else wire.HELLO.size
        if len(inbox) < length:
            return False
        message = bytes(inbox[:length])
        del inbox[:length]
        if inbox:  # a client sends nothing more before it has an answer
            self._drop(connection)
        elif not connection.hello:
            self._challenge(connection, message)
        else:
            hello, nonce = connection.hello, connection.nonce
            binding = tls.binding(connection.socket)
            expected = wire.proof(self._key, b"client", hello, nonce, binding)
            if hmac.compare_digest(message, expected):
                self._open(connection)
            else:
                self._drop(connection)
        return True

    def _turn_away(self, connection: _Connection) -> None:
        """Tell a client whose TLS setting differs at once, in bytes that both kinds understand."""
        with contextlib.suppress(OSError):
            os.write(connection.socket.fileno(), tls.ALERT)

    def _challenge(self, connection: _Connection, hello: bytes) -> None:
        magic, kind, *_ = wire.HELLO.unpack(hello)
        if magic != wire.MAGIC or kind not in self._joined:
            if magic != wire.MAGIC and magic.startswith(wire.MAGIC[:-1]):
                self._nodes.other_version = connection.host
            self._drop(connection)
            return
        connection.hello = hello
        connection.nonce = secrets.token_bytes(wire.NONCE_BYTES)
        binding = tls.binding(connection.socket)
        proof = wire.proof(self._key, b"server", hello, connection.nonce, binding)
        self._send(connection, wire.CHALLENGE.pack(connection.nonce, proof))

    def _open(self, connection: _Connection) -> None:
        """Begin the session of a client that knows the key."""
        hello = connection.hello
        connection.opener, connection.sealer = wire.sealers(
            self._key, hello, connection.nonce, tls.binding(connection.socket)
        )
        _, kind, number, count, process, _ = wire.HELLO.unpack(hello)
        if kind == wire.MEMBER and number in self._joined[kind] and not connection.waits:
            # Most likely the rank's last process has ended, and this is the next one: connections
            # of different processes are not ordered in time.
            connection.waits = True
            return
        self._pending.pop(connection, None)
        connection.waits = False
        if refusal := self._refusal(kind, number, count):
            connection.closing = True
            self._send_frame(connection, wire.REFUSED + refusal.encode())
            return
        connection.kind, connection.number, connection.process = kind, number, process
        self._joined[kind][number] = connection
        self.has_met_ranks = self.has_met_ranks or kind != wire.NODE
        if kind == wire.RANK:
            self._rounds.join(number)
        greeting = b""
        frames: Frames = []
        if kind == wire.MEMBER:
            self._lost.pop(number, None)  # the rank's next process has come
            greeting = struct.pack("!?", self._generations.has_formed)
            frames = self._generations.join(number)
        self._send_frame(connection, wire.WELCOME + greeting)
        self._deliver_to_members(frames)
        if kind == wire.MEMBER and number in self._nodes.leaving:
            self._send_frame(connection, wire.ASKED)

    def _open_next(self, rank: int) -> None:
        """Begin the session of the rank's next process, if it waited for the last one to end."""
        for waiting in [other for other in self._pending if other.waits]:
            if wire.HELLO.unpack(waiting.hello)[2] == rank:
                self._open(waiting)

    def _refusal(self, kind: bytes, number: int, count: int) -> str:
        nnodes = self._nodes.nnodes
        first = self._joined[kind].get(number)
        if kind != wire.NODE and (count != self.size or number >= count):
            return f"rank {number} of {count} is not of this job of {self.size}"
        if kind != wire.NODE and not self._nodes.has(number):
            return (
                f"rank {number} has ended, or was lost with its node: it is not in the job any more"
            )
        if kind != wire.NODE and first:
            return (
                f"rank {number} has joined already, as process {first.process}; a process that a "
                "rank starts must not join the job again"
            )
        if kind == wire.NODE and (count != nnodes or number >= count):
            return (
                f"node {number} says --nnodes {count}, node 0 says --nnodes {nnodes}: give each "
                "launcher the same"
            )
        if kind == wire.NODE and first:
            return (
                f"--node-rank {number} is taken by process {first.process} on {first.host}: "
                "give each launcher one of its own"
            )
        if kind == wire.NODE and self.size:
            return (
                f"the job has started already, and its node {number} has gone for good: start all "
                "anew, or with --elastic ranks on the other nodes (malt scale)"
            )
        return ""

    def _take_frame(self, connection: _Connection) -> bool:
        """Handle the next genuine frame; False when it has not come yet."""
        assert connection.opener is not None
        try:
            payload = wire.take_frame(connection.inbox, connection.opener)
            if payload is None:
                return False
            if connection.kind == wire.NODE:
                self._digest(connection.number, payload)
            elif connection.kind == wire.MEMBER:
                now = time.monotonic()
                connection.has_left = payload == wire.BYE
                self._deliver_to_members(self._generations.hear(connection.number, payload, now))
            elif connection.outbox:
                # A client that sends again before it has read the last answer fills the outbox.
                raise ProtocolError
            else:
                frames = self._rounds.part(connection.number, payload, time.monotonic())
                self._deliver(wire.RANK, frames)
        except (ConnectionError, ProtocolError, struct.error):  # a farewell is a ProtocolError too
            self._drop(connection)
        return True

    def _digest(self, node: int, payload: bytes) -> None:
        """Handle a launcher's frame: the start or end of its ranks, or a `malt scale` request."""
        kind = payload[:1]
        if kind == wire.RANKS:
            self._deliver(wire.NODE, self._nodes.come(node, payload, time.monotonic()))
        elif kind == wire.AGAIN:
            rank, process = self._nodes.again(node, payload)
            self._member_ended(rank, process, is_for_good=False)
        elif kind == wire.SCALE:
            self._scale(node, payload)
        elif kind == wire.ENDED:
            rank, process, code, frames = self._nodes.end(node, payload)
            self._rank_ended(rank, process, describe_end(code))
            if self._nodes.has(rank):  # another node starts the rank
                self._generations.start(rank)
            self._deliver(wire.NODE, frames)
        else:
            raise ProtocolError

    def _scale(self, node: int, payload: bytes) -> None:
        if len(self._joined[wire.NODE][node].outbox) > _MAX_UNTAKEN:
            raise ProtocolError  # the answers would fill the outbox
        scaled = self._nodes.scale(node, payload)
        for rank in scaled.starting:
            self._generations.start(rank)
        self._deliver(wire.NODE, scaled.frames)
        self._deliver(wire.MEMBER, [(rank, [wire.ASKED]) for rank in scaled.leaving])

    def _rank_ended(self, rank: int, process: int | None, how: str) -> None:
        self._member_ended(rank, process, is_for_good=True)
        if self._forget(wire.RANK, rank, process):
            self._deliver(wire.RANK, self._rounds.end(rank, how))

    def _member_ended(self, rank: int, process: int | None, *, is_for_good: bool) -> None:
        if rank in self._lost and process in (None, self._lost[rank][1]):
            del self._lost[rank]
        if self._forget(wire.MEMBER, rank, process):
            self._deliver_to_members(self._generations.end(rank, is_for_good, time.monotonic()))

    def _forget(self, kind: bytes, rank: int, process: int | None) -> bool:
        """End the session of a process that has ended; False if the rank has another process."""
        connection = self._joined[kind].get(rank)
        if connection is not None:
            if process not in (None, connection.process):
                return False  # the rank is a child of the process that the launcher started
            connection.has_left = True
            self._drop(connection)  # a process that the rank forked may still hold it open
        return True

    def _expel(self, rank: int) -> None:
        """Kill a rank's process: others go on without it, and the rank's next process may join."""
        connection = self._joined[wire.MEMBER].get(rank)
        if connection is None:
            return
        connection.has_left = True
        self._drop(connection)
        self._kill(rank, connection.process)

    def _end_lost(self, now: float) -> None:
        for rank, (since, process) in list(self._lost.items()):
            if since + LOST_SECONDS <= now:
                del self._lost[rank]
                self._kill(rank, process)

    def _kill(self, rank: int, process: int) -> None:
        kill = wire.PROCESS_FRAME.pack(wire.KILL, rank, process)
        self._deliver(wire.NODE, [(node, [kill]) for node in self._joined[wire.NODE]])

    def _deliver_to_members(self, frames: Frames) -> None:
        self._deliver(wire.MEMBER, frames)
        # At once, while those processes still have their ranks.
        while self._generations.expelled:
            self._expel(self._generations.expelled.pop())

    def _deliver(self, kind: bytes, frames: Frames) -> None:
        """Send each client its frames. They must all be sent before the tables are asked again."""
        joined = self._joined[kind]
        for number, payloads in frames:
            for payload in payloads:
                if number in joined:
                    self._send_frame(joined[number], payload)

    def _send_frame(self, connection: _Connection, payload: bytes) -> None:
        assert connection.sealer is not None
        self._send(connection, connection.sealer.seal(payload))

    def _send(self, connection: _Connection, message: bytes) -> None:
        connection.outbox.append(memoryview(message))
        self._flush(connection)

    def _drop_broken(self) -> None:
        while self._broken:
            self._drop(self._broken.pop())

    def _flush(self, connection: _Connection) -> None:
        if connection in self._broken:
            return
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
            self._broken.append(connection)
            return
        if connection.closing and not outbox:
            self._broken.append(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if outbox else 0)
        self._selector.modify(connection.socket, events, connection)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        hint = {
            errno.EADDRINUSE: "the port is in use, by another job or another --node-rank 0; take "
            "another in --rendezvous",
            errno.EADDRNOTAVAIL: "no address of this host, where node 0 is to listen; give one in "
            "--rendezvous, or start --node-rank 0 where it is",
        }.get(error.errno or 0, f"{error}; see --rendezvous")
        raise ConfigError(f"node 0 cannot listen at {host}, port {port}: {hint}") from error
