"""`malt run --respawn`: ranks that are killed come back into the job, and the others go on."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from jobs import Result, Running, exists, run_job, start_job

# Rounds, until the test says at which iteration they end: the same for all.
LOOP = """
malt.init(timeout=20)
w = np.full(3000, 1.0 + rank)
v = malt.vector(w, policy=policy, depth=4)
malt.barrier()
tell(pid=os.getpid(), start=v.iteration)
if malt.jobs.restarts():  # after the pid, for who waits for the flag and then kills
    raise_flag(f"back-{rank}-{malt.jobs.restarts()}")
while v.iteration < goal():
    w += 0.001
    v.scatter()
    v.gather(malt.AVG, staleness=staleness)
    tell(at=v.iteration, alive=malt.alive(), epoch=malt.epoch())
    time.sleep(0.002)
s = v.stats()
tell(done=v.iteration, mean=float(w.mean()), restarts=malt.jobs.restarts(),
     lost=s.sent - s.folded - s.overwritten - s.rejected - s.pending - s.to_dead)
v.close()  # a full queue waits for nobody who has ended
malt.barrier()
"""
MODES = {"bsp": 0, "ssp": 2, "async": None}


def start(
    path: Path,
    policy: str = "latest",
    staleness: int | None = 0,
    transport: str = "auto",
    respawn: str = "--respawn=9",
    script: str = LOOP,
) -> contextlib.AbstractContextManager[Running]:
    given = f"policy, staleness = {policy!r}, {staleness}\n"
    return start_job(path, 4, given + script, respawn, environ={"MALT_TRANSPORT": transport})


def finish(job: Running) -> Result:
    job.set_goal(200)
    return job.finish()


def kill(job: Running, rank: int, restarts: int = 0) -> None:
    """End this life of the rank, and wait until it is back."""
    if restarts:
        await_back(job, rank, restarts)
    os.kill(pid_of(job, rank), signal.SIGKILL)


def pid_of(job: Running, rank: int) -> int:
    pid = job.told(rank)["pid"]
    assert isinstance(pid, int)
    return pid


def await_back(job: Running, rank: int, restarts: int, limit: float = 100) -> None:
    deadline = time.monotonic() + limit
    while not (job.directory / f"flag-back-{rank}-{restarts}").exists():
        assert not job.has_ended, job.output
        assert time.monotonic() < deadline, f"rank {rank} is not back:\n{job.output}"
        time.sleep(0.01)


def await_iteration(job: Running, rank: int, iteration: int, limit: float = 100) -> None:
    deadline = time.monotonic() + limit
    while job.told(rank).get("at", 0) < iteration:
        assert not job.has_ended, job.output
        assert time.monotonic() < deadline, f"rank {rank} does not go on:\n{job.output}"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("mode", "policy", "transport"),
    [  # every pair of two
        ("bsp", "latest", "shm"),
        ("bsp", "queue", "tcp"),
        ("ssp", "latest", "tcp"),
        ("ssp", "queue", "shm"),
        ("async", "latest", "shm"),
        ("async", "queue", "tcp"),
    ],
)
def test_a_killed_rank_comes_back_and_all_finish(
    tmp_path: Path, mode: str, policy: str, transport: str
) -> None:
    with start(tmp_path, policy, MODES[mode], transport) as job:
        job.await_told("at")
        await_iteration(job, 0, 30)
        kill(job, 2)
        await_back(job, 2, 1)
        for rank in range(4):
            await_iteration(job, rank, job.told(rank)["at"] + 20)
        assert job.told(0)["alive"] == (0, 1, 2, 3)
        assert job.told(2)["start"] >= 25  # where the others were
        assert job.told(0)["epoch"] > 1
        result = finish(job)
    assert result.code == 0, result.output
    assert result.each("restarts") == [0, 0, 1, 0]
    assert result.each("lost") == [0] * 4
    means = result.each("mean")
    assert max(means) - min(means) < 0.2
    assert re.search(r"malt run: rank 2 died of SIGKILL .*; started again, 1 of 9", result.output)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rejoining_rank_repeats_no_step(tmp_path: Path, transport: str) -> None:
    """The others have made the step of their round when they go over."""
    script = LOOP.replace("1.0 + rank", "0.0").replace("0.001", "1.0")
    script = script.replace("w =", "malt.barrier()\nw =", 1)
    with start(tmp_path, transport=transport, script=script) as job:
        await_iteration(job, 0, 10)
        for rank in (2, 0):
            kill(job, rank)
            await_back(job, rank, 1)
        result = finish(job)
    assert result.code == 0, result.output
    assert result.each("restarts") == [1, 0, 1, 0]
    assert result.each("mean") == result.each("done")


def test_a_stopped_rank_is_replaced_when_another_comes_back(tmp_path: Path) -> None:
    """The others leave it out, and do not wait for it in the next group."""
    script = LOOP.replace("timeout=20", "timeout=20, silence=1")
    with start(tmp_path, script=script) as job:
        job.await_told("at")
        os.kill(pid_of(job, 1), signal.SIGSTOP)
        kill(job, 2)
        for rank in (1, 2):
            await_back(job, rank, 1)
        result = finish(job)
    assert result.code == 0, result.output
    assert result.each("restarts") == [0, 1, 1, 0]
    assert result.each("lost") == [0] * 4


# What a round does after v.gather(), and has to go on with where the others are.
ROUNDS = {
    "barrier": "malt.barrier()",
    "allreduce": "u.allreduce(malt.SUM)",
    "second vector": "u.scatter(); u.gather(malt.AVG, staleness=0)",
}


@pytest.mark.parametrize("transport", [pytest.param("shm", marks=pytest.mark.long), "tcp"])
@pytest.mark.parametrize("more", ROUNDS)
def test_rounds_of_several_calls_go_on_in_step(tmp_path: Path, more: str, transport: str) -> None:
    script = LOOP.replace("    tell(at", f"    {ROUNDS[more]}\n    tell(at")
    script = script.replace("malt.barrier()", "u = malt.vector(np.zeros(3))\nmalt.barrier()", 1)
    with start(tmp_path, transport=transport, script=script) as job:
        job.await_told("at")
        for life in range(3):
            kill(job, 1, life)
            time.sleep(0.5)
        await_back(job, 1, 3)
        result = finish(job)
    assert result.code == 0, result.output
    assert result.each("restarts") == [0, 3, 0, 0]


def test_two_that_are_killed_at_once_come_back(tmp_path: Path) -> None:
    """Rank 0, whose memory the others use, is one of them."""
    with start(tmp_path) as job:
        job.await_told("at")
        kill(job, 0)
        kill(job, 3)
        await_back(job, 0, 1)
        await_back(job, 3, 1)
        await_iteration(job, 1, job.told(1)["at"] + 50)
        assert job.told(1)["alive"] == (0, 1, 2, 3)
        result = finish(job)
    assert result.code == 0, result.output


@pytest.mark.parametrize("seed", range(int(os.environ.get("MALT_SEEDS", 1))))
@pytest.mark.parametrize("transport", [pytest.param("shm", marks=pytest.mark.long), "tcp"])
def test_kills_at_any_time_of_the_way_back_leave_a_job_that_finishes(
    tmp_path: Path, seed: int, transport: str
) -> None:
    """Seconds from a kill to the next are such that it hits ranks in the middle of coming back."""
    draw = random.Random(seed)
    with start(tmp_path, transport=transport, respawn="--respawn=99") as job:
        job.await_told("at")
        for _ in range(6):
            with contextlib.suppress(ProcessLookupError):  # killed, and has not told its next one
                os.kill(pid_of(job, draw.randrange(4)), signal.SIGKILL)
            time.sleep(draw.uniform(0.0, 1.5))
        time.sleep(3)
        result = finish(job)
    assert result.code == 0, result.output
    # Nobody has waited in vain. Whose sender of the values is killed ends with PeerError, and is
    # started again.
    assert "TimeoutError" not in result.output


def test_the_others_go_on_while_the_one_that_comes_back_loads_its_data(tmp_path: Path) -> None:
    script = LOOP.replace("w = np.full", "malt.jobs.restarts() and time.sleep(3)\nw = np.full", 1)
    with start(tmp_path, staleness=None, script=script) as job:
        job.await_told("at")
        kill(job, 1)
        time.sleep(1)
        before = job.told(0)["at"]
        time.sleep(1.5)
        assert job.told(0)["at"] > before + 20
        await_back(job, 1, 1)
        result = finish(job)
    assert result.code == 0, result.output


def test_rejoining_rank_has_the_values_of_the_lowest_other_rank(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=20)
first = malt.jobs.restarts() == 0
w = malt.vector((200_000,), name="own")
pair = [np.full(3, 5.0 * first), np.full((2, 2), 7.0 * first)]
two = malt.vector(pair)
few = malt.sparse_vector(100, capacity=10)
tick = malt.vector(np.zeros(1))
if not first:
    tell(own=float(w.array[199_999]), pair=[float(p.sum()) for p in pair],
         few=(few.indices.tolist(), few.values.tolist()), barrier=error_of(malt.barrier),
         restore=error_of(malt.restore, "nowhere", {"w": w}), restarts=malt.jobs.restarts(),
         at=w.iteration)
w.array[:] = 10 * (rank + 1) if first else w.array
if first:
    few.set([3, 50], [1.5, rank])
    malt.barrier()
    for v in (w, two, few):
        v.scatter()
    malt.barrier()
    place = w.array.ctypes.data
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while malt.alive() != (0, 2):
        time.sleep(0.01)
    while malt.alive() != (0, 1, 2):
        tick.scatter()
        time.sleep(0.01)
    tell(same=place == w.array.ctypes.data, mine=float(w.array[5]))
w.allreduce(malt.SUM)
tell(sum=float(w.array[7]))
malt.barrier()
""",
        "--respawn",
    )
    back = result.told[1]
    assert back["own"] == 10
    assert back["pair"] == [15, 28]
    assert back["few"] == ([3, 50], [1.5, 0])
    assert (back["restarts"], back["at"], back["barrier"]) == (1, 0, None)
    assert back["restore"].kind == "ConfigError"
    assert back["restore"].says("if not malt.jobs.restarts()")
    assert all(result.told[rank]["same"] for rank in (0, 2))
    assert result.each("sum") == [10 + 10 + 30] * 3


