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
w = np.zeros(100, np.float32)
v = malt.vector(w)
tell(ready=True)
while v.iteration < goal():
    v.scatter()
    v.gather(malt.AVG, staleness=0)
"""


def doctor(hosts: Hosts, host: int) -> str:
    """What it says there, whatever its exit code."""
    own = [sys.executable, "-m", "malt", "doctor", "--seconds", "0.2"]
    command = hosts.command_on(host, *own)
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def start(hosts: Hosts) -> HostJob:
    """A job of two hosts whose ranks send to each other again and again."""
    return HostJob(hosts, LOOP, "--record", on=(0, 1), ranks=1)


def await_said(hosts: Hosts, text: str) -> list[str]:
    """Ask on both hosts until one of them says so; returns what they say."""
    deadline = time.monotonic() + 60
    while True:
        said = [doctor(hosts, host) for host in (0, 1)]
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


def test_a_proc_that_hides_processes_is_found(hosts: Hosts) -> None:
    hosts.run(0, "mount", "-o", "remount,hidepid=2", "/proc")
    job = start(hosts)
    job.await_told("ready")
    said = doctor(hosts, 0)
    assert "/proc hides other users' processes" in said
    assert "/proc hides" not in doctor(hosts, 1)
    job.set_goal(5)
    job.finish()
