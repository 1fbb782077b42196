"""Tables of jobs whose ranks rejoin, are added and leave: each push is there, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import Running, exists, start_job

# Each life of a rank adds 1 to its own column of every row, again and again.
COUNT = """
malt.init(timeout=30)
life = malt.jobs.restarts()
column = rank + 4 * life
partition = None
if is_placed:
    owners = np.random.default_rng(0).integers(0, 4, 3000)
    partition = malt.data.Partition([0], owners, np.ones(3000, bool), 4)
table = malt.ps.Table(
    3000, 16, dtype=np.float64, replicas=replicas, staleness=staleness, partition=partition
)
ones = np.zeros((3000, 16))
ones[:, column] = 1
begun = known = 0
tell(pid=os.getpid(), restarts=life)
while table.iteration < goal() and not malt.jobs.leaving():
    begun += 1
    push = table.push(None, ones)
    if begun % 4 == 0:
        table.wait(push)
        known = begun
    table.clock()
    table.pull(np.arange(0, 3000, 7))
    tell(at=table.iteration, alive=malt.alive(), moved=table._seat.core.moved)
    write(column, begun, known)
if malt.jobs.leaving():
    malt.jobs.leave()
    write(column, begun, begun)
    tell(left=life)
    sys.exit()
table.wait()
write(column, begun, begun)
malt.barrier()
tell(values=table.pull())
table.close()
"""
# What a process has told is lost with its successor's first words, so each writes a file, too.
WRITE = """
def write(column, begun, known):
    Path(f"draft-{column}").write_text(f"{begun} {known}")
    Path(f"draft-{column}").rename(f"column-{column}")
"""
MODES = {"asynchronous": None, "ssp": 2, "bsp": 0}


def script(replicas: int, staleness: int | None, *, is_placed: bool = False) -> str:
    header = f"from pathlib import Path\nreplicas, staleness = {replicas}, {staleness}\n"
    return f"{header}is_placed = {is_placed}\n{WRITE}{COUNT}"


def check_counts(job: Running, ranks: list[int], path: Path, killed: tuple[int, ...] = ()) -> None:
    """Check each column of the rows; `killed` are the columns of lives that were killed."""
    values = job.told(ranks[0])["values"]
    for rank in ranks:
        assert (job.told(rank)["values"] == values).all()
    for column in range(16):
        file = path / f"column-{column}"
        begun, known = map(int, file.read_text().split()) if file.exists() else (0, 0)
        rows = values[:, column]
        if column in killed:
            begun += 1  # it may have begun another one before it was killed
        else:
            assert begun == known
        assert known <= rows.min() <= rows.max() <= begun, column


def await_alive(job: Running, *ranks: int) -> None:
    deadline = time.monotonic() + 100
    while any(job.told(rank).get("alive") != ranks for rank in ranks):
        assert not job.has_ended, job.output
        assert time.monotonic() < deadline, job.output
        time.sleep(0.01)


def scale_to(job: Running, count: int) -> None:
    command = [sys.executable, "-m", "malt", "scale", str(job.launcher.pid), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("transport", [pytest.param("shm", marks=pytest.mark.long), "tcp"])
@pytest.mark.parametrize(("mode", "is_placed"), [*((mode, False) for mode in MODES), ("bsp", True)])
def test_a_rank_that_rejoins_gets_its_ranges_back(
    tmp_path: Path, transport: str, mode: str, is_placed: bool
) -> None:
    environ = {"MALT_TRANSPORT": transport}
    body = script(1, MODES[mode], is_placed=is_placed)
    with start_job(tmp_path, 4, body, "--respawn=9", environ=environ) as job:
        job.kill_and_await_return(2)
        job.set_goal(10)
        result = job.finish()
    assert result.code == 0, result.output
    check_counts(job, [0, 1, 2, 3], tmp_path, killed=(2,))
    # About half of the 188 ranges lie on each of the ranks, with the copies.
    assert 50 < job.told(2)["moved"] < 150
    assert [job.told(rank)["moved"] for rank in (0, 1, 3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("mode", "replicas", "transport", "is_placed"),
    [
        ("asynchronous", 0, "shm", False),
        pytest.param("asynchronous", 0, "tcp", False, marks=pytest.mark.long),
        ("ssp", 1, "shm", False),
        pytest.param("bsp", 0, "shm", False, marks=pytest.mark.long),
        ("bsp", 0, "tcp", False),
        pytest.param("asynchronous", 0, "shm", True, marks=pytest.mark.long),
        ("bsp", 1, "tcp", True),
    ],
)
def test_ranks_that_are_added_take_ranges_and_hand_them_back(
    tmp_path: Path, mode: str, replicas: int, transport: str, is_placed: bool
) -> None:
    environ = {"MALT_TRANSPORT": transport}
    body = script(replicas, MODES[mode], is_placed=is_placed)
    with start_job(tmp_path, 2, body, "--elastic", "1:4", environ=environ) as job:
        await_alive(job, 0, 1)
        scale_to(job, 4)
        await_alive(job, 0, 1, 2, 3)
        moved = [job.told(rank)["moved"] for rank in range(4)]
        assert moved[:2] == [0, 0]
        assert moved[2] > 0
        assert moved[3] > 0
        scale_to(job, 2)
        await_alive(job, 0, 1)
        job.await_told("left", ranks=[2, 3])
        while any(exists(job.told(rank)["pid"]) for rank in (2, 3)):
            time.sleep(0.01)
        time.sleep(0.5)  # the launcher knows that they have ended
        scale_to(job, 3)
        await_alive(job, 0, 1, 2)
        job.set_goal(10)
        result = job.finish()
    assert result.code == 0, result.output
    check_counts(job, [0, 1, 2], tmp_path)


def test_a_close_that_times_out_hands_the_rows_over(tmp_path: Path) -> None:
    body = """