def test_a_rank_that_dies_when_the_others_have_ended_is_not_started_again(tmp_path: Path) -> None:
    script = "malt.init()\ntell(pid=os.getpid())\nmalt.barrier()\nrank == 2 and time.sleep(100)"
    with start_job(tmp_path, 3, script, "--respawn") as job:
        pids = job.await_told("pid")
        while exists(pids[0]) or exists(pids[1]):
            time.sleep(0.01)
        time.sleep(0.5)  # the launcher knows
        os.kill(pids[2], signal.SIGKILL)
        result = job.finish()
    assert result.code == 128 + signal.SIGKILL
    assert re.search("rank 2 died of SIGKILL .*; not started again: the others", result.output)


@pytest.mark.parametrize("is_loading", [True, False])
def test_a_rank_that_is_back_too_late_is_stopped(tmp_path: Path, is_loading: bool) -> None:
    """It loads its data until the others have ended; or waits for them, who have left and end."""
    script = f"""
malt.init(timeout=20)
if malt.jobs.restarts():
    raise_flag("back")
    {is_loading} and time.sleep(100)
    await_flag("left")
v = malt.vector(np.ones(10))
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
await_flag("back")
malt.finalize()
raise_flag("left")
time.sleep(1)
"""
    with start_job(tmp_path, 3, script, "--respawn") as job:
        result = job.finish()
    assert result.code == 128 + signal.SIGKILL
    assert "rank 2 had not rejoined when the other ranks ended; stopping" in result.output
    assert "Traceback" not in result.output


