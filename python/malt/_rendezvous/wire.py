"""The rendezvous of `malt run`: a small store in node 0's launcher, through which ranks meet.

A client is a rank or a launcher (a node). A client must prove that it knows the job's key, 32
random bytes. A launcher hands the key to its ranks in their environment, and the ranks remove it
from there. The key never crosses the wire: `src/dstorm/remote/net/handshake.hpp` says how both ends
prove it, and how this binds what a client says about itself (`Introduction`), and the TLS
connection if there is one. `src/dstorm/remote/net/listener.hpp` says how strangers neither slow the
server down nor keep clients out.

After the handshake every frame carries an HMAC under a key of the session, over its direction, its
number and its bytes. A frame without it is never parsed. The protocol uses `struct` only, and no
pickle.

The server answers a rank's frames round by round. With `malt run --respawn` a rank has a session of
another kind, "m", as long as it lives; the server calls it to new generations in this session
(`generation_table.py`).

A launcher says how many ranks it has. When all launchers have come, the server tells it the ranks'
numbers. Later the launcher says how each rank ended; the server tells it of failures on other
nodes, of launchers that are lost, and of the end of the job. With `--elastic` the launcher also
passes on the requests of `malt scale`. The server, which counts the ranks, tells each launcher
which ranks to start, and which are asked to leave.

When that launcher is lost, another one's server takes over (`succession.py`). Launchers and members
then turn to it, and first say what they know: RESUME and HOLD.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Iterable
from enum import Enum, unique
from typing import NamedTuple

from malt._errors import ConfigError

KEY_BYTES = 32
MAC_BYTES = 32
MAX_FRAME = 1 << 20

MAX_STANDBYS = 16  # nodes 1 to 16 may take over; few enough for the ranks' environment
MAX_NODES = 1 << 16  # few enough for a frame to name them all
MAX_RANKS = 1 << 20

RANK, MEMBER, NODE = b"r", b"m", b"n"
LENGTH = struct.Struct("!I")


@unique
class ToServer(bytes, Enum):
    """The kind of a frame from a client to the server: its first byte."""

    # From a rank or a member.
    PART = b"p"  # its part in a round
    BYE = b"b"  # its farewell
    # From a member.
    WANT = b"w"  # it wants a generation
    FORMED = b"f"  # it has formed the generation's group
    ABSENT = b"a"  # ranks do not do their part
    HOLD = b"h"  # to a server that takes over: the generation it is in, if any
    # From a launcher.
    RANKS = b"r"  # its number of ranks
    ENDED = b"e"  # a rank has ended, or (process 0) is not started, nor will others be
    AGAIN = b"g"  # a rank has ended, and will be started again
    SCALE = b"s"  # a request for a number of ranks
    LEAVE = b"q"  # a request that a rank leave
    STANDBY = b"y"  # the port where its own server stands by
    RESUME = b"u"  # to a server that takes over: its ranks
    # From a launcher, for the collectors of others (`relay.py`).
    WATCH = b"c"  # its part in what is watched
    RELAY = b"v"  # a message for the collector of another launcher
    FINISHED = b"z"  # it needs nothing more of the others
    STOP = b"t"  # all ranks of the job are to be stopped


@unique
class ToClient(bytes, Enum):
    """The kind of a frame from the server to a client: its first byte."""

    # To all.
    WELCOME = b"w"
    REFUSED = b"n"
    LATE = b"p"  # time is up
    # To a rank or a member.
    COMPLETE = b"c"  # all parts of a round are here, and follow
    DATA = b"d"  # one of them
    # To a rank.
    CANNOT_COME = b"g"  # a rank is dead or has left
    # To a member.
    GENERATION = b"i"  # the members of the next generation; none: wait for another
    STANDS = b"s"  # all members have formed the generation, and may use it
    OFF = b"x"  # the generation is called off, as these ranks did not come
    ASKED = b"u"  # it is asked to leave
    # To a launcher.
    START = b"r"  # all launchers have come
    FAILED = b"f"  # a rank of another node has failed
    LOST = b"l"  # a node is lost
    OVER = b"o"  # all ranks of the job have ended
    KILL = b"k"  # a rank's process must be killed
    DONE = b"e"  # no rank is left that another could rejoin
    BEGIN = b"b"  # it must start a rank
    LEAVE = b"q"  # one of its ranks is asked to leave
    FEW = b"m"  # too few ranks are left
    ANSWER = b"a"  # the outcome of its request
    # To a launcher, for its collector.
    RELAY = b"v"  # a message of the collector of another launcher
    FINISHED = b"z"  # no launcher needs anything more of the others
    STOP = b"t"  # all ranks of the job are to be stopped


# Bits of a member's welcome: the job goes on already; the server takes over.
GOES_ON, TAKES_OVER = 1, 2

PART_HEAD = struct.Struct("!cId")  # kind, round, seconds that the round may take
MAX_PART = MAX_FRAME - PART_HEAD.size
MAX_SECONDS = 1e8
WANT_FRAME = struct.Struct("!cd")  # kind, seconds that it waits
GENERATION_PART = struct.Struct("!cII")  # kind, generation, round
COMPLETE_FRAME = struct.Struct("!cIII")  # kind, generation, round, how many data follow
DATA_HEAD = struct.Struct("!cI")  # kind, the rank that they come from
FORMED_FRAME = struct.Struct("!cI")  # kind (FORMED or STANDS), generation
# kind, how many, whether they rejoin, --elastic (0, 0: not), seconds it waits for other nodes
RANKS_FRAME = struct.Struct("!cI?IId")
ENDED_FRAME = struct.Struct("!cIIi")  # kind, rank, process id, exit code (below 0: by a signal)
PROCESS_FRAME = struct.Struct("!cII")  # kind, rank, process id
SCALE_FRAME = struct.Struct("!cI")  # kind, how many ranks
BEGIN_FRAME = struct.Struct("!cII")  # kind, rank, how often it has been started, this included
LEAVE_FRAME = struct.Struct("!cI")  # kind, rank
FEW_FRAME = struct.Struct("!cI")  # kind, how many ranks are left
ANSWER_HEAD = struct.Struct("!c?")  # kind, whether it is done; a text follows: what, or why not
MAX_ANSWER = 4000  # bytes of the text
WATCH_FRAME = struct.Struct("!cB")  # kind, what its collector shows of all hosts, as bits
RELAY_HEAD = struct.Struct("!cI")  # kind, for or of which node; the message follows, or nothing
MAX_RELAYED = 1 << 15  # bytes of the message
STANDBY_FRAME = struct.Struct("!cH")  # kind, port
# kind, whether its ranks rejoin, whether it starts more, exit code so far, how many ranks run there
RESUME_HEAD = struct.Struct("!c??iI")
RESUMED_RANK = struct.Struct("!II?")  # rank, its starts since the job began, whether it is to leave
# kind, generation that the rank is in (0: none), newest one that it knows, rounds it has completed,
# whether another was to follow; the members are after that
HOLD_HEAD = struct.Struct("!cIII?")
# kind, the node's first rank, size of the job, what is watched (WATCH_FRAME) by any of the nodes;
# the addresses of the servers that stand by follow
START_FRAME = struct.Struct("!cIIB")
FAILED_FRAME = struct.Struct("!cIIi")  # kind, node, rank, exit code
LOST_FRAME = struct.Struct("!cI")  # kind, node
OVER_FRAME = struct.Struct("!ci")  # kind, exit code of the job


def parse_key(text: str, source: str) -> bytes:
    """Parse a key from its digits. An error does not show them: they may be almost right."""
    if not re.fullmatch(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}", text):
        raise ConfigError(
            f"{source} is not {KEY_BYTES} bytes in hexadecimal, {2 * KEY_BYTES} digits: it has "
            f"{len(text)} characters; `openssl rand -hex {KEY_BYTES}` makes a key"
        )
    return bytes.fromhex(text)


def parse_address(text: str, source: str) -> tuple[str, int]:
    """Split "host:port", "1.2.3.4:port" or "[::1]:port" into host and port."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    try:
        host.encode("idna")  # as the resolver will do
    except UnicodeError:
        host = ""
    if (
        not host
        or "\0" in host
        or not re.fullmatch("[0-9]{1,5}", port)
        or not 0 < int(port) < 1 << 16
    ):
        raise ConfigError(
            f"{source} is not host:port, with a port from 1 to 65535 and brackets around an IPv6 "
            f"address: {text!r}"
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return what `parse_address` splits."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Introduction(NamedTuple):
    """A client's description of itself in the handshake."""

    kind: bytes  # RANK, MEMBER or NODE
    number: int
    size: int  # how many of this kind there are
    process: int

    def pack(self) -> tuple[int, int]:
        """Return the number, and the rest as a number of 64 bits."""
        return self.number, int.from_bytes(self.kind, "big") << 56 | self.size << 32 | self.process

    @classmethod
    def unpack(cls, number: int, about: int) -> Introduction:
        kind, size, process = about >> 56, about >> 32 & 0xFFFFFF, about & 0xFFFFFFFF
        return cls(bytes([kind]), number, size, process)


class Sealer:
    """One direction of a session: numbers its frames and seals or opens them."""

    def __init__(self, session_key: bytes, direction: bytes) -> None:
        self._key = session_key
        self._direction = direction
        self._number = 0

    def _mac(self, payload: bytes) -> bytes:
        head = self._direction + struct.pack("!Q", self._number)
        self._number += 1
        return hmac.digest(self._key, head + payload, hashlib.sha256)

    def seal(self, payload: bytes) -> bytes:
        return LENGTH.pack(len(payload)) + payload + self._mac(payload)

    def is_genuine(self, payload: bytes, mac: bytes) -> bool:
        return hmac.compare_digest(self._mac(payload), mac)


def sealers(session_key: bytes) -> tuple[Sealer, Sealer]:
    """Return the sealers of the two directions: to the server, to the client."""
    return Sealer(session_key, b">"), Sealer(session_key, b"<")


def take_frame(inbox: bytearray, opener: Sealer) -> bytes | None:
    """Remove the first frame of `inbox`, and return its payload; None: it is not whole yet.

    Raises:
        ConnectionError: it is too long, or not genuine.
    """
    if len(inbox) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(inbox)
    if not 0 < length <= MAX_FRAME:
        raise ConnectionError("a frame of impossible length")
    end = LENGTH.size + length
    if len(inbox) < end + MAC_BYTES:
        return None
    payload, mac = bytes(inbox[LENGTH.size : end]), bytes(inbox[end : end + MAC_BYTES])
    del inbox[: end + MAC_BYTES]
    if not opener.is_genuine(payload, mac):
        raise ConnectionError("a frame that does not have this job's key")
    return payload


def pack_ranks(kind: bytes, ranks: list[int], text: str) -> bytes:
    return struct.pack(f"!cI{len(ranks)}I", kind, len(ranks), *ranks) + text.encode()


def unpack_ranks(payload: bytes) -> tuple[list[int], str]:
    """Unpack the result of `pack_ranks`.

    Raises:
        ConnectionError: the payload is not one.
    """
    try:
        (count,) = struct.unpack_from("!I", payload, 1)
        ranks = list(struct.unpack_from(f"!{count}I", payload, 5))
        return ranks, payload[5 + 4 * count :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise ConnectionError("an invalid frame") from error


def pack_members(kind: bytes, generation: int, ranks: Iterable[int]) -> bytes:
    listed = sorted(ranks)
    return struct.pack(f"!cI{len(listed)}I", kind, generation, *listed)


def unpack_members(payload: bytes) -> tuple[int, list[int]]:
    """Unpack the generation and the ranks."""
    generation, *ranks = struct.unpack(f"!I{(len(payload) - 5) // 4}I", payload[1:])
    return generation, ranks
