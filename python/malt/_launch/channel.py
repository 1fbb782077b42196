"""Messages between processes of one host, with descriptors, over socket pairs without a name.

A message is short; what is long lies in shared memory.
"""

from __future__ import annotations

import array
import pickle
import socket
from collections.abc import Sequence
from typing import Any

# As plain numbers: to combine two flags of the socket module takes as long as to receive.
NOW = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_LONGEST = 1 << 16
MOST_DESCRIPTORS = 250  # Linux takes 253 with one message
_ROOM = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encode(message: tuple[Any, ...]) -> bytes:
    return pickle.dumps(message, 5)


def send(to: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send an encoded message."""
    if descriptors:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        to.sendmsg([data], [rights])
    else:
        to.send(data)


def receive(source: socket.socket, flags: int = 0) -> tuple[tuple[Any, ...], list[int]]:
    """Wait for a message; return it and its descriptors.

    Raises:
        EOFError: the other end is closed.
    """
    try:
        data, ancillary, _, _ = source.recvmsg(_LONGEST, _ROOM, flags | _CLOSE_ON_EXEC)
    except ConnectionError:
        data, ancillary = b"", []
    if not data:
        raise EOFError
    descriptors = array.array("i")
    for _, _, rights in ancillary:
        descriptors.frombytes(rights)
    return pickle.loads(data), list(descriptors)
