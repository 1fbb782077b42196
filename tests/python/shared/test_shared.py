"""malt.ps.Shared between real ranks: sums, waits, deaths and ranks that rejoin."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import malt
from jobs import refused, run_job, start_job

SEEDS = range(int(os.environ.get("MALT_SEEDS", 3)))

# Each rank adds random numbers to a table, and tells after each exchange the sum of all that it has
# added, and how many of its exchanges are acknowledged. What it has told may be one step old.
ADDING = """
malt.init(timeout=60)
x = np.zeros((400, 250), dtype)
shared = malt.ps.Shared(x)
rng = np.random.default_rng([seed, rank])
mine, sums = np.zeros_like(x), [np.zeros_like(x)]
tell(pid=os.getpid(), sums=sums, acknowledged=0)
while shared.iteration < steps:
    rows = rng.integers(len(x), size=rng.integers(30))
    change = np.zeros_like(x)
    change[rows] = rng.integers(-9, 9, (len(rows), x.shape[1]))
    if rng.random() < 0.1:
        change += 1
    if change.dtype.kind == "f":
        change *= rng.random(x.shape).astype(dtype)
    x += change
    mine += change
    sums.append(mine.copy())
    tell(sums=sums[-9:], first=max(0, len(sums) - 9))   # before it can be sent
    shared.exchange(staleness=staleness)
    tell(acknowledged=shared.acknowledged, at=shared.iteration)
shared.drain()
tell(x=x.copy(), mine=mine, iteration=shared.iteration, kept=shared._replica.streams.kept)
malt.barrier()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("staleness", [None, 0, 3])
def test_after_a_drain_all_ranks_have_the_sum(
    tmp_path: Path, transport: str, staleness: int | None
) -> None:
    environ = {"MALT_TRANSPORT": transport}
    given = {"dtype": "int32", "seed": 1, "steps": 8, "staleness": staleness}
    result = run_job(tmp_path, 3, ADDING, environ=environ, **given)
    total = np.sum(result.each("mine"), axis=0)
    for x in result.each("x"):
        assert np.array_equal(x, total)
    assert result.each("kept") == [0, 0, 0]
    assert result.each("iteration") == [8, 8, 8]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_sums_have_the_same_bits_and_are_within_the_bound(tmp_path: Path, dtype: str) -> None:
    result = run_job(tmp_path, 3, ADDING, dtype=dtype, seed=2, steps=8, staleness=None)
    total = np.sum(np.array(result.each("mine"), np.float64), axis=0)
    first, *others = result.each("x")
    assert all(np.array_equal(first, x) for x in others)
    additions, largest = 3 * 10, 9 * 8 * 3  # of a rank; of what is added up
    assert np.abs(first - total).max() <= additions * np.finfo(dtype).eps * largest


def test_large_numbers_stay_what_they_are(tmp_path: Path) -> None:
    body = """
malt.init()
rank, x = malt.rank(), np.zeros(3, np.float32)
shared = malt.ps.Shared(x)
if rank == 0:
    x[:] = 1.5e38, 3, -3.3e38
shared.drain()
tell(x=x.copy())
malt.barrier()
"""
    for x in run_job(tmp_path, 4, body).each("x"):
        assert x.tolist() == np.array([1.5e38, 3, -3.3e38], np.float32).tolist()


