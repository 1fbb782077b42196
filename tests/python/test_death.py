"""Ranks that die or leave: the others notice at once and go on, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from certificates import Authority
from jobs import exists, in_dev_shm, run_job, start_job

# A wait that ends because of a death, and not at its time limit, which is 60 s below.
AT_ONCE = 15.0

# Rank 2 is killed while the others wait for it, in each of the calls that wait.
WAITS = {
    "gather": "v = made; v.scatter(); g = v.gather(malt.SUM, staleness=0); got = (g.ranks, w[0])",
    "ssp": "made.scatter(); made.scatter(); g = made.gather(malt.SUM, staleness=1); got = g.ranks",
    "barrier": "malt.barrier(); got = None",
    "allreduce": "g = made.allreduce(malt.SUM); got = (g.ranks, w[0])",
    "scatter": "got = [queue.scatter()]",
    "vector": "got = len(malt.vector(np.zeros(7)))",
}


@pytest.mark.parametrize("wait", WAITS)
def test_survivors_go_on_at_once_when_a_rank_is_killed(tmp_path: Path, wait: str) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
w = np.full(2, 10.0 ** rank)
made = malt.vector(w)
queue = malt.vector(np.zeros(2), policy="queue", depth=1, graph=malt.Graph(
    [(0, 2), (1, 2), (2, 0), (2, 1)]))
before = malt.alive(), malt.epoch()
if rank == 2:
    raise_flag(os.getpid())
    tell(pid=os.getpid())
    time.sleep(100)
start = time.monotonic()
if rank == 0:
    def kill():
        while not os.path.exists("told-2"): time.sleep(0.01)
        time.sleep(0.3)
        import jobs, pickle
        os.kill(pickle.loads(open("told-2", "rb").read())["pid"], signal.SIGKILL)
        raise_flag("killed")
    threading.Thread(target=kill).start()
if call.startswith("got = [queue"):
    queue.scatter()  # the slot is taken: the next waits for rank 2
exec(call)
seconds = time.monotonic() - start
await_flag("killed")
while malt.epoch() == before[1]: time.sleep(0.001)  # the survivors agree
tell(got=got, seconds=seconds, before=before, after=(malt.alive(), malt.epoch()))
malt.barrier()
tell(to_dead=queue.stats().to_dead)
malt.barrier()
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        call=WAITS[wait],
    )
    for rank in (0, 1):
        told = result.told[rank]
        assert told["seconds"] < AT_ONCE
        assert told["before"] == ((0, 1, 2), told["before"][1])
        assert told["after"] == ((0, 1), told["before"][1] + 1)
        other = 1 - rank
        if wait == "scatter":
            assert told["got"] in ([()], [(2,)])
            assert told["to_dead"] in (1, 2)
            continue
        assert (
            told["got"]
            == {
                "gather": ((other,), 11.0),
                "ssp": (other,),
                "barrier": None,
                "allreduce": ((other,), 11.0),
                "vector": 7,
            }[wait]
        )
    assert re.search("rank 2 died of SIGKILL", result.output)


# From some 10,000 elements on the ranks share out the folding of a gather.
@pytest.mark.parametrize("length", [100, 30_000])
def test_survivors_train_on_when_ranks_die_one_after_the_other(tmp_path: Path, length: int) -> None:
    """BSP over ALL: each round folds all live ranks, and the survivors stay equal bit for bit."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
w = np.full(length, rank + 1.0)
v = malt.vector(w)
seen = []
for step in range(60):
    if (rank, step) in ((3, 20), (1, 40)):
        os.kill(os.getpid(), signal.SIGKILL)
    w += 0.125 * (rank + 1)
    v.scatter()
    g = v.gather(malt.AVG, staleness=0)
    seen.append(tuple(sorted((*g.ranks, rank))))
tell(seen=seen, w=w.tobytes(), alive=malt.alive(), stats=[v.stats().sent, v.stats().folded,
     v.stats().overwritten, v.stats().pending, v.stats().to_dead])
malt.barrier()
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        length=length,
    )
    for rank in (0, 2):
        told = result.told[rank]
        everyone, three, two = (0, 1, 2, 3), (0, 1, 2), (0, 2)
        assert told["seen"] == [everyone] * 20 + [three] * 20 + [two] * 20
        assert told["alive"] == (0, 2)
        sent, folded, overwritten, pending, to_dead = told["stats"]
        assert sent == folded + overwritten + pending + to_dead
    assert result.told[0]["w"] == result.told[2]["w"]


