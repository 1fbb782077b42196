"""Lets a client tell a running `malt run` how many ranks its elastic job is to have.

They use a socket in Linux's abstract namespace: it has no file, and it vanishes with the launcher.
Its name is random, so that nobody can take it first. A client finds it in /proc/net/unix, and
learns that it is the launcher's from /proc/PID/fd, which only the launcher's user and root may
read. Each side also asks the kernel which user the other one is; only the same user and root are
accepted.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

from malt._errors import ConfigError

_CREDENTIALS = struct.Struct("3i")  # process, user, group
MOST_BYTES = 4096
_SECONDS = 1.0  # how long the launcher waits for a client, which sends its request at once
ANSWER_SECONDS = 30.0  # how long the client waits for the launcher, which may be busy
DONE, REFUSED = b"+", b"!"
_PREFIX = "malt-run-"


def name_of(process: int) -> str | None:
    """Return the name of the launcher's socket, or None if it has none.

    Raises:
        OSError: there is no such process, or it is another user's.
    """
    sockets = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(descriptor.readlink()))
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
        found = re.search(rf" (\d+) @({_PREFIX}[0-9a-f]+)$", line)  # inode, name
        if found is not None and f"socket:[{found[1]}]" in sockets:
            return found[2]
    return None


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the other side's process and user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


class ScaleServer:
    """The launcher's side. Call `hear` when it is readable.

    `rescale(count)` begins a change or raises ConfigError. Report each outcome by `answer` later,
    in the order of the calls.
    """

    def __init__(self, rescale: Callable[[int], None]) -> None:
        self._rescale = rescale
        self._waiting: deque[socket.socket] = deque()  # clients that wait for an answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._socket.bind(f"\0{_PREFIX}{secrets.token_hex(16)}")
        self._socket.listen()

    def close(self) -> None:
        self._socket.close()
        while self._waiting:
            self._waiting.popleft().close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def hear(self) -> None:
        """Accept the next client, and begin what it asks for."""
        connection = self._socket.accept()[0]
        try:
            _, user = peer_of(connection)
            if user not in (0, os.getuid()):
                raise ConfigError(f"the job is user {os.getuid()}'s")
            connection.settimeout(_SECONDS)
            self._rescale(int(connection.recv(MOST_BYTES)))
        except (ConfigError, ValueError) as error:
            _reply(connection, REFUSED, str(error))
        except OSError:  # the client has closed, or sends nothing
            connection.close()
        else:
            self._waiting.append(connection)

    def answer(self, is_done: bool, text: str) -> None:
        """Tell the client that has waited longest what was done, or why nothing was."""
        if self._waiting:
            _reply(self._waiting.popleft(), DONE if is_done else REFUSED, text)

    def refuse_all(self, why: str) -> None:
        """Refuse all waiting clients: there will be no more answers."""
        while self._waiting:
            self.answer(False, why)


def _reply(connection: socket.socket, kind: bytes, text: str) -> None:
    with connection, contextlib.suppress(OSError):
        connection.send(kind + text.encode())
