"""The rendezvous of `malt run`: a small store in the launcher through which its ranks meet.

Nobody takes part without the job's key, 32 random bytes that the launcher hands to its ranks in
their environment. The key never crosses the wire:

    client -> server   hello: magic, rank, size, process id, 32 fresh random bytes
    server -> client   32 fresh random bytes, HMAC(key, "server" + hello + both nonces)
    client -> server   HMAC(key, "client" + hello + both nonces)

The key is of one job, so the proofs bind the job, and through the hello the rank and the size.
After this every frame carries an HMAC under a key of the session, over its direction, its number
and its bytes; what does not carry it is never looked at. No pickle, nothing but `struct`.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

KEY_BYTES = 32
NONCE_BYTES = 32
MAC_BYTES = 32
MAX_FRAME = 1 << 20

MAGIC = b"MALTRDV1"
HELLO = struct.Struct("!8sIII32s")  # magic, rank, size, process id, nonce
CHALLENGE = struct.Struct("!32s32s")  # nonce, proof
LENGTH = struct.Struct("!I")

# The first byte of a frame. From a rank: a part of a round, a farewell. From the server: welcome or
# refusal; all parts are here, then one part a frame; time is up; a rank is gone.
PART, BYE = b"p", b"b"
WELCOME, REFUSED, COMPLETE, DATA, LATE, GONE = b"w", b"n", b"c", b"d", b"t", b"g"

PART_HEAD = struct.Struct("!cId")  # kind, round, seconds it may take
MAX_PART = MAX_FRAME - PART_HEAD.size
MAX_SECONDS = 1e8


def proof(key: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, role + b"\0" + hello + nonce, hashlib.sha256)


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


def sealers(key: bytes, hello: bytes, nonce: bytes) -> tuple[Sealer, Sealer]:
    """To the server, to the client."""
    session = proof(key, b"session", hello, nonce)
    return Sealer(session, b">"), Sealer(session, b"<")


def pack_ranks(kind: bytes, ranks: list[int], text: str) -> bytes:
    return struct.pack(f"!cI{len(ranks)}I", kind, len(ranks), *ranks) + text.encode()


def unpack_ranks(payload: bytes) -> tuple[list[int], str]:
    (count,) = struct.unpack_from("!I", payload, 1)
    ranks = list(struct.unpack_from(f"!{count}I", payload, 5))
    return ranks, payload[5 + 4 * count :].decode()
