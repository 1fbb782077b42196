"""Launchers' sessions with the rendezvous: what is refused, and what a node that leaves ends."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from malt._errors import ConfigError
from malt._rendezvous import wire
from malt._rendezvous.allgather_table import ProtocolError
from malt._rendezvous.listener import Listener
from malt._rendezvous.node_session import Node
from malt._rendezvous.node_table import Nodes
from malt._rendezvous.server import Server
from malt._rendezvous.session import Client
from malt._rendezvous.wire import ToClient, ToServer

KEY = bytes(range(32)).hex()
RANKS = wire.RANKS_FRAME.pack(ToServer.RANKS, 2, False, 0, 0, 5.0)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        ToServer.RANKS,
        RANKS + b"x",
        wire.RANKS_FRAME.pack(ToServer.RANKS, 0, False, 0, 0, 5.0),
        wire.RANKS_FRAME.pack(ToServer.RANKS, wire.MAX_RANKS + 1, False, 0, 0, 5.0),
        wire.RANKS_FRAME.pack(ToServer.RANKS, 1, False, 0, 0, float("nan")),
        wire.RANKS_FRAME.pack(ToServer.RANKS, 1, False, 0, 0, -1.0),
    ],
)
def test_impossible_number_of_ranks_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        Nodes(2).come(0, payload, 0.0)


@pytest.mark.parametrize("answer", [ToClient.START, ToClient.LATE, ToClient.LATE + b"\xff" * 8])
def test_answer_that_cannot_be_is_refused(answer: bytes) -> None:
    key = bytes.fromhex(KEY)

    def be_node_0() -> None:
        while not (callers := listener.ready()):
            selector.select(10)
        connection = callers[0]
        seal = connection.sealer.seal
        connection.socket.settimeout(10)
        connection.socket.sendall(seal(ToClient.WELCOME) + seal(answer))
        while connection.socket.recv(4096):
            pass
        connection.socket.close()

    with selectors.DefaultSelector() as selector:
        listener = Listener("127.0.0.1", 0, key, selector)
        thread = threading.Thread(target=be_node_0)
        thread.start()
        node = Node(f"127.0.0.1:{listener.port}", key, 1, 2)
        with pytest.raises(ConfigError, match="before all nodes had joined"):
            node.start(1, 5, None)
        node.abort()
        thread.join()
        listener.close()


def test_node_comes_once_and_ends_its_own_ranks_once() -> None:
    nodes = Nodes(2)
    nodes.come(0, RANKS, 0.0)
    with pytest.raises(ProtocolError):
        nodes.come(0, RANKS, 0.0)
    ended = wire.ENDED_FRAME.pack(ToServer.ENDED, 1, 99, 0)
    with pytest.raises(ProtocolError):
        nodes.end(0, ended)  # before the start
    nodes.come(1, RANKS, 0.0)
    assert nodes.size == 4
    nodes.end(0, ended)
    for node in (0, 1):
        with pytest.raises(ProtocolError):
            nodes.end(node, ended)


def test_node_speaks_of_its_own_ranks_alone() -> None:
    nodes = Nodes(2)
    for node in range(2):
        nodes.come(node, RANKS, 0.0)
    again = [wire.PROCESS_FRAME.pack(ToServer.AGAIN, rank, 99) for rank in range(5)]
    assert nodes.again(1, again[2]) == (2, 99)
    for frame in (again[1], again[4], again[2] + b"x"):
        with pytest.raises(ProtocolError):
            nodes.again(1, frame)


def test_node_that_leaves_before_the_start_may_come_again() -> None:
    nodes = Nodes(2)
    nodes.come(1, RANKS, 0.0)
    assert nodes.leave(1) == (set(), [])
    nodes.come(0, RANKS, 0.0)
    assert not nodes.is_settled
    nodes.come(1, RANKS, 0.0)
    assert nodes.size == 4


def test_failure_before_the_loss_of_a_node_gives_the_exit_code() -> None:
    nodes = Nodes(2)
    for node in range(2):
        nodes.come(node, RANKS, 0.0)
    for rank, code in ((0, -9), (1, 5)):
        nodes.end(0, wire.ENDED_FRAME.pack(ToServer.ENDED, rank, 99, code))
    lost, frames = nodes.leave(1)
    assert lost == {2, 3}
    assert frames == [
        (0, [wire.LOST_FRAME.pack(ToClient.LOST, 1)]),
        (0, [wire.OVER_FRAME.pack(ToClient.OVER, 137)]),
    ]


@pytest.fixture
def gathering() -> Iterator[Callable[[int], Server]]:
    """Start node 0 of a job, which waits for the others in a thread of the test."""
    ends: list[Callable[[], None]] = []

    def start(nnodes: int) -> Server:
        server = Server(nnodes, bytes.fromhex(KEY))
        node = Node(server.address, bytes.fromhex(KEY), 0, nnodes)
        thread = threading.Thread(target=node.start, args=(1, 20, server))
        thread.start()
        ends.extend([lambda: thread.join(25), node.abort, server.close])
        return server

    yield start
    for end in ends:
        end()


def test_half_open_flood_is_bounded_and_lets_nodes_in(
    gathering: Callable[[int], Server],
) -> None:
    server = gathering(2)
    flood = [socket.create_connection((server.host, server.port), 5) for _ in range(300)]
    second = Node(server.address, bytes.fromhex(KEY), 1, 2)
    second.start(3, 10, None)
    assert server._listener.half_open <= 64
    assert (second.first, second.size) == (1, 4)
    second.abort()
    for connection in flood:
        connection.close()


def test_rank_is_refused_before_the_start(
    gathering: Callable[[int], Server],
) -> None:
    server = gathering(2)
    with pytest.raises(ConfigError, match="rank 0 of 1 is not of this job of 0"):
        Client(server.address, bytes.fromhex(KEY), 0, 1, 5)
    second = Node(server.address, bytes.fromhex(KEY), 1, 2)
    second.start(1, 10, None)
    second.abort()
