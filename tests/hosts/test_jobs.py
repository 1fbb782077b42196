"""Jobs of three hosts with two ranks each: what they exchange, and what they make of faults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_jobs import HostJob

from hosts import Hosts, ipv4, ipv6

ALL = set(range(6))
FAULTY = {2, 3}  # the ranks of host 1, to which the faults happen
MB = 1 << 20
AT_ONCE = 3.0  # seconds, on a busy machine: who is merely silent is missed for 5 s first


@pytest.mark.parametrize("address", [ipv4(0), f"[{ipv6(0)}]"])
def test_every_round_brings_exactly_what_the_neighbours_sent(hosts: Hosts, address: str) -> None:
    job = HostJob(
        hosts,
        """
malt.init(timeout=20)
wrong, heard = [], {}
for name in ("ALL", "HALTON"):
    graph, w = GRAPHS[name], np.zeros(1000)
    v = malt.vector(w, graph=graph)
    senders = graph.in_(rank, size)
    for t in range(100):
        mine = 1000 * t + rank + np.arange(1000) / 1024
        w[:] = mine
        v.scatter()
        got = v.gather(malt.SUM, staleness=0)
        expected = mine + sum(1000 * t + s + np.arange(1000) / 1024 for s in senders)
        if got.ranks != tuple(senders) or not np.array_equal(w, expected): wrong.append((name, t))
    heard[name] = got.ranks
w[:] = rank
v.allreduce(malt.SUM)
tell(wrong=wrong, heard=heard, sum=w[0], alive=malt.alive())
malt.barrier()
""",
        address=address,
    )
    for rank, told in enumerate(job.finish()):
        assert told["wrong"] == []
        assert set(told["heard"]["ALL"]) == ALL - {rank}
        assert told["sum"] == 15
        assert set(told["alive"]) == ALL


def test_svm_learns_over_hosts_what_it_learns_on_one(hosts: Hosts, tmp_path: Path) -> None:
    svm = Path(__file__).resolve().parents[2] / "examples" / "svm.py"

    def train(on: tuple[int, ...], ranks: int) -> Any:
        results = tmp_path / f"svm-{len(on)}.json"
        knobs = ["--epochs", "4", "--staleness", "0", "--results", results]
        HostJob(hosts, on=on, ranks=ranks, command=[svm, *knobs]).finish()
        return json.loads(results.read_text())

    one, three = train((0,), 6), train((0, 1, 2), 2)
    assert three["ranks"] == 6
    assert three["final_error"] == one["final_error"] < 0.065
    assert three["model_sha256"] == one["model_sha256"]


# ---- Ranks and hosts that are lost ---------------------------------------------------------------

# Every rank makes all its rounds, and waits in each for everyone that is alive: at first not for
# long, then until the job's own limit. 180 rounds are time enough for the test to break something.
ROUNDS = """
malt.init(timeout=30)
w = np.zeros(100)
v = malt.vector(w)
malt.barrier()
errors, slowest = [], 0.0
for t in range(200):
    if t == 20: tell(underway=True, pid=os.getpid())
    w[:] = 1
    start = time.monotonic()
    error = error_of(v.scatter) or error_of(
        v.gather, malt.SUM, staleness=0, timeout=patience)
    if error is not None and error.kind == "TimeoutError":
        errors.append(error)
        error = error_of(v.gather, malt.SUM, staleness=0)
    if error is not None:
        tell(out=error, ended=time.monotonic(), alive=malt.alive())
        await_flag("over"), sys.exit()
    if time.monotonic() - start > slowest:
        slowest, went_on = time.monotonic() - start, time.monotonic()
    time.sleep(0.01)