@pytest.mark.parametrize("memory", ["own", "callers"])
def test_a_death_in_the_middle_of_a_long_gather_leaves_no_mixture(
    tmp_path: Path, memory: str
) -> None:
    """Rank 3 is killed at some moment; each round folds it wholly or not, on all ranks alike."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
w = np.zeros(100_000, dtype=np.float32)
v = malt.vector(w) if memory == "callers" else malt.vector((100_000,))
w = v.array
if rank == 3:
    threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGKILL)).start()
rows, without = [], 0
while without < 15:
    w[:] = 10 ** rank
    v.scatter()
    g = v.gather(malt.SUM, staleness=0)
    assert w.min() == w.max() == 10 ** rank + sum(10 ** r for r in g.ranks)
    rows.append(int(w[0]))
    without += 3 not in g.ranks
tell(rows=rows, alive=malt.alive())
malt.barrier()
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        memory=memory,
    )
    rows = result.told[0]["rows"]
    assert rows == result.told[1]["rows"] == result.told[2]["rows"]
    assert set(rows) == {1111, 111}
    assert rows == sorted(rows, reverse=True)
    assert [told["alive"] for told in result.told[:3]] == [(0, 1, 2)] * 3


def test_a_rank_that_finishes_early_does_not_hold_up_the_others(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
w = np.full(2, 10.0 ** rank)
v = malt.vector(w)
q = malt.vector(np.zeros(1), policy="queue", depth=1)
epoch = malt.epoch()
v.scatter()
v.gather(malt.SUM, staleness=0)
if rank == 2:
    malt.finalize()  # and lives on for a while
    await_flag(0), await_flag(1)
    sys.exit()
start = time.monotonic()
w[:] = 10.0 ** rank
v.scatter()
g = v.gather(malt.SUM, staleness=0)
malt.barrier()
q.scatter()
malt.barrier()
q.gather(malt.SUM)
malt.barrier()
q.scatter()
malt.vector(np.zeros(3))
summed = v.allreduce(malt.SUM)
while malt.epoch() == epoch: time.sleep(0.001)  # the others agree
tell(seconds=time.monotonic() - start, got=(g.ranks, w[0]), alive=malt.alive(),
     epochs=malt.epoch() - epoch, summed=summed.ranks)
raise_flag(rank)
malt.barrier()
""",
    )
    for rank in (0, 1):
        told = result.told[rank]
        assert told["seconds"] < AT_ONCE
        assert told["got"] == ((1 - rank,), 22.0)
        assert told["alive"] == (0, 1)
        assert told["epochs"] == 1
        assert told["summed"] == (1 - rank,)


def test_closing_a_vector_leaves_its_rank_out_of_the_others_waits(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60)
w = np.ones(2)
v = malt.vector(w, name="w")
own = malt.vector((2,), name="own 'w'")
if rank == 2:
    v.close()
    own.close()
    tell(closed=[error_of(call) for u in (v, own) for call in (u.scatter, u.gather, u.allreduce)])
else:
    start = time.monotonic()
    while len(v.scatter()) > 1:
        time.sleep(0.01)
    g = v.gather(malt.SUM, staleness=None)
    tell(ranks=v.allreduce(malt.SUM).ranks, seconds=time.monotonic() - start)
    assert own.allreduce(malt.SUM).ranks == (1 - rank,)
tell(alive=malt.alive())
malt.barrier()
""",
    )
    assert result.each("alive") == [(0, 1, 2)] * 3
    for error in result.told[2]["closed"]:
        assert error is not None
        assert error.kind == "ConfigError"
        assert error.says("'w'", "has been closed")
    assert [result.told[r]["ranks"] for r in (0, 1)] == [(1,), (0,)]


@pytest.mark.parametrize("after", [0.0, 0.05, 0.25])
def test_nothing_is_left_of_a_job_that_is_killed_whole(tmp_path: Path, after: float) -> None:
    before = in_dev_shm()
    script = """
tell(pid=os.getpid())
malt.init()
own, w, s = malt.vector((500, 500)), np.ones(250_000), malt.sparse_vector(10_000, capacity=100)
v = malt.vector(w)
tell(maps=open("/proc/self/maps").read())
while True:
    v.scatter(); v.gather(staleness=0); own.allreduce(); s.scatter(); s.gather()
"""
    with start_job(tmp_path, 4, script) as job:
        pids = job.await_told("pid")
        # Without a named file among its shared mappings there is nothing that could be left behind.
        for maps in job.await_told("maps"):
            shared = [line.split(maxsplit=5) for line in maps.splitlines() if " rw-s " in line]
            assert len(shared) >= 4
            assert all(line[-1].startswith("/memfd:malt") for line in shared), shared
        time.sleep(after)
        for pid in (*pids, job.launcher.pid):
            os.kill(pid, signal.SIGKILL)
        job.launcher.wait()
        deadline = time.monotonic() + AT_ONCE
        while any(map(exists, pids)):
            assert time.monotonic() < deadline, f"left: {[pid for pid in pids if exists(pid)]}"
            time.sleep(0.01)
    assert in_dev_shm() <= before


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all of its threads, in nanosecond resolution (clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def test_sixteen_idle_waiters_use_no_cpu(tmp_path: Path) -> None:
    """In gather, barrier, allreduce and a full queue, all for rank 16, which does nothing."""
    script = """
