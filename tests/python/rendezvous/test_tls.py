"""MALT_TLS: the rendezvous and the ranks' connections over TLS, and who is refused."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority
from jobs import Result, run_job
from test_rendezvous import in_threads, is_closed

from malt._errors import ConfigError
from malt._rendezvous import wire
from malt._rendezvous.node_session import Node
from malt._rendezvous.server import Server
from malt._rendezvous.session import Client

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def folder(authority: Authority) -> str:
    return authority.issue("rank")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs").issue("rank")


@pytest.fixture(scope="module")
def expired(authority: Authority) -> str:
    return authority.issue("expired", days=-1)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Sets MALT_TLS for what is made next."""

    def set_to(folder: str | None) -> None:
        if folder is None:
            monkeypatch.delenv("MALT_TLS", raising=False)
        else:
            monkeypatch.setenv("MALT_TLS", folder)

    return set_to


Use = Callable[[str | None], None]
Serve = Callable[[int], Server]

clients: list[Client] = []


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[tuple[Server, Node]] = []

    def start(size: int) -> Server:
        server = Server(1, KEY)
        node = Node(server.address, KEY, 0, 1)
        node.start(size, 5, server)
        server.start()
        servers.append((server, node))
        return server

    yield start
    while clients:
        clients.pop().close()
    for server, node in servers:
        server.close()
        node.abort()


def join(server: Server, rank: int, timeout: float = 10) -> Client:
    clients.append(client := Client(server.address, KEY, rank, server.size, timeout))
    return client


# The rendezvous


def test_rendezvous_carries_what_it_carries_without(use: Use, serve: Serve, folder: str) -> None:
    use(folder)
    server = serve(3)
    ranks = [join(server, rank) for rank in range(3)]
    for size in (0, 1, 16_384, 16_385, 300_000, wire.MAX_PART):
        parts = [os.urandom(size) for _ in ranks]
        calls = [lambda c=c, p=p: c.allgather(p, 20) for c, p in zip(ranks, parts, strict=True)]
        assert in_threads(*calls) == [parts] * 3


def test_many_ranks_come_at_once(use: Use, serve: Serve, folder: str) -> None:
    use(folder)
    server = serve(40)
    results = in_threads(
        *(lambda r=r: join(server, r, 20).allgather(b"%d" % r, 20) for r in range(40))
    )
    assert results == [[b"%d" % r for r in range(40)]] * 40


def test_launchers_meet_over_tls(use: Use, folder: str) -> None:
    use(folder)
    server = Server(2, KEY)
    nodes = [Node(server.address, KEY, number, 2) for number in range(2)]
    in_threads(lambda: nodes[0].start(2, 10, server), lambda: nodes[1].start(3, 10, None))
    assert [(node.first, node.size) for node in nodes] == [(0, 5), (2, 5)]
    server.start()
    for rank in range(2):
        nodes[0].rank_ended(rank, 1, 7)
    heard: list[object] = []
    deadline = time.monotonic() + 60
    while len(heard) < 2 and time.monotonic() < deadline:
        heard += nodes[1].hear()
    assert [type(event).__name__ for event in heard] == ["Failed", "Failed"]
    server.close()
    for node in nodes:
        node.abort()


def test_nothing_of_it_is_in_the_clear(use: Use, serve: Serve, folder: str) -> None:
    use(folder)
    server = serve(1)
    seen = bytearray()

    def pass_on(source: socket.socket, to: socket.socket) -> None:
        while data := source.recv(1 << 16):
            seen.extend(data)
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay() -> None:
            near, _ = listener.accept()
            with near, socket.create_connection((server.host, server.port)) as far:
                in_threads(lambda: pass_on(near, far), lambda: pass_on(far, near))

        thread = threading.Thread(target=relay)
        thread.start()
        client = Client(f"127.0.0.1:{listener.getsockname()[1]}", KEY, 0, 1, 10)
        assert client.allgather(b"what nobody shall see", 10) == [b"what nobody shall see"]
        client.close()
        thread.join(10)
    assert len(seen) > 1000
    for secret in (b"MALT", b"what nobody", KEY):
        assert secret not in seen


def refusal(server: Server) -> str:
    """What a rank is told, and in a fraction of the time that it has."""
    start = time.monotonic()
    with pytest.raises(ConfigError) as info:
        join(server, 0, 60)
    assert time.monotonic() - start < 15
    assert KEY.hex() not in str(info.value)
    return str(info.value)


def test_plain_rank_is_told_that_the_launcher_uses_tls(use: Use, serve: Serve, folder: str) -> None:
    use(folder)
    server = serve(2)
    use(None)
    assert "the other end uses TLS, and this one does not" in refusal(server)


def test_tls_rank_is_told_that_the_launcher_does_not(use: Use, serve: Serve, folder: str) -> None:
    use(None)
    server = serve(2)
    use(folder)
    assert "protocol version" in refusal(server)


def test_certificates_of_another_authority_are_refused(
    use: Use, serve: Serve, folder: str, strangers: str
) -> None:
    use(folder)
    server = serve(2)
    use(strangers)
    assert "certificate verify failed" in refusal(server)


