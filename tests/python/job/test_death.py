"""Ranks that die or leave: the others notice at once and go on, and nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest
from jobs import PROMPT, exists, in_dev_shm, run_job, start_job

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
        assert told["seconds"] < PROMPT
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
        assert told["seconds"] < PROMPT
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
            # The launcher may have ended a rank after the first one died.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.launcher.wait()
        deadline = time.monotonic() + PROMPT
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


def test_callback_hears_of_each_new_epoch_in_the_main_thread(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        """
malt.init(timeout=60)
heard = []
@malt.jobs.on_change
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
malt.jobs.on_change(lambda epoch, alive: 1 / 0)
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
