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

# A frame for the server fits into the socket's buffer; if sending takes longer, it is stuck.
_SEND_SECONDS = 5.0


class Failed(NamedTuple):
    """A rank of another node has ended with an error."""

    node: int
    rank: int
    code: int


class Lost(NamedTuple):
    """The connection to a launcher with running ranks has ended; its node sends nothing more."""

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
    """The outcome of `scale`: what was done, or why nothing was."""

    is_done: bool
    text: str


Event = Failed | Lost | Over | Kill | Done | Begin | Leave | Few | Answer


class Node(Session):
    """A launcher's session with the launcher of node 0, or that launcher's session with itself.

    Attributes:
        node: this launcher's number, 0 to nnodes - 1.
        nnodes: how many launchers the job has.
        first: the number of this node's first rank, once started.
        size: how many ranks the job has, once started.
    """

    _kind = wire.NODE
    _source = "--rendezvous"
    _awaits_server = True
    _nobody = (
        "node 0 did not come within {timeout:g} s: no launcher listens at {address}; start it "
        "there (--node-rank 0), or give a longer limit: --timeout"
    )
    _stranger = (
        "the process that listens at {address} does not know this job's key: give each launcher "
        "the same, in MALT_JOB_KEY or --key-file"
    )

    def __init__(self, address: str, key: bytes, node: int, nnodes: int) -> None:
        super().__init__(address, key, node, nnodes)
        self.node = node
        self.nnodes = nnodes
        self.first = self.size = 0
        self._inbox = bytearray()

    def start(
        self,
        ranks: int,
        timeout: float,
        server: Server | None,
        *,
        rejoins: bool = False,
        elastic: range = range(0),
    ) -> None:
        """Join with `ranks` ranks, and wait until all nodes have joined; node 0 gives its server.

        `elastic` is how many ranks may run in the whole job; empty: those that it begins with.
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
            hello = self._hello()
            self._socket, nonce = server.attach(hello)
            self._sealer, self._opener = wire.sealers(self._key, hello, nonce)
            self._deadline = time.monotonic() + GRACE_SECONDS
            self._receive()  # the welcome
        self._deadline = time.monotonic() + seconds + GRACE_SECONDS
        try:
            limits = (elastic[0], elastic[-1]) if elastic else (0, 0)
            self._send(wire.RANKS_FRAME.pack(wire.RANKS, ranks, rejoins, *limits, seconds))
            if server is not None:
                server.gather()
            answer = self._receive()
            if answer[:1] == wire.LATE:
                refusal: Exception | None = self._late(answer, server)
            elif answer[:1] == wire.REFUSED:
                refusal = ConfigError(answer[1:].decode(errors="replace"))
            else:
                refusal = None
                _, self.first, self.size = wire.START_FRAME.unpack(answer)
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

    def environ(self, rank: int, local_rank: int) -> dict[str, str]:
        """Return the environment for the process of `rank`, which is number `local_rank` here."""
        return {
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
        self._tell(wire.ENDED_FRAME.pack(wire.ENDED, rank, process, code))

    def rank_restarts(self, rank: int, process: int) -> None:
        """Tell that this process of `rank` has ended, and that another follows."""
        self._tell(wire.PROCESS_FRAME.pack(wire.AGAIN, rank, process))

    def scale(self, ranks: int) -> None:
        """Ask for `ranks` running ranks, within the job's limits; Answers follow in order."""
        self._tell(wire.SCALE_FRAME.pack(wire.SCALE, ranks))

    def _tell(self, payload: bytes) -> None:
        self._deadline = time.monotonic() + _SEND_SECONDS
        with contextlib.suppress(OSError):  # `hear` will report that the server is gone
            self._send(payload)

    def hear(self) -> list[Event]:
        """Return the events of other nodes, without blocking. `Lost(0)` or `Over` is the last."""
        assert self._socket is not None
        events = []
        try:
            self._socket.settimeout(0)
            received = self._socket.recv(1 << 16)
            self._inbox += received
            while frame := wire.take_frame(self._inbox, self._opener):
                events.append(parse_event(frame))
        except BlockingIOError:
            return []
        except (OSError, struct.error):
            received = b""
        return events if received else [*events, Lost(0)]

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
    if kind == wire.DONE:
        return Done()
    if kind == wire.ANSWER:
        _, is_done = wire.ANSWER_HEAD.unpack_from(frame)
        return Answer(is_done, frame[wire.ANSWER_HEAD.size :].decode(errors="replace"))
    if kind not in _EVENTS:
        raise struct.error
    event, layout = _EVENTS[kind]
    return event(*layout.unpack(frame)[1:])


_EVENTS: dict[bytes, tuple[Callable[..., Event], struct.Struct]] = {
    wire.FAILED: (Failed, wire.FAILED_FRAME),
    wire.LOST: (Lost, wire.LOST_FRAME),
    wire.OVER: (Over, wire.OVER_FRAME),
    wire.KILL: (Kill, wire.PROCESS_FRAME),
    wire.BEGIN: (Begin, wire.BEGIN_FRAME),
    wire.LEAVE: (Leave, wire.LEAVE_FRAME),
    wire.FEW: (Few, wire.FEW_FRAME),
}
