"""pool.run() of a pool over a job: a program of MALT on the job's ranks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from jobs import PROMPT, refused, run_job
from nodes import Nodes

SEEDS = range(int(os.environ.get("MALT_SEEDS", 1)))

# Programs that the pool can run, at the top of the script.
PROGRAMS = """
import threading

def train(x, *, rounds):
    malt.init()
    mine = malt.shard(x)
    vector = malt.vector(np.zeros(3), graph=malt.ALL)
    for _ in range(rounds):
        vector.array[:] = len(mine)
        vector.scatter()
        vector.gather(malt.SUM, staleness=0)
    malt.barrier()
    may_write = [each.flags.writeable for each in (x, vector.array)]
    return malt.rank(), float(malt.allreduce(mine.sum(), malt.SUM)), vector.array, may_write

def total():
    return int(malt.allreduce(np.array([1 << malt.rank()]), malt.SUM)[0])

def first(theta, x):
    return int(x[0])

def in_gather():
    vector = malt.vector(np.zeros(3), graph=malt.ALL)
    while True:
        vector.scatter()
        vector.gather(staleness=0)

def in_barrier():
    while True:
        malt.barrier()

def in_making():
    while True:
        malt.vector(np.zeros(3)).close()

def in_python():
    while True:
        pass

def in_sleep():
    await_flag("never")

def fail(where, which):
    if malt.rank() == which:
        raise ValueError("of rank", which)
    globals()[where]()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [1, 3])
def test_program_of_malt_runs_on_all_ranks(tmp_path: Path, transport: str, size: int) -> None:
    body = """
job = malt.init(timeout=60)
with malt.Pool(over=job) as pool:
    if pool:
        x = np.arange(1000.0)
        for _ in range(2):
            results = pool.run(train, x, rounds=3)
            tell(results=results)
        pool.run(train, x, rounds=1)[0][2][:] = 7    # the caller's own
        tell(bits=pool.sum(first, None, pool.share(2 ** np.arange(4), chunks=4)))
        tell(calls=pool.stats().calls)
tell(is_same=malt.init() is job, after=int(malt.allreduce(np.ones(1), malt.SUM)[0]))
"""
    environ = {"MALT_TRANSPORT": transport}
    result = run_job(tmp_path, size, PROGRAMS + body, environ=environ)
    told = result.told[0]
    assert [rank for rank, _, _, _ in told["results"]] == list(range(size))
    for _, summed, array, may_write in told["results"]:
        assert summed == np.arange(1000.0).sum()
        np.testing.assert_allclose(array, 1000)
        assert may_write == [False, True]
    assert (told["bits"], told["calls"]) == (15, 4)
    assert result.each("is_same") == [True] * size
    assert result.each("after") == [size] * size


@pytest.mark.parametrize("where", ["in_gather", "in_barrier", "in_making", "in_python", "in_sleep"])
def test_failure_of_a_rank_stops_the_others(tmp_path: Path, where: str) -> None:
    body = """
with malt.Pool(over=malt.init(timeout=600)) as pool:
    if pool:
        for which in range(3):
            error = error_of(lambda: pool.run(fail, where, which))
            try:
                pool.run(fail, where, which)
            except ValueError as caught:
                cause = str(caught.__cause__)
            tell(**{f"error{which}": error, f"cause{which}": cause})
            tell(**{f"total{which}": pool.run(total)})
        tell(sum=pool.sum(first, None, pool.share(np.arange(9), chunks=9)))
tell(after=total())
"""
    result = run_job(tmp_path, 3, PROGRAMS + body, where=where)
    told = result.told[0]
    for which in range(3):
        error = told[f"error{which}"]
        assert error.kind == "builtins.ValueError"
        assert error.says("of rank", which)
        assert error.seconds < PROMPT
        assert which == 0 or f"on rank {which}:" in told[f"cause{which}"]
        assert which == 0 or "in fail" in told[f"cause{which}"]
        assert told[f"total{which}"] == [0b111] * 3
    assert told["sum"] == 36
    assert result.each("after") == [0b111] * 3


def test_rank_that_cannot_be_stopped_yet_does_not_delay_the_error(tmp_path: Path) -> None:
    body = """
def sleep_long():
    if malt.rank() == 1:
        raise ValueError
    if malt.rank() == 2:
        time.sleep(8)         # in which no step of Python is
        raise_flag("awake")

with malt.Pool(over=malt.init(timeout=600)) as pool:
    if pool:
        tell(error=error_of(lambda: pool.run(sleep_long)), awake=flag_is_up("awake"))
        tell(total=pool.run(total))
        tell(went_on=flag_is_up("awake"))
"""
    told = run_job(tmp_path, 3, PROGRAMS + body).told[0]
    assert told["error"].kind == "builtins.ValueError"
    assert told["error"].seconds < 8
    assert told["total"] == [0b111] * 3
    assert not told["went_on"]


