"""An HTTP server that a slow client or many clients cannot make slow or large."""

from __future__ import annotations

import http.server
import socket
import threading
from typing import Any

_MOST_CONNECTIONS = 32
_CLIENT_SECONDS = 10.0  # how long a client may take to send its request, or to take a piece


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request of a connection and closes it; says nothing on the terminal."""

    timeout = _CLIENT_SECONDS

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
    """Serves on a socket that listens, in threads of its own, as long as this process lives.

    A connection beyond the most that are open at a time is closed at once.
    """

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[Handler]) -> None:
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._free = threading.Semaphore(_MOST_CONNECTIONS)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *_: object) -> None:
        """Stay silent: the client has gone, or was too slow."""
