"""Tables of malt.ps count integers while ranks are killed, rejoin and leave: 0 lost, 0 twice.

Each rank adds 1 to its own column of every row, again and again. So a row says which pushes of
which rank have arrived there.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from jobs import Running, start_job

RANKS = 5
# The owners of rows are drawn: whoever has a row must have it right.
PLACED = """
def placed(rows):
    owners = np.random.default_rng(0).integers(0, size, rows)
    return malt.data.Partition([0], owners, np.ones(rows, bool), size)
"""
SCRIPT = """
malt.init(timeout=60)
if is_placed:
    filters["partition"] = placed(3000)
table = malt.ps.Table(
    3000, size, dtype=np.float64, replicas=replicas, staleness=staleness, **filters
)
ones = np.zeros((3000, size))
ones[:, rank] = 1
odd = np.arange(1, 3000, 2)
tell(pid=os.getpid(), begun=0, known=0)
begun = since = 0
alive = table.alive()
while not flag_is_up("end"):
    tell(begun=begun + 1)
    if begun % 3:
        push = table.push(None, ones)
    else:
        table.push(odd - 1, ones[odd])
        push = table.push(odd, ones[odd])
    begun += 1
    if table.alive() != alive:
        alive, since = table.alive(), 0
    if begun % 4 == 0:
        table.wait(None if filters else push)
        since += 1
        tell(known=begun, since=(len(alive), since))
    if begun % 8 == 0:
        table.clock(timeout=60)
        table.pull(odd)
    if rank == 4 and flag_is_up("leave"):
        table.wait()
        tell(known=begun)
        table.leave()
        tell(left=True)
        sys.exit()
table.wait()
tell(at=table.clock())
await_flag("goal is set")
while table.clock() < goal():
    pass
malt.barrier()
tell(values=table.pull())
table.close()
"""


def await_copies(job: Running, live: list[int]) -> None:
    """Wait until copies of all rows are whole again.

    A server that takes in a second message after a death has begun the copies before, and
    acknowledges no later push before they are whole.
    """

    def has_pushed(rank: int) -> bool:
        seen, since = job.told(rank).get("since", (0, 0))
        return seen == len(live) and since >= 3

    while not all(has_pushed(rank) for rank in live):
        assert not job.has_ended, job.output


@pytest.mark.parametrize(
    ("transport", "replicas", "staleness", "seed", "filters", "is_placed"),
    [
        ("shm", 1, None, 1, {}, False),
        ("shm", 1, 0, 2, {}, False),
        ("shm", 2, None, 3, {}, False),
        ("tcp", 1, None, 4, {}, False),
        ("tcp", 2, 1, 5, {}, False),
        ("shm", 1, 0, 8, {}, True),
        ("tcp", 1, None, 9, {}, True),
        # Lists of 300 to 1,500 keys in turn, of which there is not room for all.
        ("shm", 1, None, 6, {"cached_keys": 1600, "threshold": 2.5}, False),
        ("tcp", 2, 0, 7, {"cached_keys": 1600, "threshold": 2.5}, False),
    ],
)
def test_each_push_is_there_once_whoever_dies(
    tmp_path: Path,
    transport: str,
    replicas: int,
    staleness: int | None,
    seed: int,
    filters: dict[str, float],
    is_placed: bool,
) -> None:
    rng = random.Random(seed)
    header = f"replicas, staleness, filters = {replicas}, {staleness}, {filters}\n"
    header += f"is_placed = {is_placed}\n{PLACED}"
    environ = {"MALT_TRANSPORT": transport}
    with start_job(tmp_path, RANKS, header + SCRIPT, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        live = list(range(RANKS))
        await_copies(job, live)
        job.raise_flag("leave")
        job.await_told("left", ranks=[4])
        live.remove(4)
        for victims in [[0], [1]] if replicas == 1 else [[0, 2]]:
            await_copies(job, live)
            moment = job.told(victims[0])["begun"] + rng.randrange(10)
            while job.told(victims[0])["begun"] < moment:
                assert not job.has_ended, job.output
            for victim in victims:
                os.kill(pids[victim], signal.SIGKILL)
                live.remove(victim)
        await_copies(job, live)
        job.raise_flag("end")
        job.await_told("at", ranks=live)
        job.set_goal(1)
        job.raise_flag("goal is set")
        job.await_told("values", ranks=live)
        job.finish()
        told = [job.told(rank) for rank in range(RANKS)]
    values = told[live[0]]["values"]
    for rank in live:
        assert (told[rank]["values"] == values).all()
        assert (values[:, rank] == told[rank]["begun"]).all(), rank
    for rank in set(range(RANKS)) - set(live):
        column = values[:, rank]
        assert told[rank]["known"] <= column.min() <= column.max() <= told[rank]["begun"], rank


# Each life of a rank has a column of its own. It writes how many pushes it has begun, and of how
# many it knows that they are acknowledged.
LIVES = 12
REJOINING = """
from pathlib import Path
malt.init(timeout=60)
column = rank + size * malt.jobs.restarts()
columns = size * lives
partition = placed(2000) if is_placed else None
table = malt.ps.Table(
    2000, columns, dtype=np.float64, replicas=2, staleness=staleness, partition=partition
)
ones = np.zeros((2000, columns))
ones[:, column] = 1
begun = known = 0
def write():
    Path(f"draft-{column}").write_text(f"{begun} {known}")
    Path(f"draft-{column}").rename(f"column-{column}")
