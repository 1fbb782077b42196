"""A launcher's side of the rendezvous; the protocol is in `_rendezvous/wire.py`."""

from __future__ import annotations

import builtins
import contextlib
import ipaddress
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from malt import _errors as errors
from malt._errors import ConfigError, describe_ranks
from malt._rendezvous import wire
from malt._rendezvous.server import Server
from malt._rendezvous.session import GRACE_SECONDS, Session
from malt._rendezvous.wire import ToClient, ToServer

# A frame for the server fits into the socket's buffer; if sending takes longer, it is stuck.
_SEND_SECONDS = 5.0


class Failed(NamedTuple):
    """A rank of another node has ended with an error."""

    node: int
    rank: int
    code: int


class Lost(NamedTuple):
    """The connection to a launcher with running ranks, or to the server's, has ended."""

    node: int


class Over(NamedTuple):
    """All ranks of the job have ended."""

    code: int


class Kill(NamedTuple):
    """The others go on without this process of a rank; it must be ended."""

    rank: int
    process: int


class Done(NamedTuple):
    """No rank is left that another could rejoin."""


class Begin(NamedTuple):
    """This node must start a rank, for the `starts`-th time since the job began."""

    rank: int
    starts: int


class Leave(NamedTuple):
    """A rank of this node is asked to leave."""

    rank: int


class Few(NamedTuple):
    """Fewer ranks are left than the job must have."""

    left: int


class Answer(NamedTuple):
    """The outcome of `scale` or `ask_to_leave`: what was done, or why nothing was."""

    is_done: bool
    text: str


class Relayed(NamedTuple):
    """A message of the collector of another launcher; empty: that launcher is gone."""

    node: int
    message: bytes


class Finished(NamedTuple):
    """No launcher needs anything more of another one's collector."""


class Stop(NamedTuple):
    """All ranks of the job are to be stopped."""


Event = (
    Failed | Lost | Over | Kill | Done | Begin | Leave | Few | Answer | Relayed | Finished | Stop
)


class Resumed(NamedTuple):
    """A rank that runs here, as a server that takes over is told."""

    rank: int
    starts: int  # since the job began
    is_leaving: bool


