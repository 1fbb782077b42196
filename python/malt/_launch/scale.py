"""Lets a client have ranks added to the elastic job of a running `malt run`, or have some leave.

They use a socket whose file is removed at once, so that it vanishes with the launcher. The launcher
keeps a descriptor of the file, and a client connects to it through /proc/PID/fd, which only the
launcher's user and root may use: other users cannot fill the queue of clients. Each side also asks
the kernel which user the other one is; only the same user and root are accepted.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import tempfile
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
COUNT, LEAVE = "count", "leave"  # a request's subject: a number of ranks, or a rank
_PREFIX, _NAME = "malt-run-", "scale"
_FILE = re.compile(rf"/{_PREFIX}[^/]+/{_NAME}( \(deleted\))?$")


def name_of(process: int) -> str | None:
    """Return a name of the launcher's socket, or None if it has none.

    Raises:
        OSError: there is no such process, or it is another user's.
    """
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if _FILE.search(str(descriptor.readlink())):
                return str(descriptor)
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
            connection.connect(name)
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
        """Listen.

        Raises:
            OSError: the folder for temporary files cannot be written.
        """
        self._change = change
        self._waiting: deque[socket.socket] = deque()  # clients that wait for an answer
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._file = _bind(self._socket)
        except OSError:
            self._socket.close()
            raise
        self._socket.listen()

    def close(self) -> None:
        self._socket.close()
        os.close(self._file)
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


def _bind(listening: socket.socket) -> int:
    """Bind the socket to a file, and remove it; return the file's descriptor."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:  # only this user may look into it
        place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        try:
            # A socket's name has at most 107 bytes, and TMPDIR may be longer.
            listening.bind(f"/proc/self/fd/{place}/{_NAME}")
            return os.open(_NAME, os.O_PATH | os.O_CLOEXEC, dir_fd=place)
        finally:
            os.close(place)


def _reply(connection: socket.socket, kind: bytes, text: str) -> None:
    with connection, contextlib.suppress(OSError):
        connection.send(kind + text.encode())