tell(pid=os.getpid(), life=malt.jobs.restarts())
while table.iteration < goal():
    begun += 1
    write()
    push = table.push(None, ones)
    if begun % 3 == 0:
        table.wait(push)
        known = begun
        write()
    table.clock(timeout=60)
    table.pull(np.arange(rank, 2000, 9))
    tell(at=table.iteration, back=malt.jobs.restarts())
table.wait()
known = begun
write()
malt.barrier()
tell(values=table.pull())
table.close()
"""


@pytest.mark.parametrize(
    ("transport", "staleness", "seed", "is_placed"),
    [("shm", None, 1, False), ("shm", 0, 2, False), ("tcp", 1, 3, False), ("shm", 0, 4, True)],
)
def test_each_push_is_there_once_whichever_ranks_die_and_rejoin(
    tmp_path: Path, transport: str, staleness: int | None, seed: int, is_placed: bool
) -> None:
    rng = random.Random(seed)
    header = f"staleness, lives, is_placed = {staleness}, {LIVES}, {is_placed}\n{PLACED}"
    environ = {"MALT_TRANSPORT": transport}
    killed = set()
    end = time.monotonic() + 8
    with start_job(
        tmp_path, RANKS, header + REJOINING, f"--respawn={RANKS * LIVES}", environ=environ
    ) as job:
        job.await_told("back")
        while len(killed) < 4 or time.monotonic() < end:
            lives = [job.told(rank)["life"] for rank in range(RANKS)]
            if max(lives) == LIVES - 1:
                break
            # The second rank dies while the first one rejoins, or before.
            for victim in rng.sample(range(RANKS), 2):
                os.kill(job.told(victim)["pid"], signal.SIGKILL)
                killed.add(victim + RANKS * lives[victim])
                lives[victim] += 1
                time.sleep(rng.random() * rng.choice((0.02, 1)))
            while any(job.told(rank).get("back") != lives[rank] for rank in range(RANKS)):
                assert not job.has_ended, job.output
                assert time.monotonic() < end + 60, job.output
                time.sleep(0.01)
        job.set_goal(5)
        result = job.finish()
    assert result.code == 0, result.output
    values = result.told[0]["values"]
    for told in result.told:
        assert (told["values"] == values).all()
    for column in range(RANKS * LIVES):
        path = tmp_path / f"column-{column}"
        begun, known = map(int, path.read_text().split()) if path.exists() else (0, 0)
        assert known == begun or column in killed
        assert known <= values[:, column].min() <= values[:, column].max() <= begun, column
