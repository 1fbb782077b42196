"""Lets a client have ranks added to the elastic job of a running `malt run`, or have some leave.

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
from malt._rendezvous.wire import MAX_RANKS

_CREDENTIALS = struct.Struct("3i")  # process, user, group
_MOST_BYTES = 4096
_SECONDS = 1.0  # how long the launcher waits for a client, which sends its request at once
_ANSWER_SECONDS = 30.0  # how long the client waits for the launcher, which may be busy
_DONE, _REFUSED = b"+", b"!"
COUNT, LEAVE = "count", "leave"  # what a request is about: a number of ranks, or a rank
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


def ask(launcher: int, what: str, number: int) -> str:
    """Change the job of the process `launcher`; return what was done.

    Args:
        launcher: a `malt run` on this host.
        what: COUNT: `number` ranks are to run. LEAVE: rank `number` is asked to leave.
        number: of ranks, or of the rank.

    Raises:
        ConfigError: it is no such launcher, or refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            name = name_of(launcher)
            if name is None:
                raise ConfigError(f"process {launcher} is not a `malt run --elastic`")
            connection.connect(f"\0{name}")
            process, user = peer_of(connection)
            if process != launcher or os.getuid() not in (0, user):
                raise ConfigError(f"process {launcher} is not a `malt run --elastic` of this user")
            connection.send(f"{what} {number}".encode())
            answer = connection.recv(_MOST_BYTES)
        except FileNotFoundError as error:
            raise ConfigError(f"process {launcher} does not run on this host") from error
        except PermissionError as error:
            raise ConfigError(f"process {launcher} is another user's") from error
        except ConnectionRefusedError as error:
            raise ConfigError(
                f"process {launcher} is not a `malt run --elastic`: it has just ended"
            ) from error
        except OSError as error:
            raise ConfigError(f"process {launcher} does not answer: {error}") from error
    text = answer[1:].decode()
    if answer[:1] != _DONE:
        raise ConfigError(text or f"process {launcher} has ended")
    return text


class ScaleServer:
    """The launcher's side. Call `hear` when it is readable.

    `change(what, number)` begins a change, as `ask` says, or raises ConfigError. Report each
    outcome by `answer` later, in the order of the calls.
    """

    def __init__(self, change: Callable[[str, int], None]) -> None:
        self._change = change
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
            what, number = connection.recv(_MOST_BYTES).decode().split()
            if what not in (COUNT, LEAVE) or not 0 <= int(number) <= MAX_RANKS:
                raise ConfigError(f"{number} is not within 0 to {MAX_RANKS:,}, the most of any job")
            self._change(what, int(number))
        except (ConfigError, ValueError) as error:
            _reply(connection, _REFUSED, str(error))
        except OSError:  # the client has closed, or sends nothing
            connection.close()
        else:
            self._waiting.append(connection)

    def answer(self, is_done: bool, text: str) -> None:
        """Tell the client that has waited longest what was done, or why nothing was."""
        if self._waiting:
            _reply(self._waiting.popleft(), _DONE if is_done else _REFUSED, text)

    def refuse_all(self, why: str) -> None:
        """Refuse all waiting clients: there will be no more answers."""
        while self._waiting:
            self.answer(False, why)


def _reply(connection: socket.socket, kind: bytes, text: str) -> None:
    with connection, contextlib.suppress(OSError):
        connection.send(kind + text.encode())