tell(errors=errors, slowest=slowest, went_on=went_on, alive=malt.alive(), sum=w[0])
start = time.monotonic()
malt.barrier()
tell(barrier=time.monotonic() - start)
await_flag("over")  # who leaves is not alive either
"""


def measured(fault: str, rank: int, seconds: float, told: dict[str, Any]) -> None:
    said = [str(error) for error in told["errors"]]  # pytest -rP shows this
    print(f"{fault}: rank {rank} went on after {seconds:.2f} s, alive {told['alive']}; {said}")


def test_killed_rank_is_left_out_at_once(hosts: Hosts) -> None:
    job = HostJob(hosts, ROUNDS, "--keep-going", patience=30.0)
    job.await_told("underway")
    hosts.run(1, "kill", "-9", str(job.told(3)["pid"]))
    survivors = ALL - {3}
    job.await_told("barrier", ranks=survivors)
    for rank in survivors:
        told = job.told(rank)
        measured("SIGKILL of rank 3", rank, told["slowest"], told)
        assert told["slowest"] < AT_ONCE
        assert told["barrier"] < AT_ONCE
        assert (set(told["alive"]), told["sum"]) == (survivors, len(survivors))


def pull_the_cable(hosts: Hosts) -> None:
    hosts.link(1, up=False)


def be_heard_by_nobody(hosts: Hosts) -> None:
    hosts.cut((1, 0), (1, 2))


def hear_nobody(hosts: Hosts) -> None:
    hosts.cut((0, 1), (2, 1))


@pytest.mark.parametrize("fault", [pull_the_cable, be_heard_by_nobody, hear_nobody])
def test_host_that_falls_silent_is_left_out_and_stops(
    hosts: Hosts, fault: Callable[[Hosts], None]
) -> None:
    """Five seconds of silence and two to agree; twice as long to be sure that nobody comes back."""
    job = HostJob(hosts, ROUNDS, "--keep-going", patience=2.0)
    job.await_told("underway")
    lost = time.monotonic()
    fault(hosts)
    survivors = ALL - FAULTY
    job.await_told("barrier", ranks=survivors)
    for rank in survivors:
        told = job.told(rank)
        measured(f"{fault.__name__} of host 1", rank, told["went_on"] - lost, told)
        assert told["went_on"] - lost < 5 + AT_ONCE
        assert (set(told["alive"]), told["sum"]) == (survivors, len(survivors))
        assert told["barrier"] < AT_ONCE
        first = told["errors"][0]
        assert (first.kind, first.seconds < 2 + AT_ONCE) == ("TimeoutError", True)
    # Only who is behind waits for lost ranks alone; who is ahead waits for those behind as well.
    assert any(set(job.told(rank)["errors"][0].ranks) <= FAULTY for rank in survivors)
    job.await_told("out", ranks=FAULTY)
    for rank in FAULTY:
        told = job.told(rank)
        assert told["ended"] - lost < 15 + AT_ONCE
        assert told["out"].kind == "PeerError"
        assert told["out"].says(f"rank {rank} is cut off", "for 5 s", "no majority")


@pytest.mark.parametrize("tie", ["lowest", "neither"])
def test_of_two_halves_that_of_the_lowest_rank_goes_on(hosts: Hosts, tie: str) -> None:
    body = ROUNDS.replace("timeout=30", f"timeout=30, silence=1, tie={tie!r}")
    job = HostJob(hosts, body, "--keep-going", on=(0, 1), patience=0.5)
    job.await_told("underway")
    hosts.link(1, up=False)
    if tie == "lowest":
        job.await_told("barrier", ranks={0, 1})
        assert job.told(0)["alive"] == (0, 1)
    for rank in {0, 1, 2, 3} if tie == "neither" else {2, 3}:
        job.await_told("out", ranks={rank})
        assert job.told(rank)["out"].says("is cut off")


def test_stopped_rank_is_left_out_and_learns_so(hosts: Hosts) -> None:
    body = ROUNDS.replace("timeout=30", "timeout=30, silence=1")
    job = HostJob(hosts, body, "--keep-going", patience=30.0)
    job.await_told("underway")
    pid = str(job.told(3)["pid"])
    hosts.run(1, "kill", "-STOP", pid)
    survivors = ALL - {3}
    job.await_told("barrier", ranks=survivors)
    hosts.run(1, "kill", "-CONT", pid)
    for rank in survivors:
        told = job.told(rank)
        measured("SIGSTOP of rank 3", rank, told["slowest"], told)
        assert told["slowest"] < 1 + AT_ONCE
        assert (set(told["alive"]), told["sum"]) == (survivors, len(survivors))
    job.await_told("out", ranks={3})
    assert job.told(3)["out"].says("rank 3 was evicted from the job", "for 1 s")


@pytest.mark.parametrize("apart", [0, 0.4])
def test_ranks_beside_stopped_ones_stay_in_the_job(hosts: Hosts, apart: float) -> None:
    """Of two hosts the first two are stopped, which the first rank of the other calls in turn."""
    body = ROUNDS.replace("timeout=30", "timeout=30, silence=1")
    job = HostJob(hosts, body, "--keep-going", ranks=5, patience=30.0)
    job.await_told("underway")
    stopped = [5, 10, 6, 11]
    for rank in stopped:
        hosts.run(rank // 5, "kill", "-STOP", str(job.told(rank)["pid"]))
        time.sleep(apart if rank == 10 else 0)
    survivors = set(range(15)) - set(stopped)
    job.await_told("barrier", ranks=survivors)
    for rank in survivors:
        assert set(job.told(rank)["alive"]) == survivors


@pytest.mark.parametrize("on", [(0, 1, 2), (0, 1)], ids=["three hosts", "two"])
@pytest.mark.parametrize("host", [0, 1])
def test_killed_ranks_of_a_whole_host_are_left_out_at_once(
    hosts: Hosts, on: tuple[int, ...], host: int
) -> None:
    """Their witnesses prove it: of two hosts either goes on, with the lowest rank or without."""
    job = HostJob(hosts, ROUNDS, "--keep-going", on=on, patience=30.0)
    job.await_told("underway")
    killed = {2 * host, 2 * host + 1}
    hosts.run(host, "kill", "-9", *(str(job.told(rank)["pid"]) for rank in killed))
    survivors = set(range(2 * len(on))) - killed
    job.await_told("barrier", ranks=survivors)
    for rank in survivors:
        told = job.told(rank)
        measured(f"SIGKILL of the ranks of host {host}", rank, told["slowest"], told)
        assert told["slowest"] < AT_ONCE
        assert (set(told["alive"]), told["sum"]) == (survivors, len(survivors))


def test_death_is_known_on_a_host_whose_proxy_is_stopped(hosts: Hosts) -> None:
    """Rank 1, by which what rank 3 writes comes to host 0; rank 0 reads of the death elsewhere."""
    job = HostJob(
        hosts,
        """
