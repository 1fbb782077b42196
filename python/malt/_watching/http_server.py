"""An HTTP server that strangers cannot make slow, large or unreachable.

A connection whose request has not proved itself (`Handler.keep`) is limited: in the bytes and in
the seconds of its request, and in their number. When one more comes, another makes way: one of the
origin that has most, drawn at random. An origin is a user of this host, or another host. So a
stranger's connections make way for one another, and not those of the owner.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import ipaddress
import random
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from malt._system_limits import starting

_MOST_CONNECTIONS = 32  # that have not proved themselves
_MOST_HEAD_BYTES = 1 << 15  # of a request: a browser's cookies for this host are in it
_REQUEST_SECONDS = 5.0  # how long a client may take to send its request
_PIECE_SECONDS = 10.0  # how long a client may take to receive a piece of the answer
_WAITING = 128  # connections that Linux holds until they are accepted


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request of a connection and closes it; says nothing on the terminal."""

    server: Server

    def handle(self) -> None:
        head = _read_head(self.connection)
        self.connection.settimeout(_PIECE_SECONDS)
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        self.handle_one_request()

    def keep(self) -> None:
        """Let the connection stay as long as it needs: its request has proved itself."""
        self.server.keep(self.connection)

    def answer(self, code: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent: the terminal is the ranks'."""


class Server(http.server.ThreadingHTTPServer):
    """Serves on a socket that listens, in threads of its own, as long as this process lives."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[Handler]) -> None:
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        listening.listen(_WAITING)
        # Of connections that have not proved themselves; "": not looked up yet.
        self._origins: dict[socket.socket, str] = {}
        self._lock = threading.Lock()
        with starting("the thread that answers requests"):
            threading.Thread(target=self.serve_forever, daemon=True).start()

    def keep(self, connection: socket.socket) -> None:
        with self._lock:
            self._origins.pop(connection, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._origins[request] = ""
            if len(self._origins) > _MOST_CONNECTIONS:
                self._make_room()
        super().process_request(request, client_address)

    def _make_room(self) -> None:
        for connection, origin in self._origins.items():
            if not origin:
                self._origins[connection] = origin_of(connection)
        ((most, _),) = Counter(self._origins.values()).most_common(1)
        one = random.choice([one for one, origin in self._origins.items() if origin == most])
        del self._origins[one]
        with contextlib.suppress(OSError):  # the client has closed it
            one.shutdown(socket.SHUT_RDWR)  # its thread notices, and closes it

    def shutdown_request(self, request: Any) -> None:
        self.keep(request)  # before it is closed: its descriptor may then be another's
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """Stay silent: the client has gone, or was too slow."""


def _read_head(connection: socket.socket) -> bytes:
    """Read a request up to its body, which no request has that is answered.

    Raises:
        OSError: it is too long, or takes too long, or the client has gone.
    """
    deadline = time.monotonic() + _REQUEST_SECONDS
    head = bytearray()
    while b"\r\n\r\n" not in head:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        received = connection.recv(_MOST_HEAD_BYTES + 1 - len(head))
        head += received
        if not received or len(head) > _MOST_HEAD_BYTES or time.monotonic() > deadline:
            raise ConnectionError("it sends no request")
    return bytes(head)


def origin_of(connection: socket.socket) -> str:
    """Return which user of this host, or which other host, has connected."""
    try:
        own, peer = connection.getsockname()[:2], connection.getpeername()[:2]
    except OSError:  # it is closed already
        return "gone"
    pair = f" {_in_table(*peer)} {_in_table(*own)} "
    for name in ("tcp", "tcp6"):
        table = ""
        with contextlib.suppress(FileNotFoundError):  # this host has no IPv6
            table = Path(f"/proc/net/{name}").read_text()
        if (at := table.find(pair)) >= 0:
            user, _, inode = table[at + len(pair) :].split(maxsplit=7)[4:7]
            return f"user {user}" if inode != "0" else "gone"
    return str(peer[0])


def _in_table(address: str, port: int) -> str:
    """Return an address as Linux writes it: words in the processor's byte order."""
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
