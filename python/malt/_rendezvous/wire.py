"""The rendezvous of `malt run`: a small store in node 0's launcher, through which ranks meet.

A client is a rank or a launcher (a node). Nobody takes part without the job's key, 32 random bytes
that a launcher hands to its ranks in their environment, out of which they take it. The key never
crosses the wire:

    client -> server   hello: magic, "r" or "m" rank, size or "n" node, nodes, process id, 32
                       fresh random bytes
    server -> client   32 fresh random bytes, HMAC(key, "server" + hello + both nonces + binding)
    client -> server   HMAC(key, "client" + hello + both nonces + binding)

With MALT_TLS all of it goes through TLS, and the binding is what the ends of that TLS connection
alone agree on (`_rendezvous/tls.py`); without, it is nothing.

The key is of one job, so the proofs bind the job, and through the hello the client and the size.
After this every frame carries an HMAC under a key of the session, over its direction, its number
and its bytes; what does not carry it is never looked at. No pickle, nothing but `struct`.

A rank's frames are answered round by round. With `malt run --respawn` a rank has a session of
another kind, "m", as long as it lives, by which it is called to new generations
(`generation_table.py`).
A launcher says how many ranks it has, is told their numbers when all launchers have come, and then
says how each rank ended; the server tells it of the failures on other nodes, of launchers that are
lost, and of the end of the job. With `--elastic` it also passes on what `malt scale` asks for, and
the server, which counts, tells each launcher which ranks it starts, and which are to leave.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import struct
from collections.abc import Iterable

from malt._errors import ConfigError

KEY_BYTES = 32
NONCE_BYTES = 32
MAC_BYTES = 32
MAX_FRAME = 1 << 20

MAX_NODES = 1 << 16  # so that a frame can name them all
MAX_RANKS = 1 << 20

MAGIC = b"MALTRDV7"
HELLO = struct.Struct("!8scIII32s")  # magic, kind, number, how many there are, process id, nonce
RANK, MEMBER, NODE = b"r", b"m", b"n"
CHALLENGE = struct.Struct("!32s32s")  # nonce, proof
LENGTH = struct.Struct("!I")

# The first byte of a frame. From a rank: a part of a round, a farewell. From the server: welcome or
# refusal; all parts are here, then one part a frame; time is up; a rank is gone.
PART, BYE = b"p", b"b"
WELCOME, REFUSED, COMPLETE, DATA, LATE, GONE = b"w", b"n", b"c", b"d", b"t", b"g"
# From a member: it wants a generation; its part in a round of one; it has formed the group; ranks
# do not do their part. To it: the parts, as above; time is up; who is in the next generation
# (nobody: wait for another); all its members have formed it, and may use it; it has come to
# nothing, as these ranks did not come.
WANT, FORMED, ABSENT = b"w", b"f", b"a"
GENERATION, STANDS, OFF = b"i", b"s", b"x"
# To a member, beside generations: it is asked to leave.
ASKED = b"q"
# From a launcher: its number of ranks; a rank has ended, or (process 0) is not started as it was
# told to, nor will others be; it has ended, and will be started again; so many ranks are to run. To
# it, beside welcome, refusal and time is up: start; a rank of another node has failed; a node is
# lost; all ranks of the job have ended; a process of a rank's is to be killed; nobody is left to
# whom a rank could come back; it starts a rank; one of its ranks is asked to leave; too few are
# left; what came of it that so many are to run.
RANKS, ENDED, AGAIN, SCALE = b"r", b"e", b"a", b"s"
START, FAILED, LOST, OVER, KILL, DONE = b"s", b"f", b"l", b"o", b"k", b"d"
BEGIN, LEAVE, FEW, ANSWER = b"b", b"q", b"m", b"a"

PART_HEAD = struct.Struct("!cId")  # kind, round, seconds it may take
MAX_PART = MAX_FRAME - PART_HEAD.size
MAX_SECONDS = 1e8
WANT_FRAME = struct.Struct("!cd")  # kind, seconds that it waits
GENERATION_PART = struct.Struct("!cII")  # kind, generation, round
COMPLETE_FRAME = struct.Struct("!cIII")  # kind, generation, round, how many data follow
DATA_HEAD = struct.Struct("!cI")  # kind, whose they are
FORMED_FRAME = struct.Struct("!cI")  # kind (FORMED or STANDS), generation
# kind, how many, whether they come back, --elastic (0, 0: not), seconds it waits for other nodes
RANKS_FRAME = struct.Struct("!cI?IId")
ENDED_FRAME = struct.Struct("!cIIi")  # kind, rank, process id, exit code (below 0: of a signal)
PROCESS_FRAME = struct.Struct("!cII")  # kind, rank, process id
SCALE_FRAME = struct.Struct("!cI")  # kind, how many ranks
BEGIN_FRAME = struct.Struct("!cII")  # kind, rank, how often it has then been started
LEAVE_FRAME = struct.Struct("!cI")  # kind, rank
FEW_FRAME = struct.Struct("!cI")  # kind, how many ranks are left
ANSWER_HEAD = struct.Struct("!c?")  # kind, whether it is done; then what is, or why not
MAX_ANSWER = 4000  # bytes of that
START_FRAME = struct.Struct("!cII")  # kind, the node's first rank, size of the job
FAILED_FRAME = struct.Struct("!cIIi")  # kind, node, rank, exit code
LOST_FRAME = struct.Struct("!cI")  # kind, node
OVER_FRAME = struct.Struct("!ci")  # kind, exit code of the job

# A host that has gone without a word is noticed within 30 s.
_TCP_OPTIONS = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 30_000,
}


def tune(connection: socket.socket) -> None:
    """Send small frames at once, and notice the end of the other host."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _TCP_OPTIONS.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def parse_key(text: str, source: str) -> bytes:
    """The key out of its digits. An error does not show them: they may be all but right."""
    if not re.fullmatch(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}", text):
        raise ConfigError(
            f"{source} is not {KEY_BYTES} bytes in hexadecimal, {2 * KEY_BYTES} digits: it has "
            f"{len(text)} characters; `openssl rand -hex {KEY_BYTES}` makes a key"
        )
    return bytes.fromhex(text)


