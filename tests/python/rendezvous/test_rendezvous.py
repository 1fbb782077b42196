"""The rendezvous of `malt run`: who may come, what is refused, and that nothing waits for ever."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from malt import _errors as errors
from malt._bootstrap.find_bootstrap import find
from malt._errors import ConfigError, Error, PeerError
from malt._rendezvous import wire
from malt._rendezvous.channel import Channel, call
from malt._rendezvous.node_session import Node
from malt._rendezvous.server import Server
from malt._rendezvous.session import Client
from malt._rendezvous.wire import ToServer

KEY = bytes(range(32))


@pytest.fixture
def serve() -> Iterator[Callable[[int], Server]]:
    def start(size: int) -> Server:
        server = Server(1, KEY)
        launchers[server] = Node(server.address, KEY, 0, 1)
        launchers[server].start(size, 5, server)
        server.start()
        return server

    yield start
    while launchers:
        server, launcher = launchers.popitem()
        server.close()
        launcher.abort()
        assert not server._thread.is_alive()


Serve = Callable[[int], Server]

launchers: dict[Server, Node] = {}

opened: list[Channel | Client | socket.socket] = []


@pytest.fixture(autouse=True)
def close_all() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


def join(server: Server, rank: int, timeout: float = 5.0) -> Client:
    opened.append(client := Client(server.address, KEY, rank, server.size, timeout))
    return client


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """What each call returns or raises, run at the same time."""
    results: list[object] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    return results


def raw(server: Server) -> socket.socket:
    host, port = server.address.split(":")
    opened.append(connection := socket.create_connection((host, int(port)), 5))
    return connection


def is_closed(connection: Channel | socket.socket, within: float = 30.0) -> bool:
    connection.settimeout(within)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except OSError:
        return False
    return True


def test_allgather_returns_all_parts_by_rank(serve: Serve) -> None:
    server = serve(3)
    clients = [join(server, rank) for rank in (2, 0, 1)]
    for round_ in range(5):
        parts = [b"%d" % c.rank * (c.rank * 1000 + round_) for c in clients]
        results = in_threads(
            *(lambda c=c, p=p: c.allgather(p, 5) for c, p in zip(clients, parts, strict=True))
        )
        by_rank = [p for _, p in sorted(zip((c.rank for c in clients), parts, strict=True))]
        assert results == [by_rank] * 3
    for client in clients:
        client.close()


def test_many_ranks_come_at_once(serve: Serve) -> None:
    server = serve(100)
    results = in_threads(
        *(lambda r=r: join(server, r, 20).allgather(b"%d" % r, 20) for r in range(100))
    )
    assert results == [[b"%d" % r for r in range(100)]] * 100


def test_largest_part_passes_and_a_larger_one_is_refused(serve: Serve) -> None:
    server = serve(2)
    a, b = join(server, 0), join(server, 1)
    big = os.urandom(wire.MAX_PART)
    assert (
        in_threads(lambda: a.allgather(big, 10), lambda: b.allgather(b"", 10)) == [[big, b""]] * 2
    )
    with pytest.raises(ConfigError, match="at most 1048"):
        a.allgather(big + b"x", 5)


def test_no_key_is_refused_before_connecting() -> None:
    environ = {"MALT_RENDEZVOUS": "127.0.0.1:1", "MALT_RANK": "0", "MALT_SIZE": "2"}
    with pytest.raises(ConfigError, match="MALT_JOB_KEY is not"):
        Client.from_environ(environ, 1)
    with pytest.raises(ConfigError, match="32 bytes"):
        Client.from_environ(environ | {"MALT_JOB_KEY": "abcd"}, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALT_RENDEZVOUS", "nowhere"), ("MALT_RANK", "x"), ("MALT_RANK", "2"), ("MALT_SIZE", "-1")],
)
def test_a_spoilt_environment_is_named(name: str, value: str) -> None:
    environ = {
        "MALT_RENDEZVOUS": "127.0.0.1:1",
        "MALT_JOB_KEY": KEY.hex(),
        "MALT_RANK": "0",
        "MALT_SIZE": "2",
    }
    with pytest.raises(ConfigError, match=name):
        Client.from_environ(environ | {name: value}, 1)


def test_wrong_key_is_noticed_by_the_rank(serve: Serve) -> None:
    server = serve(2)
    with pytest.raises(ConfigError, match="does not have this job's key") as info:
        Client(server.address, b"x" * 32, 0, 2, 5)
    assert (b"x" * 32).hex() not in str(info.value)


def open_session(server: Server, rank: int) -> tuple[Channel, wire.Sealer]:
    who = wire.Introduction(wire.RANK, rank, server.size, 1)
    opened.append(connection := call(raw(server), KEY, who, None))
    connection.settimeout(5)
    sealer, _ = wire.sealers(connection.shake_hands())
    connection.recv(wire.LENGTH.size + 1 + wire.MAC_BYTES)
    return connection, sealer


def test_frame_repeated_within_a_session_ends_it(serve: Serve) -> None:
    server = serve(2)
    connection, sealer = open_session(server, 0)
    sealed = sealer.seal(wire.PART_HEAD.pack(ToServer.PART, 0, 20.0))
    connection.sendall(sealed + sealed)
    assert is_closed(connection)


@pytest.mark.parametrize("length", [0, wire.MAX_FRAME + 1, 0xFFFFFFFF])
def test_frame_of_impossible_length_ends_the_session(serve: Serve, length: int) -> None:
    server = serve(2)
    connection, _ = open_session(server, 0)
    connection.sendall(struct.pack("!I", length) + b"x" * 100)
    assert is_closed(connection)
    join(server, 0).close()


@pytest.mark.parametrize(
    "payload",
    [
        b"?",
        ToServer.PART,
        wire.PART_HEAD.pack(ToServer.PART, 7, 1.0),
        wire.PART_HEAD.pack(ToServer.PART, 0, float("nan")),
        wire.PART_HEAD.pack(ToServer.PART, 0, -1.0),
        wire.PART_HEAD.pack(ToServer.PART, 0, 1e300),
    ],
)
def test_genuine_nonsense_ends_the_session_and_no_other(serve: Serve, payload: bytes) -> None:
    server = serve(2)
    connection, sealer = open_session(server, 0)
    connection.sendall(sealer.seal(payload))
    assert is_closed(connection)
    a, b = join(server, 0), join(server, 1)
    b.close()
    b = join(server, 1)  # the second session, as rank 0's is
    assert (
        in_threads(lambda: a.allgather(b"a", 5), lambda: b.allgather(b"b", 5)) == [[b"a", b"b"]] * 2
    )


def test_half_open_flood_is_bounded_and_lets_ranks_in(serve: Serve) -> None:
    server = serve(2)
    flood = [raw(server) for _ in range(300)]
    a, b = join(server, 0), join(server, 1)
    assert server._listener.half_open <= 64
    assert (
        in_threads(lambda: a.allgather(b"a", 5), lambda: b.allgather(b"b", 5)) == [[b"a", b"b"]] * 2
    )
    for connection in flood:
        connection.close()


def test_duplicate_rank_is_refused_and_the_first_goes_on(serve: Serve) -> None:
    server = serve(2)
    a, b = join(server, 0), join(server, 1)
    with pytest.raises(ConfigError, match=f"rank 1 has joined already, as process {os.getpid()}"):
        join(server, 1)
    assert (
        in_threads(lambda: a.allgather(b"a", 5), lambda: b.allgather(b"b", 5)) == [[b"a", b"b"]] * 2
    )


def test_rank_of_another_size_is_refused(serve: Serve) -> None:
    server = serve(2)
    for rank, size in ((0, 3), (2, 3)):
        with pytest.raises(ConfigError, match=f"rank {rank} of {size} is not of this job of 2"):
            Client(server.address, KEY, rank, size, 5)


def test_missing_ranks_are_named_at_the_time_limit(serve: Serve) -> None:
    server = serve(4)
    a, b = join(server, 0), join(server, 2)
    join(server, 3)  # connected, but never comes to the round
    start = time.monotonic()
    outcomes = in_threads(lambda: a.allgather(b"", 1), lambda: b.allgather(b"", 60))
    assert time.monotonic() - start < 15
    for error in outcomes:
        assert isinstance(error, errors.TimeoutError)
        assert error.ranks == (1, 3)
        assert "ranks 1, 3" in str(error)


def test_rank_that_comes_too_late_hears_who_gave_up(serve: Serve) -> None:
    server = serve(2)
    a, b = join(server, 0), join(server, 1)
    with pytest.raises(errors.TimeoutError):
        a.allgather(b"", 0.1)
    with pytest.raises(PeerError, match="rank 0 gave up waiting") as info:
        b.allgather(b"", 5)
    assert info.value.ranks == (0,)
    with pytest.raises(Error, match="closed"):
        b.allgather(b"", 5)


@pytest.mark.parametrize("how", ["close", "abort"])
def test_rank_that_leaves_ends_the_wait_of_others_at_once(serve: Serve, how: str) -> None:
    server = serve(3)
    a, b, c = (join(server, rank) for rank in range(3))
    start = time.monotonic()

    def leave() -> None:
        time.sleep(0.2)
        getattr(c, how)()

    outcomes = in_threads(lambda: a.allgather(b"", 60), lambda: b.allgather(b"", 60), leave)
    assert time.monotonic() - start < 15
    for error in outcomes[:2]:
        assert isinstance(error, PeerError)
        assert error.ranks == (2,)


def test_process_that_ends_before_joining_is_named_with_its_fate(serve: Serve) -> None:
    server = serve(2)
    a = join(server, 0)
    launchers[server].rank_ended(1, 12345, -9)
    with pytest.raises(PeerError, match="rank 1 died of SIGKILL") as info:
        a.allgather(b"", 20)
    assert info.value.ranks == (1,)


def test_connection_kept_open_by_a_forked_child_does_not_hide_a_death(serve: Serve) -> None:
    server = serve(2)
    a, b = join(server, 0), join(server, 1)
    launchers[server].rank_ended(1, os.getpid(), 1)
    with pytest.raises(PeerError, match="rank 1 exited with code 1"):
        a.allgather(b"", 20)
    b.abort()


def test_end_of_a_wrapper_leaves_its_child_alone(serve: Serve) -> None:
    server = serve(2)
    a, b = join(server, 0), join(server, 1)
    launchers[server].rank_ended(1, 1, 0)  # not the process that joined
    assert (
        in_threads(lambda: a.allgather(b"a", 5), lambda: b.allgather(b"b", 5)) == [[b"a", b"b"]] * 2
    )


def test_job_can_be_left_and_joined_again(serve: Serve) -> None:
    server = serve(2)
    for turn in range(3):
        a, b = join(server, 0), join(server, 1)
        result = in_threads(lambda a=a: a.allgather(b"a", 5), lambda b=b: b.allgather(b"b", 5))
        assert result == [[b"a", b"b"]] * 2, turn
        a.close()
        b.close()
        a.close()


def test_launcher_that_ends_is_an_error(serve: Serve) -> None:
    server = serve(2)
    a = join(server, 0)
    threading.Timer(0.2, server.close).start()
    with pytest.raises(PeerError, match="connection to the launcher"):
        a.allgather(b"", 20)
    with pytest.raises(ConfigError, match="no launcher listens"):
        join(server, 0)


def test_server_that_never_answers_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        start = time.monotonic()
        with pytest.raises(errors.TimeoutError, match="did not answer within"):
            Client(f"127.0.0.1:{deaf.getsockname()[1]}", KEY, 0, 2, 0.3)
        assert time.monotonic() - start < 15


def test_find_joins_through_the_rendezvous(serve: Serve) -> None:
    server = serve(2)

    def take_part(rank: int) -> tuple[int, int, str, list[bytes]]:
        with find(environ=launchers[server].environ(rank, rank), timeout=5) as bootstrap:
            parts = bootstrap.allgather(b"%d" % rank, 5)
            return bootstrap.rank, bootstrap.size, bootstrap.launcher, parts

    assert in_threads(lambda: take_part(0), lambda: take_part(1)) == [
        (0, 2, "malt run", [b"0", b"1"]),
        (1, 2, "malt run", [b"0", b"1"]),
    ]


def test_find_without_a_launcher_is_a_job_of_one() -> None:
    with find(environ={}) as bootstrap:
        assert (bootstrap.rank, bootstrap.size, bootstrap.launcher) == (0, 1, "none")
        assert bootstrap.allgather(b"x", 0) == [b"x"]


def test_errors_are_what_their_names_say() -> None:
    import builtins
    import pickle

    late = errors.TimeoutError("late", [3, 1])
    assert isinstance(late, builtins.TimeoutError)
    assert isinstance(late, Error)
    assert (str(late), late.ranks) == ("late", (1, 3))
    gone = pickle.loads(pickle.dumps(PeerError("gone", (2,))))
    assert isinstance(gone, ConnectionError)
    assert gone.ranks == (2,)
    assert str(gone) == "gone"
    assert isinstance(ConfigError("bad"), ValueError)