malt.init(timeout=100)
v = malt.vector(np.zeros(10))
r = malt.vector(np.zeros(10))
q = malt.vector(np.zeros(10), policy="queue", depth=1, graph=malt.STAR)
tell(pid=os.getpid())
if rank == 16:
    time.sleep(1000)
if rank == 0:
    q.scatter()
waits = [lambda: v.gather(staleness=0), malt.barrier, r.allreduce]
wait = waits[rank % 3] if rank > 0 else q.scatter
v.scatter()
tell(waits=True)
wait()
tell(done=True)
"""
    with start_job(tmp_path, 17, script) as job:
        pids = job.await_told("pid")
        deadline = time.monotonic() + 60
        while not all("waits" in job.told(rank) for rank in range(16)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        start, before = time.monotonic(), sum(map(cpu_seconds, pids[:16]))
        time.sleep(3)
        share = (sum(map(cpu_seconds, pids[:16])) - before) / (time.monotonic() - start)
        assert not any("done" in job.told(rank) for rank in range(16)), job.output
    assert share < 0.02, f"{share:.1%} of a core"


def test_rank_that_is_stopped_is_left_out_and_told_so_when_it_wakes(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60, silence=1)
w = np.full(1000, 10.0 ** rank)
v = malt.vector(w)
malt.barrier()
if rank == 2:
    tell(pid=os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    calls = (v.scatter, v.gather, v.allreduce, malt.barrier)
    tell(errors=[error_of(call) for call in calls])
    raise_flag("awake")
    sys.exit()
start = time.monotonic()
v.scatter()
got = v.gather(malt.SUM, staleness=0)
waited = time.monotonic() - start
while malt.epoch() == 0: time.sleep(0.01)
if rank == 0:
    import pickle
    os.kill(pickle.loads(open("told-2", "rb").read())["pid"], signal.SIGCONT)
await_flag("awake")
summed = v.allreduce(malt.SUM)
tell(waited=waited, got=got.ranks, alive=malt.alive(), epoch=malt.epoch(), summed=summed.ranks)
malt.barrier()
""",
    )
    for rank in (0, 1):
        told = result.told[rank]
        assert 0.5 < told["waited"] < 3
        assert told["got"] == (1 - rank,)
        assert (told["alive"], told["epoch"], told["summed"]) == ((0, 1), 1, (1 - rank,))
    for error in result.told[2]["errors"]:
        assert error.kind == "PeerError"
        assert error.says("rank 2 was evicted from the job", "for 1 s", "stopped")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rank_that_sleeps_until_the_others_are_done_does_not_go_on_alone(
    tmp_path: Path, transport: str
) -> None:
    script = """
malt.init(timeout=30, silence=1)
v = malt.vector(np.full(3, 10.0 ** rank))
malt.barrier()
if rank == 2:
    tell(pid=os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    error = None
    for _ in range(3):  # what the others sent before may be there
        error = error or error_of(v.scatter) or error_of(v.gather, malt.SUM, staleness=0)
    tell(error=error)
    sys.exit()
v.scatter()
g = v.gather(malt.SUM, staleness=0)
while malt.epoch() == 0: time.sleep(0.01)
malt.barrier()
tell(pid=os.getpid(), ranks=g.ranks)
"""
    environ = {"MALT_TRANSPORT": transport}
    with start_job(tmp_path, 3, script, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        while any(map(exists, pids[:2])):
            time.sleep(0.01)
        os.kill(pids[2], signal.SIGCONT)
        result = job.finish()
    assert [result.told[rank]["ranks"] for rank in (0, 1)] == [(1,), (0,)]
    told = result.told[2]
    assert told["error"] is not None, "it went on alone"
    assert told["error"].kind == "PeerError"


@pytest.mark.parametrize(
    ("transport", "others"),
    [("shm", "end"), ("shm", "stay"), ("tcp", "end"), ("tcp", "stay"), ("tls", "stay")],
)
def test_rank_that_was_left_out_asleep_finalizes_at_once(
    tmp_path: Path, transport: str, others: str
) -> None:
    """Nobody takes its goodbye: whom it tells has ended, or has left it out."""
    script = """
malt.init(timeout=60, silence=1)
malt.barrier()
tell(pid=os.getpid())
if rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
    start = time.monotonic()
    malt.finalize()
    tell(seconds=time.monotonic() - start)
    sys.exit()
while malt.epoch() == 0: time.sleep(0.01)
malt.barrier()
tell(gone_on=True)
if others == "stay": await_flag("over")
"""
    environ = {"MALT_TRANSPORT": transport}
    if transport == "tls":
        environ = {"MALT_TRANSPORT": "tcp", "MALT_TLS": Authority(tmp_path / "tls").issue("rank")}
    header = f"others = {others!r}"
    with start_job(tmp_path, 3, header + script, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        job.await_told("gone_on", ranks=[0, 1])
        while others == "end" and any(map(exists, pids[:2])):
            time.sleep(0.01)
        os.kill(pids[2], signal.SIGCONT)
        [seconds] = job.await_told("seconds", ranks=[2])
        job.raise_flag("over")
        assert job.finish().code == 0
    assert seconds < AT_ONCE


def test_callback_hears_of_each_new_epoch_in_the_main_thread(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
heard = []
@malt.on_change
def note(epoch, alive):
    heard.append((epoch, alive, threading.current_thread() is threading.main_thread()))
w = np.zeros(1)
v = malt.vector(w)
malt.barrier()
if rank == 3: os.kill(os.getpid(), signal.SIGKILL)
if rank == 2: malt.finalize(), sys.exit()
try:
    while len(malt.alive()) > 2 or not heard or heard[-1][1] != (0, 1):
        time.sleep(0.001)
    malt.barrier()
finally:
    tell(heard=list(heard))
malt.on_change(lambda epoch, alive: 1 / 0)
malt.barrier()
if rank == 1: malt.finalize(), sys.exit()
tell(error=error_of(malt.barrier) or error_of(time.sleep, 10))
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
    )
    for rank in (0, 1):
        heard = result.told[rank]["heard"]
        assert [epoch for epoch, _, _ in heard] == sorted({epoch for epoch, _, _ in heard})
        assert heard[-1][1:] == ((0, 1), True)
    assert result.told[0]["error"].kind == "builtins.ZeroDivisionError"


# ---- Witnesses: over TCP each rank is a host of its own ------------------------------------------


@pytest.mark.parametrize("killed", [(2,), (0,), (0, 1), (0, 2, 3)], ids=str)
def test_deaths_on_other_hosts_are_proved_whoever_is_left(
    tmp_path: Path, killed: tuple[int, ...]
) -> None:
    """Silence would tell of them after 90 s, and too few would stop."""
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60, silence=120, transport="tcp")
malt.barrier()
if rank in killed: os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
while set(malt.alive()) & set(killed) or malt.epoch() == 0: time.sleep(0.001)
tell(seconds=time.monotonic() - start, alive=malt.alive())
malt.barrier()
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        killed=killed,
    )
    left = tuple(rank for rank in range(4) if rank not in killed)
    for rank in left:
        told = result.told[rank]
        print(f"row proof: rank {rank} of {left} knew after {told['seconds'] * 1000:.1f} ms")
        assert told["alive"] == left
        assert told["seconds"] < AT_ONCE