def parse_address(text: str, source: str) -> tuple[str, int]:
    """Host and port out of "host:port", "1.2.3.4:port" or "[::1]:port"."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    try:
        host.encode("idna")  # as the resolver will
    except UnicodeError:
        host = ""
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"{source} is not host:port, with a port from 1 to 65535 and brackets around an IPv6 "
            f"address: {text!r}"
        )
    return host, int(port)


def proof(key: bytes, role: bytes, hello: bytes, nonce: bytes, binding: bytes = b"") -> bytes:
    return hmac.digest(key, role + b"\0" + hello + nonce + binding, hashlib.sha256)


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


def sealers(key: bytes, hello: bytes, nonce: bytes, binding: bytes = b"") -> tuple[Sealer, Sealer]:
    """To the server, to the client."""
    session = proof(key, b"session", hello, nonce, binding)
    return Sealer(session, b">"), Sealer(session, b"<")


def take_frame(inbox: bytearray, opener: Sealer) -> bytes | None:
    """Remove the first frame of what has come, and return its bytes; None: it is not whole yet.

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
        raise ConnectionError("a frame of somebody else's")
    return payload


def pack_ranks(kind: bytes, ranks: list[int], text: str) -> bytes:
    return struct.pack(f"!cI{len(ranks)}I", kind, len(ranks), *ranks) + text.encode()


def unpack_ranks(payload: bytes) -> tuple[list[int], str]:
    """What `pack_ranks` has packed.

    Raises:
        ConnectionError: it has not.
    """
    try:
        (count,) = struct.unpack_from("!I", payload, 1)
        ranks = list(struct.unpack_from(f"!{count}I", payload, 5))
        return ranks, payload[5 + 4 * count :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise ConnectionError("a frame that cannot be") from error


def pack_members(kind: bytes, generation: int, ranks: Iterable[int]) -> bytes:
    listed = sorted(ranks)
    return struct.pack(f"!cI{len(listed)}I", kind, generation, *listed)


def unpack_members(payload: bytes) -> tuple[int, list[int]]:
    """The generation, and ranks."""
    generation, *ranks = struct.unpack(f"!I{(len(payload) - 5) // 4}I", payload[1:])
    return generation, ranks