malt.init(timeout=30)
has_left, has_read = Path("left"), Path("read")
table = malt.ps.Table(1000)
table.push(None, 1.0)
table.wait()
malt.barrier()
if malt.rank() == 0:
    try:
        table.close(timeout=2)  # half of it more for its rows
    except malt.TimeoutError as error:
        tell(error=str(error))
    has_left.touch()
    while not has_read.exists():
        time.sleep(0.01)
else:
    while not has_left.exists():
        time.sleep(0.01)
    tell(sum=float(table.pull().sum()))
    has_read.touch()
"""
    with start_job(
        tmp_path, 2, "import time\nfrom pathlib import Path\n" + body, "--respawn=1"
    ) as job:
        result = job.finish()
    assert result.code == 0, result.output
    assert "close of table 'table 1': rank 1 did not close it within 2 s" in job.told(0)["error"]
    assert job.told(1)["sum"] == 2000.0


def test_a_table_beside_vectors_moves_with_them(tmp_path: Path) -> None:
    body = """
malt.init(timeout=30)
v = malt.vector(np.zeros(100))
table = malt.ps.Table(1000, dtype=np.float64, replicas=1, staleness=0)
shared = malt.ps.Shared(np.zeros(10, np.int64))
tell(pid=os.getpid(), restarts=malt.jobs.restarts(), first=(v.iteration, table.iteration))
while v.iteration < goal():
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    table.push(None, 1.0)
    table.clock()
    table.pull()
    shared.exchange(staleness=1)
    tell(at=v.iteration)
malt.barrier()
tell(sum=table.pull(), iteration=table.iteration)
table.close()
"""
    with start_job(tmp_path, 3, body, "--respawn=3") as job:
        job.kill_and_await_return(1)
        job.set_goal(10)
        result = job.finish()
    assert result.code == 0, result.output
    first = result.told[0]["sum"]
    assert all((each == first).all() for each in result.each("sum"))
    assert abs(result.told[1]["first"][0] - result.told[1]["first"][1]) <= 1


def test_rows_without_copies_are_lost_for_all_ranks_alike(tmp_path: Path) -> None:
    body = """
malt.init(timeout=30)
table = malt.ps.Table(1000, dtype=np.float64)
tell(pid=os.getpid(), restarts=malt.jobs.restarts(), at=5)
if malt.jobs.restarts() == 0:
    table.push(None, 1.0)
    table.wait()
    malt.barrier()
    tell(has_pushed=True)
    if rank == 1:
        time.sleep(100)
if malt.jobs.restarts():
    raise_flag("joined")
while not flag_is_up("joined"):  # alive() and the table may hear of the death one after the other
    error_of(table.pull)
meet("back")  # who ends is not alive
tell(error=error_of(table.pull))
"""
    with start_job(tmp_path, 3, body, "--respawn=3") as job:
        job.await_told("has_pushed")
        os.kill(job.told(1)["pid"], signal.SIGKILL)
        result = job.finish()
    assert result.code == 0, result.output
    for error in result.each("error"):
        assert error.kind == "PeerError"
        assert error.ranks == (1,)
        assert error.says("are lost with rank 1")


def test_a_rank_that_has_left_the_table_goes_to_the_next_group_too(tmp_path: Path) -> None:
    body = """
malt.init(timeout=30)
table = malt.ps.Table(1000, dtype=np.float64)
v = malt.vector(np.zeros(3))
tell(pid=os.getpid(), restarts=malt.jobs.restarts())
table.push(None, 1.0)
table.wait()
if malt.jobs.restarts() == 0:
    malt.barrier()
    if rank == 2:
        table.leave()
while v.iteration < goal():
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    tell(at=v.iteration)
malt.barrier()
if rank != 2:
    tell(sum=table.pull())
"""
    with start_job(tmp_path, 3, body, "--elastic", "1:4") as job:
        job.await_told("at")
        scale_to(job, 4)
        job.await_told("at", ranks=[3])
        job.set_goal(5)
        result = job.finish()
    assert result.code == 0, result.output
    sums: list[Any] = [job.told(rank)["sum"] for rank in (0, 1, 3)]
    assert all((each == 4).all() for each in sums)
