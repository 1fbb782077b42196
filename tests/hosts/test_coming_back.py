"""`malt run` on three hosts: ranks that die come back, to those of other hosts too."""

from __future__ import annotations

import sys
import time

import pytest
from host_jobs import HostJob

from hosts import Hosts

ALL = (0, 1, 2, 3, 4, 5)
ON_1 = (2, 3)  # the ranks of host 1

# Rounds, until the test says at which iteration they end: the same for all.
LOOP = """
malt.init(timeout=20, silence=3)
w = np.full(1000, 1.0 + rank)
v = malt.vector(w)
malt.barrier()
tell(pid=os.getpid(), launcher=os.getppid(), start=v.iteration, restarts=malt.jobs.restarts())
while v.iteration < goal():
    w += 0.001
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    tell(at=v.iteration, alive=malt.alive())
    time.sleep(0.005)
s = v.stats()
tell(end=v.iteration, mean=float(w.mean()),
     routes={int(peer): route.transport for peer, route in s.routes.items()},
     lost=s.sent - s.folded - s.overwritten - s.rejected - s.pending - s.to_dead)
malt.barrier()
"""


def start(hosts: Hosts, *arguments: str) -> HostJob:
    job = HostJob(hosts, LOOP, "--respawn", *arguments)
    job.await_told("at")
    return job


def await_round(
    job: HostJob, ranks: tuple[int, ...], restarts: dict[int, int], seconds: float = 40
) -> None:
    """Wait until these ranks, and nobody else, go on together, started again so many times."""
    deadline = time.monotonic() + seconds
    while True:
        told = [job.told(rank) for rank in ranks]
        if all(
            values.get("alive") == ranks and values["restarts"] == restarts.get(rank, 0)
            for rank, values in zip(ranks, told, strict=True)
        ):
            return
        assert not job.has_ended, job.output
        assert time.monotonic() < deadline, f"{told}\n{job.output}"
        time.sleep(0.02)


def kill(job: HostJob, hosts: Hosts, ranks: tuple[int, ...]) -> None:
    for rank in ranks:
        hosts.run(rank // 2, "kill", "-9", str(job.told(rank)["pid"]))


@pytest.mark.parametrize("killed", [(3,), (0,), ON_1], ids=["one", "of node 0", "all of a host"])
def test_killed_ranks_come_back(hosts: Hosts, killed: tuple[int, ...]) -> None:
    job = start(hosts)
    for life in (1, 2):
        at = job.told(5)["at"]
        kill(job, hosts, killed)
        await_round(job, ALL, dict.fromkeys(killed, life))
        assert all(job.told(rank)["start"] >= at for rank in killed)  # where the others were
    job.set_goal(200)
    told = job.finish()
    assert len({values["end"] for values in told}) == 1
    assert [values["lost"] for values in told] == [0] * job.size
    means = [values["mean"] for values in told]
    assert max(means) - min(means) < 1e-9  # the last rounds averaged all of them
    for rank, values in enumerate(told):
        others = {peer: "shm" if peer // 2 == rank // 2 else "tcp" for peer in ALL if peer != rank}
        assert values["routes"] == others
    assert job.output.count(f"rank {killed[0]} on node {killed[0] // 2} died of SIGKILL") == 2


@pytest.mark.parametrize("fault", ["dies", "is cut off"])
def test_without_a_host_the_others_go_on_and_still_come_back(hosts: Hosts, fault: str) -> None:
    job = start(hosts, "--keep-going")
    if fault == "dies":
        hosts.kill(1)
    else:
        hosts.link(1, up=False)
    left = (0, 1, 4, 5)
    await_round(job, left, {})
    kill(job, hosts, (4,))
    await_round(job, left, {4: 1})
    job.set_goal(200)
    for rank in left:
        job.await_told("mean", ranks=[rank])
        assert job.told(rank)["lost"] == 0
    if fault == "dies":  # else the launchers try for longer to reach it
        assert [job.launchers[node].wait(30) for node in (0, 2)] == [1, 1]
        assert "node 1 is lost" in job.output


def test_without_host_0_the_others_still_come_back(hosts: Hosts) -> None:
    """Its launcher had the job's books: another one takes them over, and so there are two."""
    job = start(hosts, "--keep-going")
    hosts.link(0, up=False)
    left = (2, 3, 4, 5)
    await_round(job, left, {})
    kill(job, hosts, (4,))
    await_round(job, left, {4: 1}, seconds=90)  # a host is lost after 30 s without a word
    assert "node 1 has taken over the job's books" in job.output
    assert job.launchers[0].wait(60) == 1  # its ranks are the minority
    assert "PeerError" in job.launchers[0].output
    job.set_goal(job.told(4)["at"] + 200)
    for rank in left:
        job.await_told("mean", ranks=[rank])
        assert job.told(rank)["lost"] == 0
    assert [job.launchers[node].wait(30) for node in (1, 2)] == [1, 1]


def test_ranks_of_a_lost_host_are_started_on_the_others(hosts: Hosts) -> None:
    """Where they were before, TCP led to them; now memory does, from their own host."""
    job = HostJob(hosts, LOOP, "--elastic", "2:6")
    job.await_told("at")
    hosts.kill(1)
    await_round(job, (0, 1, 4, 5), {})
    command = [sys.executable, "-m", "malt", "scale", str(job.told(4)["launcher"]), "6"]
    assert hosts.run(2, *command) == "malt scale: started: ranks 2, 3\n"
    await_round(job, ALL, {2: 1, 3: 1})
    job.set_goal(200)
    job.await_told("lost")
    assert [job.launchers[node].wait(30) for node in (0, 2)] == [1, 1]
    told = [job.told(rank) for rank in ALL]
    assert [values["lost"] for values in told] == [0] * job.size
    here = [{2: 0, 3: 2}.get(rank, rank // 2) for rank in ALL]  # the host of each
    for rank, values in enumerate(told):
        others = {
            peer: "shm" if here[peer] == here[rank] else "tcp" for peer in ALL if peer != rank
        }
        assert values["routes"] == others