def test_error_of_the_rank_that_failed_by_itself_comes_out(tmp_path: Path) -> None:
    body = """
from malt._pool.over_job import running
running._GRACE_SECONDS = 60     # for a busy machine

def fail_both():
    if malt.rank() == 1:
        raise malt.PeerError("rank 2 is missed", [2])
    if malt.rank() == 2:
        try:
            await_flag("never")
        finally:
            raise ValueError("the cause")
    await_flag("never")

def make_object():
    return object()

def exit_code():
    sys.exit("enough")

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        tell(both=error_of(lambda: pool.run(fail_both)),
             object=error_of(lambda: pool.run(make_object)),
             argument=error_of(lambda: pool.run(first, object(), 0)),
             inner=error_of(lambda: pool.run(lambda: 0)))
        tell(total=pool.run(total))
"""
    told = run_job(tmp_path, 3, PROGRAMS + body).told[0]
    assert told["both"].kind == "builtins.ValueError"
    assert told["both"].says("the cause")
    assert refused(told["object"], "a result of pool.run()", "builtins.object")
    assert refused(told["argument"], "an argument of pool.run()", "builtins.object")
    assert refused(told["inner"], "<lambda>", "by name")
    assert told["total"] == [0b111] * 3


def test_program_may_leave_its_job_and_the_ranks_keep_theirs(tmp_path: Path) -> None:
    body = """
def leave_early(how):
    with malt.init() as job:
        made = malt.vector(np.ones(2))
        pool = error_of(lambda: malt.Pool(over=job))
        if how == "leave":
            malt.jobs.leave()
    return [str(pool), str(error_of(malt.init)), str(error_of(malt.rank)), made.array]

job = malt.init(timeout=60)
before = malt.vector(np.ones(2), graph=malt.ALL)
with malt.Pool(over=job) as pool:
    if pool:
        tell(with_=pool.run(leave_early, "with"), leave=pool.run(leave_early, "leave"))
        tell(total=pool.run(total))
before.scatter()
before.gather(malt.SUM, staleness=0)
tell(is_same=malt.init() is job, array=before.array)
malt.finalize()
tell(error=error_of(lambda: malt.rank()))
"""
    result = run_job(tmp_path, 2, PROGRAMS + body)
    for how in ("with_", "leave"):
        for pool, init, rank, array in result.told[0][how]:
            assert "a pool already" in pool
            assert "has left its job" in init
            assert "has left its job" in rank
            assert array.tolist() == [1, 1]
    assert result.told[0]["total"] == [0b11] * 2
    assert result.each("is_same") == [True, True]
    assert [each.tolist() for each in result.each("array")] == [[2, 2]] * 2
    for error in result.each("error"):
        assert refused(error, "malt.init()", "no job")


DEATH = """
def die(which):
    vector = malt.vector(np.zeros(1), graph=malt.ALL)
    if malt.rank() == which:
        os.kill(os.getpid(), signal.SIGKILL)
    while which in malt.alive():
        vector.scatter()
        vector.gather(staleness=0)
    return which in malt.alive()

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        for name in ("during", "after"):
            results = pool.run(die, dying) if name == "during" else pool.run(total)
            died = results[dying]
            results[dying] = (type(died).__name__, str(died), getattr(died, "ranks", None))
            tell(**{name: results})
        tell(alive=malt.alive())
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_others_go_on_when_a_rank_dies(tmp_path: Path, transport: str) -> None:
    environ = {"MALT_TRANSPORT": transport}
    result = run_job(
        tmp_path, 4, PROGRAMS + DEATH, "--keep-going", code=None, environ=environ, dying=1
    )
    told = result.told[0]
    for name, expected in (("during", False), ("after", 0b1101)):
        kind, text, ranks = told[name].pop(1)
        assert (kind, ranks) == ("PeerError", (1,))
        assert "rank 1" in text
        assert told[name] == [expected] * 3
    assert told["alive"] == (0, 2, 3)


def test_ranks_of_two_nodes_run_a_program_and_one_may_die(tmp_path: Path) -> None:
    body = f"dying = 2\n{PROGRAMS}{DEATH}"
    nodes = Nodes(tmp_path, body, ["--keep-going"] * 2, ranks=2, MALT_TRANSPORT="tcp")
    try:
        assert nodes.await_told("alive", ranks=[0]) == [(0, 1, 3)]
        assert nodes.told(0)["after"][:2] == [0b1011] * 2
    finally:
        nodes.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rank_may_be_killed_at_any_moment(tmp_path: Path, transport: str, seed: int) -> None:
    """Also while the program's group is made, and in the middle of a result."""
    body = """
def kill_soon():
    raise_flag("begun")
    time.sleep(np.random.default_rng([seed, rank]).uniform(0, 0.1))
    os.kill(os.getpid(), signal.SIGKILL)

def work(x):
    if rank == 1 and not flag_is_up("begun"):
        threading.Thread(target=kill_soon).start()
    return malt.allreduce(np.ones(1), malt.SUM) + np.zeros(200_000)

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        number, errors = 0, []
        while 1 in malt.alive():
            number += 1
            try:
                assert 2 <= min(each[0] for each in pool.run(work, np.zeros(1000))) <= 3
            except malt.PeerError as error:        # it died before the program began, or a rank
                errors.append(str(error))          # missed it
            except TypeError:                      # its result is an error
                pass
        tell(number=number, errors=errors, total=pool.run(total)[::2])
"""
    environ = {"MALT_TRANSPORT": transport}
    result = run_job(
        tmp_path, 3, PROGRAMS + body, "--keep-going", code=None, environ=environ, seed=seed
    )
    told = result.told[0]
    assert told["number"] > 0
    assert told["total"] == [0b101] * 2
    assert len(told["errors"]) <= 1, told["errors"]


