"""The server of the dashboard and of the metrics, and clients that mean it no good."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from malt._watching import http_server

OWNER, STRANGER = "127.0.0.1", "127.0.0.2"
Connect = Callable[[str], socket.socket]


class Requests(http_server.Handler):
    def do_GET(self) -> None:
        if self.path == "/secret":
            self.keep()
        self.answer(200, "text/plain", b"well")
        if self.path == "/secret":
            self.connection.recv(1)  # stay until the client closes


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Connects to a server from an address; both are this user's, but taken for two users."""
    monkeypatch.setattr(http_server, "origin_of", lambda one: str(one.getpeername()[0]))
    server = http_server.Server(socket.create_server((OWNER, 0)), Requests)
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        yield lambda origin: stack.enter_context(
            socket.create_connection(server.server_address, 20, source_address=(origin, 0))
        )


def asked(connection: socket.socket, path: str = "/") -> bytes:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    return connection.recv(1000)


def is_closed(connection: socket.socket, seconds: float = 0.05) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_slow_clients_of_a_stranger_do_not_lock_the_owner_out(connect: Connect) -> None:
    owners = connect(OWNER)  # also not the one that has not asked yet
    strangers = [connect(STRANGER) for _ in range(100)]
    for one in strangers[-20:]:
        with contextlib.suppress(ConnectionError):
            one.sendall(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(10):
        assert asked(connect(OWNER)).startswith(b"HTTP/1.0 200")
    assert asked(owners).startswith(b"HTTP/1.0 200")


def test_connections_beyond_the_most_make_way(connect: Connect) -> None:
    strangers = [connect(STRANGER) for _ in range(33)]
    assert asked(connect(OWNER)).startswith(b"HTTP/1.0 200")
    assert sum(is_closed(one) for one in strangers) == 2  # for the 33rd, and for the owner


def test_a_request_that_has_proved_itself_does_not_make_way(connect: Connect) -> None:
    kept = connect(STRANGER)
    assert asked(kept, "/secret").startswith(b"HTTP/1.0 200")
    for _ in range(100):
        connect(STRANGER)
    assert asked(connect(OWNER)).startswith(b"HTTP/1.0 200")
    assert not is_closed(kept)


def test_a_client_that_sends_a_byte_now_and_then_is_closed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", 0.5)
    one = connect(OWNER)
    began = time.monotonic()
    while not is_closed(one):
        with contextlib.suppress(ConnectionError):
            one.sendall(b"G")
        assert time.monotonic() < began + 10


def test_a_head_that_is_too_long_is_not_kept(connect: Connect) -> None:
    one, header = connect(OWNER), b"X: " + b"a" * 60_000 + b"\r\n"
    with contextlib.suppress(ConnectionError):
        one.sendall(b"GET / HTTP/1.1\r\n" + header)
    assert is_closed(one, seconds=3)  # before its time is up
    assert asked(connect(OWNER)).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_user_of_a_client_on_this_host_is_known(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this host has no IPv6")
    with listening, socket.create_connection(listening.getsockname()[:2]) as client:
        accepted, _ = listening.accept()
        with accepted:
            assert http_server.origin_of(accepted) == f"user {os.getuid()}"
            client.close()
            assert http_server.origin_of(accepted) == "gone"


def test_connection_that_does_not_speak_http_is_closed(connect: Connect) -> None:
    for text in (b"\xff\xfe\r\n\r\n", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
        one = connect(OWNER)
        one.sendall(text)
        while one.recv(1000):
            pass
