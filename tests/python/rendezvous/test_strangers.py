"""Where a job listens, and what it makes of strangers there."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import Running, run_job, start_job

# Goes on until the test raises the flag, which all ranks see in the same round.
ROUNDS = """
tell(key=os.environ.get("MALT_JOB_KEY"))
malt.init(transport=TRANSPORT)
values = np.zeros(1000)
v = malt.vector(values)
i = wrong = 0
while values[0] == 0:
    i += 1
    values[0] = flag_is_up("stop")
    values[1:] = rank + i
    v.scatter()
    v.gather(malt.SUM, staleness=0)
    wrong += not (values[1:] == sum(range(size)) + size * i).all()
    tell(rounds=i, wrong=wrong, pid=os.getpid(), alive=malt.alive())
    time.sleep(0.001)
malt.barrier()
"""


@contextlib.contextmanager
def going_on(
    directory: Path, transport: str, size: int = 3, environ: dict[str, str] | None = None
) -> Iterator[Running]:
    """A job that must go on undisturbed to the end of the block, and a little longer."""
    body = f"TRANSPORT = {transport!r}\n{ROUNDS}"
    with start_job(directory, size, body, environ=environ or {}) as job:
        job.await_told("rounds")
        yield job
        await_rounds(job, 20)
        job.raise_flag("stop")
        result = job.finish()
    assert result.code == 0, result.output
    assert result.each("wrong") == [0] * size
    assert result.each("alive") == [tuple(range(size))] * size


def await_rounds(job: Running, more: int) -> None:
    goal = job.told(0)["rounds"] + more
    deadline = time.monotonic() + 100
    while job.told(0)["rounds"] < goal:
        assert not job.has_ended, job.output
        assert time.monotonic() < deadline, f"the job stands still:\n{job.output}"
        time.sleep(0.02)


def listening(process: int) -> list[tuple[str, int]]:
    """Where a process listens."""
    links = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(link))
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path(f"/proc/{process}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                address, port = fields[1].split(":")
                words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
                host = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
                found.append((host, int(port, 16)))
    return found


def doors(job: Running) -> list[tuple[str, int]]:
    """Where the ranks listen, by rank."""
    found = [listening(pid) for pid in job.await_told("pid")]
    assert [len(ports) for ports in found] == [1] * job.size
    return [ports[0] for ports in found]


def test_ranks_of_one_host_listen_nowhere(tmp_path: Path) -> None:
    with going_on(tmp_path, "auto") as job:
        assert [listening(pid) for pid in job.await_told("pid")] == [[]] * 3
        assert [host for host, _ in listening(job.launcher.pid)] == ["127.0.0.1"]


def test_tcp_on_one_host_listens_on_loopback_alone(tmp_path: Path) -> None:
    with going_on(tmp_path, "tcp") as job:
        assert [host for host, _ in doors(job)] == ["127.0.0.1"] * 3
        assert [host for host, _ in listening(job.launcher.pid)] == ["127.0.0.1"]


def test_flood_of_half_open_connections_does_not_stop_a_job(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    with contextlib.ExitStack() as stack, going_on(tmp_path, "tcp") as job:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        pids = job.await_told("pid")
        before = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
        for door in doors(job):
            for number in range(1000):
                stranger = stack.enter_context(socket.create_connection(door, 5))
                if number % 3:
                    stranger.sendall(b"MALT"[: number % 3 + 1])
        await_rounds(job, 50)
        for pid, descriptors in zip(pids, before, strict=True):
            # The most that are half open, and the next, for which the oldest makes way.
            assert len(os.listdir(f"/proc/{pid}/fd")) <= descriptors + 65


def say(to: tuple[str, int], message: bytes) -> bytes:
    """What comes back until the other end closes, which it must."""
    answer = b""
    with contextlib.suppress(ConnectionError), socket.create_connection(to, 10) as stranger:
        stranger.sendall(message)
        while data := stranger.recv(4096):
            answer += data
    return answer


def test_strangers_at_every_port_hear_nothing_and_change_nothing(tmp_path: Path) -> None:
    hello = struct.pack("<4sII32s", b"MALT", 1, 0x01020304, b"n" * 32)
    messages = (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 512,
        hello[:-1] + b"\xff" * 200,
        hello + b"\0" * 56,
        os.urandom(4096),
        b"\0" * 100_000,
    )
    with going_on(tmp_path, "tcp") as job:
        key = bytes.fromhex(job.await_told("key")[0])
        for port in [*doors(job), *listening(job.launcher.pid)]:
            for message in messages:
                answer = say(port, message)
                assert len(answer) <= 76  # a hello, and zeros
                assert key not in answer
    assert key.hex() not in job.output


# MALT_INTERFACE


@pytest.mark.parametrize("interface", ["lo", "127.0.0.1", "127.0.0.0/8"])
def test_interface_is_taken_by_name_address_and_network(tmp_path: Path, interface: str) -> None:
    with going_on(tmp_path, "tcp", 2, {"MALT_INTERFACE": interface}) as job:
        assert [host for host, _ in doors(job)] == ["127.0.0.1"] * 2


@pytest.mark.parametrize("interface", ["nosuch0", "203.0.113.0/24", "203.0.113.7", "10.0.0.0/99"])
def test_unknown_interface_is_an_error_that_lists_those_there_are(
    tmp_path: Path, interface: str
) -> None:
    body = 'tell(error=error_of(malt.init, transport="tcp", timeout=60))'
    result = run_job(tmp_path, 2, body, environ={"MALT_INTERFACE": interface})
    for error in result.each("error"):
        assert error.kind == "ConfigError"
        assert error.says("MALT_INTERFACE", interface, "lo", "127.0.0.1")
        assert error.seconds < 15
