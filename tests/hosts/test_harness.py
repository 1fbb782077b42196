"""The hosts themselves: what joins them, what keeps them apart, and that faults are as they say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts import Hosts, Process, ipv4, ipv6

PORT = 7000
LIST = ("sh", "-c", "cat /proc/[0-9]*/comm")  # the names of the processes
BOTH = pytest.mark.parametrize("address_of", [ipv4, ipv6])


def wait_until(is_true: Callable[[], object], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def start_server(hosts: Hosts, host: int, script: str) -> Process:
    """Start Python; returns when it has printed "open"."""
    server = hosts.start(host, [sys.executable, "-c", script])
    assert wait_until(lambda: server.output == "open\n" or server.poll() is not None)
    assert server.poll() is None, server.output
    return server


def arrives(hosts: Hosts, src: int, dst: int, address_of: Callable[[int], str]) -> bool:
    """Whether a datagram gets from one host to another."""
    is_ipv6 = address_of is ipv6
    opened = (
        "import socket, sys\n"
        f"s = socket.socket(socket.AF_INET{6 if is_ipv6 else ''}, socket.SOCK_DGRAM)\n"
    )

    def send(host: int, text: str, address: str) -> None:
        script = opened + f"s.sendto({text.encode()!r}, ({address!r}, {PORT}))"
        hosts.run(host, sys.executable, "-c", script)

    receive = f"s.bind(('', {PORT})); print('open', flush=True); sys.exit(s.recv(9) != b'sent')"
    receiver = start_server(hosts, dst, opened + receive)
    send(src, "sent", address_of(dst))
    # If it has come by now, it is the first that a receiver reads, however late that is.
    if not wait_until(lambda: receiver.poll() is not None, 0.7):
        send(dst, "end", "::1" if is_ipv6 else "127.0.0.1")
    return receiver.wait(20) == 0


def megabytes_a_second(hosts: Hosts, src: int, dst: int, megabytes: int) -> float:
    """Of a TCP stream."""
    listen = (
        f"import socket; s = socket.create_server(('', {PORT})); print('open', flush=True)\n"
        "c, _ = s.accept()\nwhile c.recv(1 << 20): pass\nc.send(b'x')"
    )
    start_server(hosts, dst, listen)
    send = (
        "import socket, time\n"
        f"s = socket.create_connection(('{ipv4(dst)}', {PORT}))\n"
        f"start = time.monotonic(); s.sendall(bytes({megabytes} << 20)); s.shutdown(1); s.recv(1)\n"
        f"print({megabytes} / (time.monotonic() - start))"
    )
    return float(hosts.run(src, sys.executable, "-c", send))


@BOTH
def test_every_host_reaches_every_other(hosts: Hosts, address_of: Callable[[int], str]) -> None:
    for src in range(3):
        for dst in range(3):
            assert src == dst or arrives(hosts, src, dst, address_of), (src, dst)


def test_hosts_share_neither_processes_nor_names_nor_shared_memory(hosts: Hosts) -> None:
    sleeper = hosts.start(0, ["sleep", "100"])
    assert wait_until(lambda: "sleep" in hosts.run(0, *LIST))
    assert "sleep" not in hosts.run(1, *LIST)
    assert sleeper.poll() is None
    assert [hosts.run(host, "uname", "-n") for host in (0, 1)] == ["host0\n", "host1\n"]
    hosts.run(0, "touch", "/dev/shm/mine")
    assert hosts.run(1, "ls", "/dev/shm") == ""


def test_exit_codes_output_directory_and_environment_are_the_programs(hosts: Hosts) -> None:
    process = hosts.start(1, ["sh", "-c", "pwd; echo $A; exit 5"], env={**os.environ, "A": "b"})
    assert process.wait(20) == 5
    assert process.output == f"{hosts.directory}\nb\n"


@BOTH
def test_cut_is_one_way_and_of_one_pair(hosts: Hosts, address_of: Callable[[int], str]) -> None:
    hosts.cut((0, 1))
    assert not arrives(hosts, 0, 1, address_of)
    for src, dst in [(1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]:
        assert arrives(hosts, src, dst, address_of), (src, dst)
    hosts.heal((0, 1))
    assert arrives(hosts, 0, 1, address_of)


@BOTH
def test_link_that_is_down_passes_nothing_until_it_is_up(
    hosts: Hosts, address_of: Callable[[int], str]
) -> None:
    hosts.link(1, up=False)
    assert not arrives(hosts, 0, 1, address_of)
    assert not arrives(hosts, 1, 0, address_of)
    assert arrives(hosts, 0, 2, address_of)
    hosts.link(1, up=True)
    assert arrives(hosts, 0, 1, address_of)
    assert arrives(hosts, 1, 0, address_of)


def test_slow_link_is_slow_in_each_direction_and_alone(hosts: Hosts) -> None:
    hosts.slow(1, "8mbit")  # 1 MB/s, of which headers take some
    assert 0.6 < megabytes_a_second(hosts, 0, 1, 1) < 1.1
    assert 0.6 < megabytes_a_second(hosts, 1, 0, 1) < 1.1
    assert megabytes_a_second(hosts, 0, 2, 20) > 5
    hosts.fast(1)
    assert megabytes_a_second(hosts, 0, 1, 20) > 5


def test_bytes_and_packets_are_counted_where_they_are_sent(hosts: Hosts) -> None:
    before = [(hosts.bytes_sent(h), hosts.packets_sent(h)) for h in range(3)]
    megabytes_a_second(hosts, 0, 1, 10)
    sent = [(hosts.bytes_sent(h), hosts.packets_sent(h)) for h in range(3)]
    by_host = [(s[0] - b[0], s[1] - b[1]) for s, b in zip(sent, before, strict=True)]
    assert 10 << 20 < by_host[0][0] < 1.06 * (10 << 20)
    assert by_host[0][1] >= (10 << 20) / 65536
    assert by_host[1][0] < 1 << 20  # acknowledgements
    assert by_host[2][0] < 10_000


def test_kill_ends_every_process_of_the_host_and_no_other(hosts: Hosts) -> None:
    killed = [hosts.start(1, ["sleep", "100"]) for _ in range(3)]
    other = hosts.start(0, ["sleep", "100"])
    assert wait_until(lambda: hosts.run(1, *LIST).split().count("sleep") == 3)
    hosts.kill(1)
    assert [process.wait(20) for process in killed] == [-signal.SIGKILL] * 3
    assert other.poll() is None
    assert arrives(hosts, 0, 1, ipv4)


@pytest.mark.parametrize("end", ["close", "SIGKILL"])
def test_nothing_is_left_behind(hosts: Hosts, tmp_path: Path, end: str) -> None:
    script = (
        "import sys, time; from pathlib import Path; from hosts import Hosts\n"
        f"with Hosts(Path({str(tmp_path)!r})) as hosts:\n"
        "    hosts.start(0, ['setsid', 'sleep', '100'])\n"
        "    print(hosts.pid_of_namespaces(0), flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout
        network = os.readlink(f"/proc/{int(owner.stdout.readline())}/ns/net")
        assert wait_until(lambda: any(name.startswith("sleep") for name in users_of(network)))
        if end == "SIGKILL":
            owner.kill()
    assert wait_until(lambda: not users_of(network)), users_of(network)


def users_of(network: str) -> list[str]:
    """The processes in a network namespace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is none of ours
            if os.readlink(process / "ns/net") == network:
                found.append((process / "cmdline").read_text())
    return found
