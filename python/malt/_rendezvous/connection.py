"""A client's connection, as the server of the rendezvous sees it."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field

from malt._rendezvous import wire


@dataclass(eq=False)
class Connection:
    """Half-open until its client has proved the key, and then the client's session."""

    socket: socket.socket
    host: str  # from which the client calls
    since: float = 0.0  # when it was accepted
    origin: str = ""  # with whose connections it takes turns while it is half-open
    inbox: bytearray = field(default_factory=bytearray)
    outbox: deque[memoryview] = field(default_factory=deque)
    unread: int = 0  # bytes of the outbox
    hello: bytes = b""
    nonce: bytes = b""
    kind: bytes = b""  # wire.RANK, MEMBER or NODE, once it has joined
    number: int = 0
    process: int = 0
    opener: wire.Sealer | None = None
    sealer: wire.Sealer | None = None
    closing: bool = False  # close it once all of the outbox has been sent
    has_left: bool = False  # it has said farewell, or its end is known
