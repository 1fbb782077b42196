"""The server's side of the rendezvous of `malt run`; the protocol is in `_rendezvous/wire.py`.

`succession.py` says how another launcher's server takes over.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import struct
import threading
import time

from malt._rendezvous import wire
from malt._rendezvous.allgather_table import Frames, ProtocolError, Rounds
from malt._rendezvous.connection import Connection
from malt._rendezvous.exit_code import describe_end
from malt._rendezvous.generation_table import GenerationTable
from malt._rendezvous.listener import Listener
from malt._rendezvous.node_table import Nodes
from malt._rendezvous.refusal import refusal_of
from malt._rendezvous.relay import Relay
from malt._rendezvous.sessions import Sessions
from malt._rendezvous.wire import ToClient, ToServer
from malt._system_limits import starting
from malt._uninterrupted import uninterrupted

# A select() accepts at most this, which is less than the longest time limit.
_MAX_WAIT_SECONDS = 86400.0
# How long a rank's process may go on after its session has been lost. If the process has ended, its
# launcher reports that well before. If a network has cut the session alone, the rank can be called
# to no further group, so it must be killed and rejoin.
LOST_SECONDS = 2.0
# How long a rank's next process waits until the end of the last one is known.
SUCCESSOR_SECONDS = 5.0
# How long a server that takes over waits for the launchers and ranks that the last one had.
RESUME_SECONDS = 30.0
# A launcher may leave so many frames unread and still ask for another number of ranks.
_MAX_UNTAKEN = 1024


class Server:
    """The meeting point of the launchers and the ranks of one job; runs in a launcher.

    The key is never logged. In node 0's launcher, first the launchers come, in `gather`, then the
    ranks, which a thread serves. `start` it after this host's ranks have been forked: until then
    all ranks wait in the listening socket's queue. In another launcher it stands by: it listens,
    and `succeed` takes the place of `gather` once node 0 is lost.
    """

    def __init__(self, nnodes: int, key: bytes, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 means any port.

        Raises:
            malt.ConfigError: the port is taken, the address is not of this host, or MALT_TLS is
                unusable.
        """
        self.size = 0
        self.has_met_ranks = False  # read by other threads
        self._nodes = Nodes(nnodes)
        self._rounds = Rounds(0)
        self._generations = GenerationTable(0)
        self._settles_at: float | None = None  # when it has taken over, at the latest
        self._is_over = False  # no rank can rejoin any more, and the launchers know
        # By rank whose session is lost: since when, and the rank's process.
        self._lost: dict[int, tuple[float, int]] = {}
        # Each is of a rank's next process, and waits since then for the last one to end.
        self._waiting: dict[Connection, float] = {}
        self._proved: list[Connection] = []  # the key, and are still to be let in
        self._running = True
        self._selector = selectors.DefaultSelector()
        self._sessions = Sessions(self._selector)
        self._relay = Relay(self._sessions)
        self._listener = Listener(host, port, key, self._selector)
        self._listener.expect(nnodes)
        self._waker, self._wakened = socket.socketpair()
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="malt-rendezvous", daemon=True)
        # Free unless the thread works: one whose join() is interrupted counts as ended.
        self._over = threading.Lock()
        self.host, self.port = self._listener.host, self._listener.port
        self.address = wire.join_address(self.host, self.port)

    def attach(self, who: wire.Introduction) -> tuple[socket.socket, bytes]:
        """Open the session of the launcher that contains the server, which need not prove the key.

        Returns that session's end and key; the welcome is already there. Call it before `start`.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        session_key = secrets.token_bytes(wire.KEY_BYTES)
        self._open(Connection(ours, "this host", *who, *wire.sealers(session_key)))
        return theirs, session_key

    def gather(self) -> None:
        """Serve in this thread until all launchers have come, or one has waited long enough."""
        while not self._nodes.is_settled:
            self._turn()
        self.size = self._nodes.size
        self._rounds = Rounds(self.size)
        self._generations = GenerationTable(self.size)
        self._listener.expect(self.size)
        self._sessions.expect(self.size)
        for rank in self._nodes.free():
            self._rank_ended(rank, None, "has not been started")

    def succeed(self, size: int, limits: range, nodes: set[int]) -> None:
        """Take over a job of `size` ranks from a server that is lost; `nodes` may be left."""
        self.size = size
        self._nodes.succeed(size, limits, nodes)
        self._rounds = Rounds(size)
        self._generations = GenerationTable(size)
        self._generations.succeed()
        self._listener.expect(size)
        self._sessions.expect(size)
        self._settles_at = time.monotonic() + RESUME_SECONDS

    @uninterrupted
    def start(self) -> None:
        """Serve in a thread from now on.

        Raises:
            malt.ConfigError: the limit on threads is reached.
        """
        with starting("the thread that serves the ranks"):
            self._over.acquire()
            try:
                self._thread.start()
            except RuntimeError:  # no thread has begun
                self._over.release()
                raise

    def has_ranks(self) -> bool:
        """Return whether a rank has a session. Any thread may call it."""
        return bool(self._sessions.joined[wire.RANK])

    def close(self) -> None:
        """End all sessions; idempotent."""
        self._running = False
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")
        with self._over:
            self._shut()

    # The thread

    def _serve(self) -> None:
        try:
            while self._running:
                self._turn()
        finally:
            self._shut()
            self._over.release()

    def _turn(self) -> None:
        """Wait for the next events and handle them."""
        for key, events in self._selector.select(self._seconds_to_deadline()):
            if key.data is not None:  # None: the listener, or `close` that wakes the thread
                self._attend(key.data, events)
                self._drop_broken()
        proved, self._proved = self._proved, []
        for connection in proved:
            self._open(connection)
            self._drop_broken()
        # They are let in after the next look at the sessions: a rank that joins again has left its
        # last session before it called.
        self._proved = self._listener.ready()
        now = time.monotonic()
        for connection, since in list(self._waiting.items()):
            if since + SUCCESSOR_SECONDS <= now:
                self._open(connection)  # refuses it: the last process has not ended
        self._nodes.last_refusal = self._listener.last_refusal
        self._deliver(wire.NODE, self._nodes.expire(now))
        self._deliver(wire.RANK, self._rounds.expire(now))
        self._deliver_to_members(self._generations.expire(now))
        self._end_lost(now)
        self._drop_broken()
        if self._settles_at is not None and (self._settles_at <= now or self._have_all_come()):
            self._settle(now)
        if self._generations.is_over and not self._is_over:
            self._is_over = self._nodes.is_closed = True
            self._deliver(
                wire.NODE, [(node, [ToClient.DONE]) for node in self._sessions.joined[wire.NODE]]
            )
            self._drop_broken()

    def _have_all_come(self) -> bool:
        rejoining = self._nodes.running(rejoining=True)
        return not self._nodes.missing and rejoining <= set(self._generations.held)

    def _settle(self, now: float) -> None:
        """End the time of taking over; go on with the nodes and ranks that have come."""
        self._settles_at = None
        frames = self._nodes.settle()
        if not self._nodes.running(rejoining=True):
            self._generations = GenerationTable(self.size)  # there are none, and none to come
        for rank in self._nodes.free():
            self._rank_ended(rank, None, "was lost with its node")
        if self._nodes.running(rejoining=True):
            self._deliver_to_members(self._generations.settle(now))
        self._deliver(wire.NODE, frames)
        self._drop_broken()

    def _shut(self) -> None:
        self._sessions.close()
        for connection in self._proved:
            connection.socket.close()
        self._listener.close()
        self._selector.close()
        for end in (self._waker, self._wakened):
            end.close()

    def _seconds_to_deadline(self) -> float | None:
        if self._proved:
            return 0.0
        deadlines = [since + LOST_SECONDS for since, _ in self._lost.values()]
        deadlines += [since + SUCCESSOR_SECONDS for since in self._waiting.values()]
        deadlines += [self._settles_at] if self._settles_at is not None else []
        for books in (self._nodes, self._rounds, self._generations):
            deadline = books.next_deadline()
            if deadline is not None:
                deadlines.append(deadline)
        if not deadlines:
            return None
        return min(max(0.0, min(deadlines) - time.monotonic()), _MAX_WAIT_SECONDS)

    # Connections

    def _drop(self, connection: Connection) -> None:
        if not self._sessions.end(connection):
            return
        self._waiting.pop(connection, None)
        if not connection.has_joined:
            return
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
            self._relay.end_if_finished()
            self._deliver(wire.NODE, frames)
            for rank in lost if self.size else ():  # without a size no rank waits for them yet
                self._rank_ended(rank, None, f"was lost with node {connection.number}")

    def _attend(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._sessions.flush(connection)
        # An event, of this connection or another one, may have caused it to be dropped just now.
        if not events & selectors.EVENT_READ or connection not in self._sessions:
            return
        try:
            received = connection.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        # A client that waits sends nothing more before it has an answer.
        if not received or connection in self._waiting:
            self._drop(connection)
            return
        connection.inbox += received
        while connection in self._sessions and not connection.closing:
            if not self._take_frame(connection):
                return

    def _open(self, connection: Connection) -> None:
        """Begin the session of a client that knows the key."""
        kind, number = connection.kind, connection.number
        if connection not in self._sessions:
            self._sessions.begin(connection)
            if kind == wire.MEMBER and number in self._sessions.joined[kind]:
                # Most likely the rank's last process has ended, and this is the next one:
                # connections of different processes are not ordered in time.
                self._waiting[connection] = time.monotonic()
                return
        self._waiting.pop(connection, None)
        first = self._sessions.joined[kind].get(number)
        is_taking_over = self._settles_at is not None
        if refusal := refusal_of(connection, first, self._nodes, self.size, is_taking_over):
            connection.closing = True
            self._sessions.send(connection, ToClient.REFUSED + refusal.encode())
            return
        connection.has_joined = True
        self._sessions.joined[kind][number] = connection
        self.has_met_ranks = self.has_met_ranks or kind != wire.NODE
        if kind == wire.RANK:
            self._rounds.join(number)
        elif kind == wire.NODE:
            self._listener.expect_from(connection.host)
        greeting = b""
        frames: Frames = []
        if kind == wire.MEMBER:
            self._lost.pop(number, None)  # the rank's next process has come
            greeting = bytes(
                [wire.GOES_ON * self._generations.has_formed | wire.TAKES_OVER * is_taking_over]
            )
            frames = self._generations.join(number)
        self._sessions.send(connection, ToClient.WELCOME + greeting)
        self._deliver_to_members(frames)
        if kind == wire.MEMBER and number in self._nodes.leaving:
            self._sessions.send(connection, ToClient.ASKED)

    def _open_next(self, rank: int) -> None:
        """Begin the session of the rank's next process, if it waited for the last one to end."""
        for waiting in list(self._waiting):
            if waiting.number == rank:
                self._open(waiting)

    def _take_frame(self, connection: Connection) -> bool:
        """Handle the next genuine frame; False when it has not come yet."""
        try:
            payload = wire.take_frame(connection.inbox, connection.opener)
            if payload is None:
                return False
            if connection.kind == wire.NODE:
                self._digest(connection.number, payload)
            elif connection.kind == wire.MEMBER:
                now = time.monotonic()
                connection.has_left = payload == ToServer.BYE
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
        if kind in (ToServer.RELAY, ToServer.FINISHED, ToServer.STOP):
            self._relay.hear(node, payload, awaited=self._nodes.missing)
        elif kind == ToServer.WATCH:
            self._nodes.watch(payload)
        elif kind == ToServer.STANDBY:
            self._stand_by(node, payload)
        elif kind == ToServer.RESUME:
            self._nodes.resume(node, payload)
        elif kind == ToServer.RANKS:
            self._deliver(wire.NODE, self._nodes.come(node, payload, time.monotonic()))
        elif kind == ToServer.AGAIN:
            rank, process = self._nodes.again(node, payload)
            self._member_ended(rank, process, is_for_good=False)
        elif kind in (ToServer.SCALE, ToServer.LEAVE):
            self._change(node, kind, payload)
        elif kind == ToServer.ENDED:
            rank, process, code, frames = self._nodes.end(node, payload)
            how = describe_end(code) if process else "died or was not started"
            self._rank_ended(rank, process, how)
            if self._nodes.has(rank):  # another node starts the rank
                self._generations.start(rank)
            self._deliver(wire.NODE, frames)
        else:
            raise ProtocolError

    def _stand_by(self, node: int, payload: bytes) -> None:
        """Note where the server of a launcher listens that may take over from this one."""
        _, port = wire.STANDBY_FRAME.unpack(payload)
        host = self._sessions.joined[wire.NODE][node].host
        self._nodes.addresses[node] = wire.join_address(host, port)

    def _change(self, node: int, kind: bytes, payload: bytes) -> None:
        if len(self._sessions.joined[wire.NODE][node].outbox) > _MAX_UNTAKEN:
            raise ProtocolError  # the answers would fill the outbox
        change = self._nodes.scale if kind == ToServer.SCALE else self._nodes.ask_to_leave
        changed = change(node, payload)
        for rank in changed.starting:
            self._generations.start(rank)
        self._deliver(wire.NODE, changed.frames)
        self._deliver(wire.MEMBER, [(rank, [ToClient.ASKED]) for rank in changed.leaving])

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
        connection = self._sessions.joined[kind].get(rank)
        if connection is not None:
            if process not in (None, connection.process):
                return False  # the rank is a child of the process that the launcher started
            connection.has_left = True
            self._drop(connection)  # a process that the rank forked may still hold it open
        return True

    def _expel(self, rank: int) -> None:
        """Kill a rank's process: others go on without it, and the rank's next process may join."""
        connection = self._sessions.joined[wire.MEMBER].get(rank)
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
        kill = wire.PROCESS_FRAME.pack(ToClient.KILL, rank, process)
        self._deliver(wire.NODE, [(node, [kill]) for node in self._sessions.joined[wire.NODE]])

    def _deliver_to_members(self, frames: Frames) -> None:
        self._deliver(wire.MEMBER, frames)
        # At once, while those processes still have their ranks.
        while self._generations.expelled:
            self._expel(self._generations.expelled.pop())

    def _deliver(self, kind: bytes, frames: Frames) -> None:
        """Send each client its frames. They must all be sent before the tables are asked again."""
        joined = self._sessions.joined[kind]
        for number, payloads in frames:
            if number in joined and payloads:
                self._sessions.send(joined[number], *payloads)

    def _drop_broken(self) -> None:
        while self._sessions.broken:
            self._drop(self._sessions.broken.pop())