@pytest.mark.parametrize("where", ["in_gather", "in_python"])
def test_death_of_rank_0_ends_the_program_of_the_others(tmp_path: Path, where: str) -> None:
    body = """
def die_first():
    if malt.rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    globals()[where]()

job = malt.init(timeout=600)
if rank > 0:
    tell(error=error_of(lambda: malt.Pool(over=job)))
else:
    malt.Pool(over=job).run(die_first)
"""
    result = run_job(tmp_path, 3, PROGRAMS + body, "--keep-going", code=None, where=where)
    for told in result.told[1:]:
        assert told["error"].kind == "PeerError"
        assert told["error"].says("rank 0", "malt.Pool")


@pytest.mark.parametrize("where", ["in_gather", "in_barrier", "in_making", "in_python", "in_sleep"])
def test_interrupt_stops_the_program_everywhere(tmp_path: Path, where: str) -> None:
    body = """
def run_on():
    raise_flag(f"begun-{malt.rank()}")
    globals()[where]()

def interrupt():
    for each in range(3):
        await_flag(f"begun-{each}")
    os.kill(os.getpid(), signal.SIGINT)

with malt.Pool(over=malt.init(timeout=600)) as pool:
    if pool:
        threading.Thread(target=interrupt).start()
        tell(error=error_of(lambda: pool.run(run_on)))
        tell(total=pool.run(total))
tell(after=total())
"""
    result = run_job(tmp_path, 3, PROGRAMS + body, where=where)
    assert result.told[0]["error"].kind == "builtins.KeyboardInterrupt"
    assert result.told[0]["total"] == [0b111] * 3
    assert result.each("after") == [0b111] * 3


def test_runs_stand_interrupts_at_any_moment(tmp_path: Path) -> None:
    """Also while the program's group is made, and while it is left.

    Over TCP the ranks may then wait for 30 s, until their connections are given up.
    """
    body = """
def work(x):
    return malt.allreduce(np.full(1000, float(malt.rank())), malt.SUM)

def bother():
    draw = np.random.default_rng(0)
    while not has_ended:
        time.sleep(draw.uniform(0, 0.05))
        if is_calling:
            os.kill(os.getpid(), signal.SIGINT)
            await_interrupt.acquire()

job = malt.init(timeout=60)
with malt.Pool(over=job) as pool:
    if pool:
        is_calling, has_ended, await_interrupt = False, False, threading.Semaphore(0)
        thread = threading.Thread(target=bother)
        thread.start()
        wrong = 0
        for _ in range(30):
            try:
                is_calling = True
                while True:
                    wrong += any((each != 3).any() for each in pool.run(work, np.zeros(10_000)))
            except KeyboardInterrupt:
                is_calling = False
                await_interrupt.release()
        has_ended = True
        thread.join()
        tell(wrong=wrong, total=pool.run(total))
tell(is_same=malt.init() is job, after=total())
"""
    result = run_job(tmp_path, 3, PROGRAMS + body, environ={"MALT_TRANSPORT": "shm"})
    assert (result.told[0]["wrong"], result.told[0]["total"]) == (0, [0b111] * 3)
    assert result.each("is_same") == [True] * 3
    assert result.each("after") == [0b111] * 3