malt.init(timeout=30, silence=10)
malt.barrier()
tell(pid=os.getpid())
await_flag("killed")
start = time.monotonic()
while 3 in malt.alive(): time.sleep(0.001)
tell(seconds=time.monotonic() - start)
await_flag("over")
""",
        "--keep-going",
        on=(0, 1),
    )
    pids = [str(pid) for pid in job.await_told("pid")]
    hosts.run(0, "kill", "-STOP", pids[1])
    hosts.run(1, "kill", "-9", pids[3])
    job.raise_flag("killed")
    job.await_told("seconds", ranks={0, 2})
    seconds = job.told(0)["seconds"]
    print(f"row proxy stopped: rank 0 knew after {seconds:.2f} s")
    assert seconds < 7  # a quarter of 7.5, after the last that came; by silence it would be 10


def test_host_that_dies_as_a_whole_is_left_out_after_the_silence(hosts: Hosts) -> None:
    """Nobody is left there to prove it."""
    job = HostJob(hosts, ROUNDS, "--keep-going", patience=30.0)
    job.await_told("underway")
    hosts.kill(1)
    survivors = ALL - FAULTY
    job.await_told("barrier", ranks=survivors)
    for rank in survivors:
        told = job.told(rank)
        measured("death of host 1", rank, told["slowest"], told)
        assert 1 < told["slowest"] < 5 + AT_ONCE
        assert (set(told["alive"]), told["sum"]) == (survivors, len(survivors))


def test_link_that_comes_back_has_lost_nothing(hosts: Hosts) -> None:
    job = HostJob(
        hosts,
        """
malt.init(timeout=30)
w = np.zeros(1000)
v = malt.vector(w, policy="queue", depth=4)
seen = {r: [] for r in range(size) if r != rank}
def fold(mine, updates):
    for update in updates: seen[update.rank].append(int(update.values[0]))
slowest = 0.0
for t in range(200):
    if t == 50: tell(underway=True)
    w[:] = t
    start = time.monotonic()
    v.scatter()
    v.gather(fold, staleness=0)
    slowest = max(slowest, time.monotonic() - start)
    time.sleep(0.005)
tell(seen=seen, slowest=slowest, alive=malt.alive())
malt.barrier()
""",
    )
    job.await_told("underway")
    hosts.link(1, up=False)
    time.sleep(1)
    hosts.link(1, up=True)
    for told in job.finish():
        assert all(values == list(range(200)) for values in told["seen"].values())
        assert 0.5 < told["slowest"] < 5
        assert set(told["alive"]) == ALL


# ---- A slow link ---------------------------------------------------------------------------------
def test_slow_link_carries_the_newest_and_slows_nobody_else(hosts: Hosts) -> None:
    """Streams share the link as TCP likes, so an update's age is counted in updates of its own
    stream: one may be on the wire and one behind it, when the newest is taken."""
    hosts.slow(1, "8mbit")
    job = HostJob(
        hosts,
        """