class Node(Session):
    """A launcher's session with the launcher that has the server, perhaps itself.

    Attributes:
        serving: the node of that launcher: 0, or one that has taken over.
        successors: by node from 1 on, the address of its server that stands by, or "".
        node: this launcher's number, 0 to nnodes - 1.
        nnodes: how many launchers the job has.
        first: the number of this node's first rank, once started.
        size: how many ranks the job has, once started.
        watched: what any launcher's collector shows of all hosts, as bits, once started.
    """

    _kind = wire.NODE
    _source = "--rendezvous"
    _awaits_server = True
    _nobody = (
        "node 0 did not come within {timeout:g} s: no launcher listens at {address}; start it "
        "there (--node-rank 0), or give a longer limit: --timeout"
    )
    _way_out = (
        "give each launcher the same key, in MALT_JOB_KEY or --key-file, and set MALT_TLS for "
        "each `malt run` and all its ranks, or for none"
    )

    def __init__(
        self, address: str, key: bytes, node: int, nnodes: int, *, awaits_name: bool = False
    ) -> None:
        """`awaits_name`: the name in the address may come to be known only as node 0 starts."""
        super().__init__(address, key, node, nnodes)
        self._awaits_name = awaits_name
        self.node = node
        self.nnodes = nnodes
        self.first = self.size = self.serving = self.watched = 0
        self.successors: list[str] = []
        self._inbox = bytearray()
        self._unsent = b""  # the rest of a message of `relay`

    def start(
        self,
        ranks: int,
        timeout: float,
        server: Server | None,
        *,
        rejoins: bool = False,
        elastic: range = range(0),
        watched: int = 0,
        stand_by: Callable[[str], int] | None = None,
    ) -> None:
        """Join with `ranks` ranks, and wait until all nodes have joined; node 0 gives its server.

        `elastic` is how many ranks may run in the whole job; empty: those that it begins with.
        `watched` is what this launcher's collector shows of all hosts.
        `stand_by` opens a server at the given address that may take over; it returns the port.
        Blocks for at most `timeout` seconds until node 0 is there, and as long for the others.

        Raises:
            malt.ConfigError: node 0 of this job cannot be reached, or it refuses; some nodes only
                have ranks that rejoin when they fail (`rejoins`), or `elastic` differs.
            malt.TimeoutError: the message names the nodes that did not come.
        """
        seconds = min(timeout, wire.MAX_SECONDS)
        if server is None:
            self._connect(timeout)
        else:
            self._attach(server)
        port = stand_by(self._own_host) if stand_by is not None else 0
        self._deadline = time.monotonic() + seconds + GRACE_SECONDS
        try:
            if port:
                self._send(wire.STANDBY_FRAME.pack(ToServer.STANDBY, port))
            if watched:
                self._send(wire.WATCH_FRAME.pack(ToServer.WATCH, watched))
            limits = (elastic[0], elastic[-1]) if elastic else (0, 0)
            self._send(wire.RANKS_FRAME.pack(ToServer.RANKS, ranks, rejoins, *limits, seconds))
            if server is not None:
                server.gather()
            answer = self._receive()
            if answer[:1] == ToClient.LATE:
                refusal: Exception | None = self._late(answer, server)
            elif answer[:1] == ToClient.REFUSED:
                refusal = ConfigError(answer[1:].decode(errors="replace"))
            else:
                refusal = None
                _, self.first, self.size, self.watched = wire.START_FRAME.unpack_from(answer)
                addresses = answer[wire.START_FRAME.size :].decode(errors="replace")
                self.successors = addresses.split(",") if addresses else []
                refusal = self._strange(ranks)
        except builtins.TimeoutError:
            raise errors.TimeoutError(
                f"node 0, at {self.address}, did not answer within {timeout:g} s; a longer limit: "
                "--timeout"
            ) from None
        except (OSError, struct.error) as error:
            raise ConfigError(
                f"node 0, at {self.address}, ended before all nodes had joined: {error}"
            ) from error
        if refusal is not None:
            raise refusal

    def _attach(self, server: Server) -> None:
        """Open the session with the server in this process."""
        self._socket, session_key = server.attach(self._introduction())
        self._sealer, self._opener = wire.sealers(session_key)
        self._deadline = time.monotonic() + GRACE_SECONDS
        self._receive()  # the welcome

    def next_of(self, serving: int, server: Server | None) -> Node:
        """Return the session with the server of node `serving`, which takes over from the last.

        It is this launcher's own, if `server` is given, or else one that `reach` has to open.
        """
        if server is not None:
            address = server.address
        elif serving == self.serving:
            address = self.address
        else:
            address = self.successors[serving - 1]
        other = Node(address, self._key, self.node, self.nnodes)
        other.first, other.size, other.successors = self.first, self.size, self.successors
        other.serving = serving
        if server is not None:
            other._attach(server)
        return other

    def reach(self, timeout: float) -> None:
        """Open the session with a server that takes over; waits until it does.

        Raises:
            RefusedError: it does not take this node.
            malt.ConfigError: it cannot be reached.
            malt.TimeoutError: it does not answer.
        """
        self._awaits_server = False
        self._connect(timeout)

    def resume(self, ranks: list[Resumed], *, rejoins: bool, starts_more: bool, code: int) -> None:
        """Tell a server that takes over which ranks run here, and the job's exit code so far."""
        head = wire.RESUME_HEAD.pack(ToServer.RESUME, rejoins, starts_more, code, len(ranks))
        self._tell(head + b"".join(wire.RESUMED_RANK.pack(*rank) for rank in ranks))

    def environ(self, rank: int, local_rank: int) -> dict[str, str]:
        """Return the environment for the process of `rank`, which is number `local_rank` here."""
        return {
            "MALT_SUCCESSORS": ",".join(filter(None, self.successors[self.serving :])),
            "MALT_RENDEZVOUS": self.address,
            "MALT_JOB_KEY": self._key.hex(),
            "MALT_RANK": str(rank),
            "MALT_SIZE": str(self.size),
            "MALT_LOCAL_RANK": str(local_rank),
            "MALT_NODE_RANK": str(self.node),
            "MALT_NNODES": str(self.nnodes),
        }

    def fileno(self) -> int:
        """The descriptor is readable when `hear` has something to return."""
        assert self._socket is not None
        return self._socket.fileno()

    def rank_ended(self, rank: int, process: int, code: int) -> None:
        """Tell the ranks that wait for `rank` that its process has ended; below 0: by a signal.

        Process 0: the rank is not started although the server asked for it, nor is any other.
        """
        self._tell(wire.ENDED_FRAME.pack(ToServer.ENDED, rank, process, code))

    def rank_restarts(self, rank: int, process: int) -> None:
        """Tell that this process of `rank` has ended, and that another follows."""
        self._tell(wire.PROCESS_FRAME.pack(ToServer.AGAIN, rank, process))

    def scale(self, ranks: int) -> None:
        """Ask for `ranks` running ranks in an elastic job; Answers follow in order."""
        self._tell(wire.SCALE_FRAME.pack(ToServer.SCALE, ranks))

    def ask_to_leave(self, rank: int) -> None:
        """Ask that `rank`, of any node, leave an elastic job; Answers follow in order."""
        self._tell(wire.LEAVE_FRAME.pack(ToServer.LEAVE, rank))

    def relay(self, node: int, message: bytes) -> None:
        """Send a message to another launcher's collector; it is dropped if the way is not free."""
        assert self._socket is not None
        with contextlib.suppress(OSError):  # `hear` will report that the server is gone
            self._socket.settimeout(0)
            self._flush()
            if not self._unsent:
                frame = wire.RELAY_HEAD.pack(ToServer.RELAY, node) + message
                self._unsent = self._sealer.seal(frame)
                self._flush()

    def finish(self) -> None:
        """Tell that this launcher needs nothing more of the others; `Finished` follows."""
        self._tell(ToServer.FINISHED)

    def stop(self) -> None:
        """Ask that all ranks of the job be stopped; `Stop` follows, here and elsewhere."""
        self._tell(ToServer.STOP)

    def _flush(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def _send(self, payload: bytes) -> None:
        assert self._socket is not None
        unsent, self._unsent = self._unsent, b""
        self._socket.settimeout(max(1e-3, self._deadline - time.monotonic()))
        self._socket.sendall(unsent + self._sealer.seal(payload))

    def _tell(self, payload: bytes) -> None:
        self._deadline = time.monotonic() + _SEND_SECONDS
        with contextlib.suppress(OSError):  # `hear` will report that the server is gone
            self._send(payload)

    def hear(self) -> list[Event]:
        """Return the events of other nodes, without blocking.

        `Over`, or the loss of the node that has the server, is the last one.
        """
        assert self._socket is not None
        events = []
        try:
            self._socket.settimeout(0)
            self._flush()
            received = self._socket.recv(1 << 16)
            self._inbox += received
            while frame := wire.take_frame(self._inbox, self._opener):
                events.append(parse_event(frame))
        except BlockingIOError:
            return []
        except (OSError, struct.error):
            received = b""
        return events if received else [*events, Lost(self.serving)]

    def _strange(self, ranks: int) -> ConfigError | None:
        """Return what is wrong with the answer that starts `ranks` ranks here, if anything is."""
        is_sound = self.first + ranks <= self.size <= wire.MAX_RANKS
        is_sound = is_sound and len(self.successors) <= wire.MAX_STANDBYS
        with contextlib.suppress(ConfigError):
            for address in filter(None, self.successors if is_sound else ["?"]):
                wire.parse_address(address, "node 0's answer")
            return None
        return ConfigError(f"node 0, at {self.address}, sent an answer that is damaged")

    def _late(self, answer: bytes, server: Server | None) -> Exception:
        nodes, within = wire.unpack_ranks(answer)
        hint = "start `malt run` there too, or a longer limit: --timeout"
        if server is not None and ipaddress.ip_address(server.host).is_loopback:
            hint += f"; {self.address} is reached from this host alone"
        return errors.TimeoutError(f"{describe_ranks(nodes, 'node')} did not come {within}; {hint}")


def parse_event(frame: bytes) -> Event:
    """Return the event that a frame of the server describes.

    Raises:
        struct.error: the frame describes no known event.
    """
    kind = frame[:1]
    if kind == ToClient.DONE:
        return Done()
    if kind == ToClient.FINISHED:
        return Finished()
    if kind == ToClient.STOP:
        return Stop()
    if kind == ToClient.RELAY:
        _, node = wire.RELAY_HEAD.unpack_from(frame)
        return Relayed(node, frame[wire.RELAY_HEAD.size :])
    if kind == ToClient.ANSWER:
        _, is_done = wire.ANSWER_HEAD.unpack_from(frame)
        return Answer(is_done, frame[wire.ANSWER_HEAD.size :].decode(errors="replace"))
    if kind not in _EVENTS:
        raise struct.error
    event, layout = _EVENTS[kind]
    return event(*layout.unpack(frame)[1:])


_EVENTS: dict[bytes, tuple[Callable[..., Event], struct.Struct]] = {
    ToClient.FAILED: (Failed, wire.FAILED_FRAME),
    ToClient.LOST: (Lost, wire.LOST_FRAME),
    ToClient.OVER: (Over, wire.OVER_FRAME),
    ToClient.KILL: (Kill, wire.PROCESS_FRAME),
    ToClient.BEGIN: (Begin, wire.BEGIN_FRAME),
    ToClient.LEAVE: (Leave, wire.LEAVE_FRAME),
    ToClient.FEW: (Few, wire.FEW_FRAME),
}
