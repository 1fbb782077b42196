"""`malt doctor` on hosts whose network, or whose kernel's settings, have a fault."""

from __future__ import annotations

import re
import subprocess
import sys
import time

from host_jobs import HostJob

from hosts import Hosts, ipv4

LOOP = """
malt.init(timeout=60, silence=60)
w = np.zeros(numbers, np.float32)
v = malt.vector(w)
tell(ready=True, pid=os.getpid())
while v.iteration < goal():
    v.scatter()
    v.gather(malt.AVG, staleness=staleness)
    time.sleep(0 if staleness is not None else 0.01)
"""


def doctor(hosts: Hosts, host: int, seconds: float = 0.2) -> str:
    """What it says there, whatever its exit code."""
    own = [sys.executable, "-m", "malt", "doctor", "--seconds", str(seconds)]
    command = hosts.command_on(host, *own)
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def start(hosts: Hosts, numbers: int = 100, staleness: int | None = 0) -> HostJob:
    """A job of two hosts whose ranks send each other so many numbers, again and again."""
    given = {"numbers": numbers, "staleness": staleness}
    return HostJob(hosts, LOOP, "--record", on=(0, 1), ranks=1, **given)


def await_said(hosts: Hosts, text: str, seconds: float = 0.2) -> list[str]:
    """Ask on both hosts until one of them says so; returns what they say."""
    deadline = time.monotonic() + 60
    while True:
        said = [doctor(hosts, host, seconds) for host in (0, 1)]
        if any(text in one for one in said):
            return said
        assert time.monotonic() < deadline, said


def test_a_firewall_between_ranks_is_found(hosts: Hosts) -> None:
    # The launchers' port stays open; those of ranks, which the system chooses, are dropped.
    rule = "add rule inet cuts input tcp dport >= 32768 tcp sport >= 32768 drop"
    for host in (0, 1):
        hosts.run(host, "nft", *rule.split())
    job = start(hosts)
    said = await_said(hosts, "gets no answer")  # only the caller of a connection waits for it
    assert any(f"Rank {rank} sends to {ipv4(1 - rank)}:" in said[rank] for rank in (0, 1)), said
    assert not job.has_ended


def test_a_firewall_that_cuts_an_open_connection_is_found(hosts: Hosts) -> None:
    job = start(hosts)
    job.await_told("ready")
    hosts.cut((0, 1), (1, 0))
    await_said(hosts, "again and again, and gets no answer")


def test_a_firewall_that_refuses_is_found(hosts: Hosts) -> None:
    rule = "add rule inet cuts input tcp dport >= 32768 tcp flags & (syn|ack) == syn"
    rule += " reject with tcp reset"
    for host in (0, 1):
        hosts.run(host, "nft", *rule.split())
    job = start(hosts)
    said = await_said(hosts, "Its calls are refused: a firewall rejects them")
    for rank in (0, 1):
        if "refused" in said[rank]:
            (port,) = re.findall(
                rf"Rank {rank} cannot reach port (\d+) of rank {1 - rank}", said[rank]
            )
            assert f":{port} " in hosts.run(1 - rank, "ss", "-tlnH")
    for host in (0, 1):
        hosts.run(host, "nft", "flush", "chain", "inet", "cuts", "input")
    job.await_told("ready")
    assert not any("cannot reach" in doctor(hosts, host) for host in (0, 1))
    job.set_goal(5)
    job.finish()


def test_a_network_slower_than_its_link_is_found(hosts: Hosts) -> None:
    hosts.slow(0, "50mbit")  # the link itself says 10 Gb/s
    job = start(hosts, numbers=300_000)
    job.await_told("ready")
    said = await_said(hosts, "is slower than its link", seconds=1)
    for rank in (0, 1):
        if "is slower than" in said[rank]:
            assert f"data of rank {rank} for {ipv4(1 - rank)} waited here" in said[rank]
            assert "of its link's 10 Gb/s" in said[rank]
            (rate,) = re.findall(r"eth0 sent at most ([\d.]+) Mb/s", said[rank])
            assert 10 < float(rate) < 200
    job.set_goal(5)
    job.finish()


def test_a_receiver_that_is_stopped_is_no_slow_network(hosts: Hosts) -> None:
    job = start(hosts, numbers=300_000, staleness=None)
    job.await_told("ready")
    process = str(job.told(1)["pid"])
    hosts.run(1, "kill", "-STOP", process)
    assert "slower than its link" not in doctor(hosts, 0, seconds=1)
    hosts.run(1, "kill", "-CONT", process)
    job.set_goal(5)
    job.finish()


def test_a_proc_that_hides_processes_is_found(hosts: Hosts) -> None:
    hosts.run(0, "mount", "-o", "remount,hidepid=2", "/proc")
    job = start(hosts)
    job.await_told("ready")
    said = doctor(hosts, 0)
    assert "/proc hides other users' processes" in said
    assert "/proc hides" not in doctor(hosts, 1)
    job.set_goal(5)
    job.finish()