@pytest.mark.parametrize("transport", [pytest.param("shm", marks=pytest.mark.long), "tcp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_dead_rank_all_have_the_same_deltas_and_those_acknowledged(
    tmp_path: Path, seed: int, transport: str
) -> None:
    draw = random.Random(seed)
    dead = draw.randrange(4)
    header = f"dtype, seed, staleness, steps = 'int32', {seed}, {draw.choice([None, 2])}, 40\n"
    environ = {"MALT_TRANSPORT": transport}
    with start_job(tmp_path, 4, header + ADDING, "--keep-going", environ=environ) as job:
        job.await_told("at", ranks=[dead])
        goal = draw.randrange(1, 12)
        while job.told(dead)["at"] < goal:
            assert not job.has_ended, job.output
        os.kill(job.told(dead)["pid"], signal.SIGKILL)
        result = job.finish()
    others = [told for rank, told in enumerate(result.told) if rank != dead]
    first = others[0]["x"]
    assert all(np.array_equal(first, told["x"]) for told in others)
    rest = first - np.sum([told["mine"] for told in others], axis=0)
    told = result.told[dead]
    counts = [
        told["first"] + index
        for index, sum_ in enumerate(told["sums"])
        if np.array_equal(sum_, rest)
    ]
    assert counts, "the dead rank's part is no sum of its first deltas"
    assert max(counts) >= told["acknowledged"]


def test_a_rank_that_is_started_again_gets_the_present_sum(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
x = np.zeros(70_000, np.int64)
shared = malt.ps.Shared(x)
tell(pid=os.getpid(), restarts=malt.jobs.restarts(), began=shared.iteration, found=int(x[0]))
lives = 1
while shared.iteration < goal():
    x[:] += 1
    shared.exchange(staleness=1)
    tell(at=shared.iteration, acknowledged=shared.acknowledged)
shared.drain()
tell(x=x.copy(), made=shared.iteration)
malt.barrier()
"""
    with start_job(tmp_path, 3, body, "--respawn=1") as job:
        job.kill_and_await_return(1)
        job.set_goal(5)
        result = job.finish()
    assert result.code == 0, result.output
    first = result.told[0]["x"]
    assert all(np.array_equal(first, x) for x in result.each("x"))
    assert (first == first[0]).all()
    told = result.told[1]
    assert told["began"] >= 4  # where the others were: they are at most one exchange apart
    assert told["found"] >= 2 * told["began"] - 2
    assert len({*result.each("made")}) == 1
    # Two ranks from the beginning, one from where it began again, and the first life's deltas.
    made = told["made"]
    assert 3 * made - told["began"] < first[0] <= 3 * made + 2


def test_ranks_that_begin_with_other_values_are_refused(tmp_path: Path) -> None:
    body = """
malt.init(timeout=30)
tell(error=error_of(malt.ps.Shared, np.full(3, float(rank == 1)), name="odd"))
tell(again=error_of(malt.ps.Shared, np.zeros(3), name="odd"))
"""
    result = run_job(tmp_path, 3, body)
    for error in result.each("error"):
        assert refused(error, "'odd'", "the checksum of its first values is", "on rank 0, and", "begin with")
    assert result.each("again") == [None] * 3


@pytest.mark.parametrize(
    ("array", "text"),
    [
        ("np.zeros(3, [np.float64, np.int64][rank])", "dtype is float64 on rank 0, and int64 on"),
        ("np.zeros((3 - rank, 2 + rank))", "shape is [3, 2] on rank 0, and [2, 3] on rank 1"),
    ],
)
def test_arrays_of_other_kinds_on_ranks_are_refused_at_once(
    tmp_path: Path, array: str, text: str
) -> None:
    body = f"malt.init(timeout=100)\ntell(error=error_of(malt.ps.Shared, {array}))\nmalt.ps.Shared(np.ones(2))"
    for error in run_job(tmp_path, 2, body).each("error"):
        assert refused(error, text)


def test_wrong_arguments_are_refused_and_change_nothing(tmp_path: Path) -> None:
    body = """
malt.init(timeout=30)
x = np.zeros(3)
shared = malt.ps.Shared(x)
tell(dtype=error_of(malt.ps.Shared, np.zeros(3, np.int16)), readonly=error_of(malt.ps.Shared, "x"))
tell(staleness=error_of(shared.exchange, staleness=-1))
tell(limit=error_of(shared.drain, timeout=float("nan")))
x[1] = np.nan
tell(nan=error_of(shared.exchange), nan_drain=error_of(shared.drain))
malt.barrier()  # so that a rank takes in no other one's 2 before it sets its own
x[1] = 2
shared.drain()
tell(x=x.copy())
shared.close()
shared.close()
tell(closed=[error_of(shared.exchange), error_of(shared.drain)], is_closed=shared.is_closed)
"""
    result = run_job(tmp_path, 2, body)
    for told in result.told:
        assert refused(told["dtype"], "int16", "int32 or int64")
        assert refused(told["readonly"], "'x'")
        assert refused(told["staleness"], "-1")
        assert refused(told["limit"], "nan")
        assert refused(told["nan"], "element 1", "finite")
        assert refused(told["nan_drain"], "element 1", "finite")
        assert told["x"].tolist() == [0, 4, 0]
        assert all(refused(error, "has been closed") for error in told["closed"])
        assert told["is_closed"]


def test_calls_that_reach_their_limit_name_the_rank_and_work_when_called_again(
    tmp_path: Path,
) -> None:
    body = """
malt.init(timeout=60)
x = np.zeros(3, np.int32)
shared = malt.ps.Shared(x)
x += rank + 1
if rank == 0:
    tell(exchange=error_of(lambda: shared.exchange(staleness=0, timeout=0.2)))
    tell(drain=error_of(lambda: shared.drain(timeout=0.2)))
    raise_flag("late")
else:
    await_flag("late")
    shared.exchange(staleness=0)
shared.drain()
tell(x=x.copy())
"""
    result = run_job(tmp_path, 2, body)
    for call in ("exchange", "drain"):
        error = result.told[0][call]
        assert (error.kind, error.ranks) == ("TimeoutError", (1,))
        assert error.says("rank 1 did not come", "0.2 s")
    assert [x.tolist() for x in result.each("x")] == [[3, 3, 3]] * 2


@pytest.mark.parametrize(
    "call", ["shared.exchange(staleness=0, timeout=4)", "shared.drain(timeout=4)"]
)
def test_a_call_has_one_limit_for_all_of_its_steps(tmp_path: Path, call: str) -> None:
    """Rank 1 takes what is due in time for the first step, and comes to no later one."""
    body = """
malt.init(timeout=60)
x = np.zeros(3)
shared = malt.ps.Shared(x)
malt.barrier()
if rank == 0:
    for _ in range(9):  # more than there are slots
        x += 1
        shared.exchange()
    raise_flag("full")
    tell(error=error_of(lambda: eval(call)))
    raise_flag("late")
else:
    await_flag("full")
    time.sleep(3)
    shared.poll()
    await_flag("late")
malt.barrier()
"""
    error = run_job(tmp_path, 2, body, call=call).told[0]["error"]
    assert (error.kind, error.ranks) == ("TimeoutError", (1,))
    assert error.says("rank 1 did not come", "within 4 s")
    assert 4 <= error.seconds < 6


def test_making_it_has_one_limit_for_all_of_its_steps(tmp_path: Path) -> None:
    """Rank 1 comes in time for the first step, and to the last one never."""
    body = """
from malt._shared.replica import Replica
malt.init(timeout=4)
if rank == 0:
    tell(error=error_of(malt.ps.Shared, np.zeros(3)))
    raise_flag("late")
    os._exit(0)
Replica._settle = lambda *_, **__: await_flag("late")
time.sleep(3)
malt.ps.Shared(np.zeros(3))
os._exit(0)
"""
    error = run_job(tmp_path, 2, body).told[0]["error"]
    assert (error.kind, error.ranks) == ("TimeoutError", (1,))
    assert error.says("within 4 s")
    assert 4 <= error.seconds < 6


def test_an_exchange_that_is_called_again_counts_once(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
x = np.zeros(8, np.int64)
shared, timeouts = malt.ps.Shared(x), 0
for step in range(4):
    x[rank] += 1
    if rank == 1 and step == 2:
        while not flag_is_up("late"):
            time.sleep(.01)
    while True:
        try:
            shared.exchange(staleness=0, timeout=.1 if rank == 0 else 30)
            break
        except malt.TimeoutError:
            timeouts += 1
            raise_flag("late")
    malt.barrier()
shared.drain()
tell(iteration=shared.iteration, timeouts=timeouts, x=x[:2].tolist())
"""
    result = run_job(tmp_path, 2, body)
    assert result.each("iteration") == [4, 4]
    assert result.told[0]["timeouts"] > 0
    assert result.each("x") == [[4, 4], [4, 4]]


def test_an_exchange_does_not_wait_for_a_rank_that_has_come_to_a_drain(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
x = np.zeros(2, np.int32)
shared = malt.ps.Shared(x)
for _ in range(1 if rank == 1 else 3):
    x[rank] += 1
    shared.exchange(staleness=0, timeout=10)
shared.drain()
tell(iterations=shared.iterations, x=x.tolist())
malt.barrier()
"""
    result = run_job(tmp_path, 2, body)
    assert result.each("iterations") == [[3, 1]] * 2
    assert result.each("x") == [[3, 1]] * 2


def test_exceptions_of_signal_handlers_neither_lose_nor_double_changes(tmp_path: Path) -> None:
    body = """
class Alarm(Exception):
    pass

def ring(*_):
    raise Alarm

malt.init(timeout=60)
signal.signal(signal.SIGALRM, ring)
rng = np.random.default_rng(rank)
x = np.zeros(100_000, np.int64)
shared, alarms = malt.ps.Shared(x), 0
for step in range(200):
    x += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 3e-3))
        shared.exchange()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        alarms += 1
    assert signal.getsignal(signal.SIGALRM) is ring
signal.signal(signal.SIGALRM, signal.SIG_IGN)
shared.drain()
tell(alarms=alarms, sums=np.unique(x).tolist())
malt.barrier()
"""
    result = run_job(tmp_path, 2, body)
    assert min(result.each("alarms")) > 0
    assert result.each("sums") == [[400], [400]]


def test_a_rank_that_ends_takes_none_of_its_changes_along(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
x = np.zeros(3, np.int32)
shared = malt.ps.Shared(x)
x += 1
if rank == 0:
    shared.exchange()
    malt.finalize()
else:
    while shared.iteration < 3 or x[0] < size:
        shared.exchange()
    tell(drained=shared.drain(), x=x.copy(), iterations=shared.iterations, own=shared.iteration)
"""
    result = run_job(tmp_path, 3, body)
    for rank in (1, 2):
        told = result.told[rank]
        assert told["x"].tolist() == [3, 3, 3]
        assert told["drained"] == [1, 2]
        assert told["iterations"] == [1, *(each["own"] for each in result.told[1:])]


def test_a_large_delta_travels_by_polls(tmp_path: Path) -> None:
    job = run_job(
        tmp_path,
        2,
        """
malt.init()
counts = np.zeros(3_000_000, np.int32)
shared = malt.ps.Shared(counts)
counts += rank + 1
added = shared.exchange()
polls = 0
while added == 0:
    added += shared.poll()
    polls += 1
raise_flag(f"added {rank}")
while not flag_is_up(f"added {1 - rank}"):
    shared.poll()  # the other rank may have to get the end of this one's
tell(least=int(counts.min()), most=int(counts.max()), polls=polls)
malt.barrier()  # nobody has begun to drain before
counts[0] += 1
shared.poll()  # begins no delta
tell(iteration=shared.iteration)
shared.drain()
tell(first=int(counts[0]), second=int(counts[1]))
""",
    )
    assert job.each("least") == job.each("most") == [3, 3]
    assert max(job.each("polls")) > 1
    assert job.each("iteration") == [1, 1]
    assert job.each("first") == [5, 5]
    assert job.each("second") == [3, 3]


@pytest.mark.parametrize("name", [3, "\ud800"])
def test_a_name_that_is_no_text_is_refused(alone: None, name: Any) -> None:
    with pytest.raises(malt.ConfigError, match=f"name is {name!r}; ".replace("\\", r"\\")):
        malt.ps.Shared(np.zeros(3), name=name)