# The witnesses of a job's ranks, which their launcher has adopted.
WITNESSES = """
def witnesses():
    launcher = os.getppid()
    found = []
    for pid in open(f"/proc/{launcher}/task/{launcher}/children").read().split():
        try: name = open(f"/proc/{pid}/comm").read().strip()
        except OSError: continue
        if name == "malt-witness": found.append(int(pid))
    return found
malt.init(timeout=60, silence=600, transport="tcp")
malt.barrier()
tell(witnesses=witnesses())
malt.barrier()
"""


def test_witnesses_of_ranks_that_leave_have_ended_with_them(tmp_path: Path) -> None:
    """Their launcher, which goes on, has then to reap them."""
    script = (
        WITNESSES
        + """
malt.finalize()
meet("out")
deadline = time.monotonic() + seconds
while witnesses() and time.monotonic() < deadline: time.sleep(0.001)
tell(left=witnesses())
meet("looked")
"""
    )
    result = run_job(tmp_path, 3, script, seconds=AT_ONCE)
    for told in result.told:
        assert (len(told["witnesses"]), told["left"]) == (3, [])


def test_witnesses_that_nobody_asks_end_with_the_launcher(tmp_path: Path) -> None:
    script = WITNESSES + "os.kill(os.getpid(), signal.SIGKILL)"
    result = run_job(tmp_path, 3, script, "--keep-going", code=128 + signal.SIGKILL)
    left = {pid for told in result.told for pid in told["witnesses"]}
    assert len(left) == 3
    deadline = time.monotonic() + AT_ONCE
    while any(map(exists, left)):
        assert time.monotonic() < deadline, f"witnesses {left} are left"
        time.sleep(0.01)
