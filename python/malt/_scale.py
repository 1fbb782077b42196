"""`malt scale`: how many ranks an elastic job has, told to a `malt run` of its while it runs.

Over a socket in Linux's abstract namespace: no file, gone with the launcher. Its name is random, so
that nobody can take it first. A client finds it in /proc/net/unix, and learns that it is the
launcher's from /proc/PID/fd, which only the launcher's user and root may read. Each side also asks
the kernel who the other is; only the same user may, and root.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from malt._errors import ConfigError

_CREDENTIALS = struct.Struct("3i")  # process, user, group
_MOST_BYTES = 4096
_SECONDS = 1.0  # that the launcher waits for a client, which speaks at once,
_PATIENCE_SECONDS = 30.0  # and the client for the launcher, which may be busy
_DONE, _REFUSED = b"+", b"!"


_PREFIX = "malt-run-"


def _name_of(process: int) -> str | None:
    """The name of the launcher's socket; None: it has none.

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


def _peer_of(connection: socket.socket) -> tuple[int, int]:
    """The other side's process and user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


class ScaleServer:
    """The launcher's side, which is to `hear` when it is readable.

    `rescale(count)` begins what is to be done, whose outcome is `answer`ed later, in the order of
    the calls; or it raises ConfigError.
    """

    def __init__(self, rescale: Callable[[int], None]) -> None:
        self._rescale = rescale
        self._waiting: deque[socket.socket] = deque()  # clients, for an answer
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
        """Begin what the next client asks for."""
        connection = self._socket.accept()[0]
        try:
            _, user = _peer_of(connection)
            if user not in (0, os.getuid()):
                raise ConfigError(f"the job is user {os.getuid()}'s")
            connection.settimeout(_SECONDS)
            self._rescale(int(connection.recv(_MOST_BYTES)))
        except (ConfigError, ValueError) as error:
            _reply(connection, _REFUSED, str(error))
        except OSError:  # it has gone, or does not speak
            connection.close()
        else:
            self._waiting.append(connection)

    def answer(self, is_done: bool, text: str) -> None:
        """Tell the client that has waited longest what has been done, or why not."""
        if self._waiting:
            _reply(self._waiting.popleft(), _DONE if is_done else _REFUSED, text)

    def refuse_all(self, why: str) -> None:
        """There will be no more answers."""
        while self._waiting:
            self.answer(False, why)


def _reply(connection: socket.socket, kind: bytes, text: str) -> None:
    with connection, contextlib.suppress(OSError):
        connection.send(kind + text.encode())


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 1 or more")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt scale` with these arguments; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="malt scale",
        description="Have COUNT ranks run in a job of `malt run --elastic MIN:MAX`: start some, or "
        "ask those with the highest numbers to leave (malt.leaving() is true there); over several "
        "hosts so that all have as many.",
    )
    parser.add_argument(
        "process", metavar="PID", type=_count, help="of the `malt run`, here; of several, any"
    )
    parser.add_argument("count", metavar="COUNT", type=_count, help="MIN to MAX")
    parsed = parser.parse_args(arguments)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_PATIENCE_SECONDS)
        try:
            name = _name_of(parsed.process)
            if name is None:
                parser.error(f"process {parsed.process} is no `malt run --elastic`")
            connection.connect(f"\0{name}")
            process, user = _peer_of(connection)
            if process != parsed.process or os.getuid() not in (0, user):
                parser.error(f"process {parsed.process} is no `malt run --elastic` of this user's")
            connection.send(str(parsed.count).encode())
            answer = connection.recv(_MOST_BYTES)
        except FileNotFoundError:
            parser.error(f"process {parsed.process} does not run on this host")
        except PermissionError:
            parser.error(f"process {parsed.process} is another user's")
        except ConnectionRefusedError:
            parser.error(f"process {parsed.process} is no `malt run --elastic`: it has just ended")
        except OSError as error:
            parser.error(f"process {parsed.process} does not answer: {error}")
    if answer[:1] != _DONE:
        parser.error(answer[1:].decode() or f"process {parsed.process} has ended")
    print(f"malt scale: {answer[1:].decode()}")
    return 0