def test_a_job_all_of_whose_ranks_die_begins_anew(tmp_path: Path) -> None:
    script = """
malt.init(timeout=20)
v = malt.vector(np.ones(10))
malt.jobs.restarts() or os.kill(os.getpid(), signal.SIGKILL)
v.allreduce()
tell(restarts=malt.jobs.restarts())
"""
    result = run_job(tmp_path, 3, script, "--respawn=9")
    assert min(result.each("restarts")) >= 1


def test_rejoining_rank_with_other_vectors_is_refused_and_says_why(tmp_path: Path) -> None:
    script = LOOP.replace("np.full(3000", "np.full(3000 + malt.jobs.restarts()", 1)
    with start(tmp_path, script=script, respawn="--respawn=1") as job:
        job.await_told("at")
        kill(job, 2)
        result = job.finish()
    assert result.code == 1
    assert "rejoining rank 2 makes float64 x 3001" in result.output
    assert "but the other ranks have float64 x 3000" in result.output
    assert re.search("rank 2 exited with code 1 .* has been started again 1 time", result.output)


def test_ctrl_c_ends_a_job_whose_ranks_would_come_back(tmp_path: Path) -> None:
    with start(tmp_path) as job:
        job.await_told("at")
        kill(job, 2)
        job.launcher.send_signal(signal.SIGINT)
        result = job.finish()
        pids = [pid_of(job, rank) for rank in range(4)]
    assert result.code != 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_rank_whose_session_a_network_has_cut_comes_back(tmp_path: Path) -> None:
    """It could be called to no further group."""
    cut = """
if rank == 1 and not malt.jobs.restarts():
    import socket
    from malt._job import job as jobs
    jobs.current().generations._member._socket.shutdown(socket.SHUT_RDWR)
"""
    with start(
        tmp_path, script=LOOP.replace("while v.iteration", cut + "while v.iteration")
    ) as job:
        await_back(job, 1, 1, limit=20)
        for rank in range(4):
            await_iteration(job, rank, job.told(rank)["at"] + 20)
        assert job.told(0)["alive"] == (0, 1, 2, 3)
        result = finish(job)
    assert result.code == 0, result.output
    assert result.each("restarts") == [0, 1, 0, 0]
    assert result.each("lost") == [0] * 4