malt.init(timeout=30)
w = np.zeros(12_500)  # 100 KB
v = malt.vector(w)
ages = {r: [] for r in range(size) if r != rank}
torn = 0
def fold(mine, updates):
    global torn
    now = time.monotonic()
    for update in updates:
        ages[update.rank].append(now - update.values[0])
        torn += bool((update.values != update.values[0]).any())
malt.barrier()
end, scatters = time.monotonic() + 6, []
while time.monotonic() < end:
    w[:] = start = time.monotonic()
    v.scatter()
    scatters.append(time.monotonic() - start)
    v.gather(fold)
    time.sleep(0.005)
tell(ages=ages, torn=torn, scatters=scatters)
malt.barrier()
""",
    )
    for rank, told in enumerate(job.finish()):
        assert told["torn"] == 0
        assert sorted(told["scatters"])[len(told["scatters"]) // 2] < 0.05  # an update takes 0.1
        assert max(told["scatters"]) < AT_ONCE
        assert len(told["scatters"]) > 100
        for sender, ages in told["ages"].items():
            assert ages, (sender, rank)
            age = sorted(ages)[len(ages) // 2]
            if (sender in FAULTY) != (rank in FAULTY):
                assert age < 3 * 6 / len(ages), (sender, rank)
            else:
                assert age < 0.1, (sender, rank)
                assert len(ages) > 100, (sender, rank)


def test_slow_link_loses_nothing_of_a_queue(hosts: Hosts) -> None:
    hosts.slow(1, "8mbit")
    job = HostJob(
        hosts,
        """
malt.init(timeout=30)
w = np.zeros(12_500)
v = malt.vector(w, policy="queue", depth=4)
seen = {r: [] for r in range(size) if r != rank}
def fold(mine, updates):
    for update in updates:
        assert (update.values == update.values[0]).all()
        seen[update.rank].append(int(update.values[0]))
start = time.monotonic()
for t in range(10):
    w[:] = t
    v.scatter()
    v.gather(fold, staleness=0)
tell(seen=seen, seconds=time.monotonic() - start)
malt.barrier()
""",
    )
    for told in job.finish():
        assert all(values == list(range(10)) for values in told["seen"].values())
        assert told["seconds"] > 1  # 2 MB at least have gone through


@pytest.mark.parametrize(
    "megabytes",
    [20, pytest.param(205, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
    ids=lambda size: f"{size} MB",
)
def test_heartbeats_get_through_beside_an_update_that_takes_many_silences(
    hosts: Hosts, megabytes: int
) -> None:
    hosts.slow(1, "10mbit")
    job = HostJob(
        hosts,
        """
malt.init(timeout=1000, silence=5)
w = np.full(megabytes * 125_000, rank + 1.0)
v = malt.vector(w)
malt.barrier()
start = time.monotonic()
v.scatter()
v.gather(malt.SUM, staleness=0)
tell(seconds=time.monotonic() - start, alive=malt.alive(), sum=w[[0, -1]].tolist())
malt.barrier()
""",
        ranks=1,
        megabytes=megabytes,
    )
    told = job.finish(1000)
    assert all(one["sum"] == [6, 6] and len(one["alive"]) == 3 for one in told), told
    assert max(one["seconds"] for one in told) > 2 * 8 * megabytes / 10  # what leaves host 1


# ---- Bytes on the wire ---------------------------------------------------------------------------
def test_an_update_goes_once_to_each_host(hosts: Hosts) -> None:
    job = HostJob(
        hosts,
        """
malt.init(timeout=30)
w = np.random.default_rng(rank).random(1 << 17)
v = malt.vector(w)
malt.barrier()
tell(ready=True)
await_flag("go")
v.scatter()
got = v.gather(malt.SUM, staleness=0)
malt.barrier()
tell(heard=got.ranks)
await_flag("over")
""",
        on=(0, 1),
    )
    job.await_told("ready")
    before = [hosts.bytes_sent(host) for host in (0, 1)]
    job.raise_flag("go")
    job.await_told("heard")
    sent = [hosts.bytes_sent(host) - was for host, was in zip((0, 1), before, strict=True)]
    job.raise_flag("over")
    assert [len(told["heard"]) for told in job.finish()] == [3] * 4
    for bytes_sent in sent:
        assert 2 * MB <= bytes_sent <= 1.06 * 2 * MB
