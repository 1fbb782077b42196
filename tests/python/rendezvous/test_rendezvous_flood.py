"""Floods at the launcher's port: the server goes on, and clients get in."""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from test_rendezvous import KEY, in_threads

from malt._rendezvous import listener, wire
from malt._rendezvous import server as servers
from malt._rendezvous.channel import Channel, call
from malt._rendezvous.connection import Connection
from malt._rendezvous.node_session import Node
from malt._rendezvous.server import Server
from malt._rendezvous.session import Client
from malt._rendezvous.sessions import Sessions
from malt._rendezvous.wire import ToClient

BIG = bytes(1 << 18)
# Strangers call from another address than the job's ranks, which call from 127.0.0.1.
ELSEWHERE = "127.0.0.2"
MOST_HALF_OPEN = 64


@pytest.fixture(autouse=True)
def no_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a flood takes its time, too."""
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 60.0)
    monkeypatch.setattr(servers, "SUCCESSOR_SECONDS", 60.0)


@contextlib.contextmanager
def job_of(ranks: int) -> Iterator[tuple[Server, Node]]:
    server = Server(1, KEY)
    node = Node(server.address, KEY, 0, 1)
    node.start(ranks, 5, server, rejoins=True)
    server.start()
    try:
        yield server, node
    finally:
        server.close()
        node.abort()


@contextlib.contextmanager
def strangers(server: Server, host: str = ELSEWHERE) -> Iterator[None]:
    """Three times as many as may be half-open; the server has accepted them all."""
    with contextlib.ExitStack() as stack:
        flood = []
        for _ in range(3 * MOST_HALF_OPEN):
            address = server.host, server.port
            flood.append(stack.enter_context(socket.create_connection(address, 60, (host, 0))))
        deadline = time.monotonic() + 60
        while len(select.select(flood, [], [], 0)[0]) < 2 * MOST_HALF_OPEN:  # these made way
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield


def join(server: Server, kind: bytes, rank: int, process: int) -> Channel:
    who = wire.Introduction(kind, rank, server.size, process)
    connection = call(socket.create_connection((server.host, server.port), 60), KEY, who, None)
    connection.settimeout(60)
    connection.shake_hands()
    return connection


def is_welcome(connection: Channel) -> bool:
    answer = connection.recv(wire.LENGTH.size + 1)
    return answer[wire.LENGTH.size :] == ToClient.WELCOME


def test_flood_from_elsewhere_keeps_no_rank_out() -> None:
    with job_of(8) as (server, _), strangers(server), contextlib.ExitStack() as stack:
        for rank in range(8):
            connection = join(server, wire.RANK, rank, 1)
            stack.callback(connection.close)
            assert is_welcome(connection)


def test_client_that_never_reads_is_owed_a_bounded_number_of_bytes() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs, selectors.DefaultSelector() as selector:
        sessions = Sessions(selector)
        connection = Connection(ours, ELSEWHERE, wire.RANK, 0, 1, 1, *wire.sealers(KEY))
        sessions.begin(connection)
        while connection not in sessions.broken:
            sessions.send(connection, BIG)
            assert connection.unread == sum(map(len, connection.outbox))
        assert wire.MAX_FRAME < connection.unread < sessions.most_unread + 2 * len(BIG)


def test_flood_does_not_end_a_connection_that_has_proved_the_key() -> None:
    with job_of(1) as (server, node), contextlib.ExitStack() as stack:
        last, successor = (join(server, wire.MEMBER, 0, process) for process in (1, 2))
        stack.callback(last.close)
        stack.callback(successor.close)
        assert is_welcome(last)
        while not server._waiting:  # for the last process to end
            time.sleep(0.01)
        with strangers(server, "127.0.0.1"):
            node.rank_restarts(0, 1)
            assert is_welcome(successor)


# Begins TLS handshakes, always 200 at a time, and ends each once the server has answered.
FLOOD = """
import selectors, socket, ssl, sys
host, port, source = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
begin = ssl.MemoryBIO()
try:
    context.wrap_bio(ssl.MemoryBIO(), begin).do_handshake()
except ssl.SSLWantReadError:
    hello = begin.read()
waits = selectors.DefaultSelector()
print(flush=True)
while True:
    while len(waits.get_map()) < 200:
        caller = socket.socket()
        caller.setblocking(False)
        caller.bind((source, 0))
        caller.connect_ex((host, port))
        waits.register(caller, selectors.EVENT_WRITE)
    ready = [key for key, _ in waits.select(0.02)]
    for key in ready or list(waits.get_map().values())[:1]:  # none: its system's queue is full
        waits.unregister(key.fileobj)
        try:
            if key.events == selectors.EVENT_WRITE:
                key.fileobj.sendall(hello)
                waits.register(key.fileobj, selectors.EVENT_READ)
                continue
        except OSError:
            pass
        key.fileobj.close()
"""


@contextlib.contextmanager
def tls_flood(server: Server) -> Iterator[None]:
    command = [sys.executable, "-c", FLOOD, server.host, str(server.port), ELSEWHERE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout is not None
            flood.stdout.readline()
            yield
        finally:
            flood.kill()


def test_tls_flood_takes_a_tenth_of_a_processor_and_lets_ranks_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALT_TLS", Authority(tmp_path / "tls").issue("rank"))
    with job_of(2) as (server, _), tls_flood(server):
        clock = time.pthread_getcpuclockid(server._thread.ident or 0)
        start, used = time.monotonic(), -time.clock_gettime(clock)
        ranks = [Client(server.address, KEY, rank, 2, 60) for rank in range(2)]
        while time.monotonic() < start + 4:
            parts = in_threads(*(lambda one=one: one.allgather(b"x", 20) for one in ranks))
            assert parts == [[b"x"] * 2] * 2
            time.sleep(0.1)
        used += time.clock_gettime(clock)
        seconds = time.monotonic() - start
        for rank in ranks:
            rank.close()
    # Beyond a tenth: what was saved, turns as a whole, and what the ranks themselves take.
    assert used < 0.2 * seconds + 0.6