def test_expired_certificate_is_refused_where_it_is(
    use: Use, serve: Serve, folder: str, expired: str
) -> None:
    use(folder)
    server = serve(2)
    use(expired)
    assert f"{expired}/cert.pem: certificate has expired" in refusal(server)


def test_certificate_alone_is_not_enough(use: Use, serve: Serve, folder: str) -> None:
    use(folder)
    server = serve(2)
    with pytest.raises(ConfigError, match="does not have this job's key"):
        Client(server.address, b"x" * 32, 0, 2, 10)


@pytest.mark.parametrize("file", ["cert.pem", "key.pem", "ca.pem"])
def test_file_that_cannot_be_used_is_named(
    use: Use, folder: str, strangers: str, tmp_path: Path, file: str
) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(folder, spoilt)
    use(str(spoilt))
    (spoilt / file).write_text("nothing of the kind")
    with pytest.raises(ConfigError, match=rf"MALT_TLS: {spoilt}/{file}: .*PEM"):
        Server(1, KEY)
    (spoilt / file).unlink()
    with pytest.raises(ConfigError, match=rf"MALT_TLS: {spoilt}/{file}: No such file"):
        Client("127.0.0.1:1", KEY, 0, 1, 1)
    if file == "key.pem":
        shutil.copy(f"{strangers}/key.pem", spoilt / file)
        with pytest.raises(ConfigError, match=rf"MALT_TLS: {spoilt}/{file}: .*mismatch"):
            Server(1, KEY)


def test_half_open_flood_lets_ranks_in(use: Use, serve: Serve, folder: str) -> None:
    use(folder)
    server = serve(1)
    flood = []
    for number in range(300):
        flood.append(stranger := socket.create_connection((server.host, server.port)))
        if number % 3 == 1:
            stranger.sendall(b"\x16\x03\x01\x02\x00\x01")
        if number % 3 == 2:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert join(server, 0).allgather(b"x", 10) == [b"x"]
    assert server._listener.half_open <= 64
    assert is_closed(flood[2])
    for stranger in flood:
        stranger.close()


# Jobs

EXCHANGE = """
malt.init(transport="tcp")
own, row = np.zeros(1_250_000, "float32"), np.zeros(1000)
v, q = malt.vector(own), malt.vector(row, policy="queue", depth=4)
sums, queued = [], []
for i in range(5):
    own[:] = np.arange(own.size) % 1000 + rank + i
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    sums.append(float(own.sum(dtype="float64")))
    row[:] = rank + 10 * i
    q.scatter()
    q.gather(malt.SUM, staleness=0)
    queued.append(row.tolist())
tell(sums=sums, queued=queued)
malt.barrier()
"""


def test_job_over_tls_folds_exactly(folder: str, tmp_path: Path) -> None:
    result = run_job(tmp_path, 3, EXCHANGE, environ={"MALT_TLS": folder})
    base = 1250 * sum(range(1000))
    for sums in result.each("sums"):
        assert sums == [3 * base + 1_250_000 * (3 + 3 * i) for i in range(5)]
    for queued in result.each("queued"):
        assert queued == [[3.0 + 30 * i] * 1000 for i in range(5)]


ODD_ONE_OUT = """
if rank == 1:
    os.environ["MALT_TLS"] = OTHER
error = error_of(malt.init, transport="tcp", timeout=60)
tell(error=error)
"""


def expect_refused(result: Result, *parts: str) -> None:
    """Rank 1 says what is wrong, and the others, soon, that rank 1 does not come."""
    first, odd, third = result.each("error")
    assert odd.kind == "ConfigError"
    assert odd.says(*parts)
    for other in (first, third):
        assert other.kind == "PeerError"
        assert other.ranks == (1,)
    assert all(error.seconds < 15 for error in (first, odd, third))
    assert KEY.hex() not in result.output


def test_rank_without_tls_is_refused(folder: str, tmp_path: Path) -> None:
    result = run_job(tmp_path, 3, ODD_ONE_OUT, environ={"MALT_TLS": folder}, OTHER="")
    expect_refused(result, "the other end uses TLS")


def test_rank_of_another_authority_is_refused(folder: str, strangers: str, tmp_path: Path) -> None:
    result = run_job(tmp_path, 3, ODD_ONE_OUT, environ={"MALT_TLS": folder}, OTHER=strangers)
    expect_refused(result, "certificate verify failed")


def test_rank_whose_certificate_has_run_out_is_refused(
    folder: str, expired: str, tmp_path: Path
) -> None:
    result = run_job(tmp_path, 3, ODD_ONE_OUT, environ={"MALT_TLS": folder}, OTHER=expired)
    expect_refused(result, f"{expired}/cert.pem", "expired")


def test_a_private_key_that_others_can_read_is_warned_of_once(
    tmp_path: Path, authority: Authority
) -> None:
    folder = authority.issue("exposed")
    key = Path(folder, "key.pem")
    key.chmod(0o644)
    environ = {"MALT_TLS": folder, "MALT_TRANSPORT": "tcp"}
    result = run_job(tmp_path, 2, "malt.init(timeout=20)", environ=environ)
    assert result.code == 0
    assert result.output.count("others can read or write it") == 1
    assert f"(mode 0644): chmod 600 {key}" in result.output
