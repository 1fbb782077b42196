"""A client's connection, as the server of the rendezvous sees it."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field

from malt._rendezvous import wire
from malt._rendezvous.channel import Channel


@dataclass(eq=False)
class Connection:
    """The session of a client that has proved the key."""

    socket: Channel | socket.socket  # the latter within this process
    host: str  # from which the client calls
    # The fields of its `wire.Introduction`.
    kind: bytes
    number: int
    size: int
    process: int
    opener: wire.Sealer
    sealer: wire.Sealer
    inbox: bytearray = field(default_factory=bytearray)
    outbox: deque[memoryview] = field(default_factory=deque)
    unread: int = 0  # bytes of the outbox
    has_joined: bool = False
    closing: bool = False  # close it once all of the outbox has been sent
    has_left: bool = False  # it has said farewell, or its end is known
