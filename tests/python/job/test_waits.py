"""Waits for ranks that do not come: they name the rank, end in time, and can be repeated."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import PROMPT, refused, run_job, start_job

LIMIT, SLACK = 3.0, 1.5  # seconds: of a call, and what a busy machine may add
# The ranks' exchanges when an edge is made or a subgroup formed over TCP: of the arguments, before
# they connect, until they have connected, and at the end.
AGREED, MET, CONNECTED, DONE = 1, 8, 10, 1


def test_a_rank_that_never_joins_is_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
if rank == 1:
    await_flag(0), await_flag(2)
else:
    raise_flag(f"here {rank}")
    await_flag(f"here {2 - rank}")  # one that starts much later would find that the other is gone
    tell(error=error_of(malt.init, timeout=1))
    raise_flag(rank)
""",
    )
    for rank in (0, 2):
        error = result.told[rank]["error"]
        assert error.kind == "TimeoutError"
        assert 1 in error.ranks
        assert error.says("rank", "1 s", "malt.init(timeout=...)", "MALT_TIMEOUT")
        assert error.seconds < PROMPT
    # The one that gave up first may itself be missed by the other; one names rank 1 alone.
    assert any(result.told[rank]["error"].ranks == (1,) for rank in (0, 2))


def test_a_rank_that_ends_without_joining_is_named_at_once(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
if rank != 1:
    tell(error=error_of(malt.init, timeout=60))
""",
    )
    for rank in (0, 2):
        error = result.told[rank]["error"]
        assert error.kind == "PeerError"
        assert error.ranks == (1,)
        assert error.says("rank 1")
        assert error.seconds < PROMPT


def test_waits_for_a_rank_that_does_nothing_name_it_and_can_be_repeated(tmp_path: Path) -> None:
    """Rank 2 joins and makes three vectors, then sleeps; the others' waits end in time."""
    result = run_job(
        tmp_path,
        3,
        """
meet("here")
malt.init(timeout=1 if rank != 2 else 60)
malt.barrier(60)
w = np.full(3, rank + 1.0)
v = malt.vector(w, name="w")
circle = malt.Graph([(0, 1), (1, 2), (2, 0)])
q = malt.vector(np.zeros(1), name="q", policy="queue", depth=2)
if rank == 2:
    await_flag(0), await_flag(1)
else:
    v.scatter()
    tell(bsp=error_of(v.gather, malt.SUM, staleness=0), short=error_of(
        v.gather, malt.SUM, staleness=0, timeout=0.1), kept=w.copy())
    q.scatter(); q.scatter()
    iteration = q.iteration
    tell(full=error_of(q.scatter), iterations=(iteration, q.iteration))
    tell(allreduce=error_of(v.allreduce, timeout=0.5))
    tell(barrier=error_of(malt.barrier, 0.2), again=error_of(malt.barrier))
    tell(busy=error_of(malt.vector, np.zeros(3), name="n"))
    raise_flag(rank)
malt.barrier(60)
tell(never=error_of(malt.vector, np.zeros(3), name="n") if rank != 2 else None)
raise_flag(f"never {rank}")
if rank == 2:
    await_flag("never 0"), await_flag("never 1")
n = malt.vector(w, name="n")
if rank == 2:
    v.scatter()
v.gather(malt.SUM, staleness=0, timeout=60)
tell(w=w, pending=q.gather(malt.SUM).count)
malt.barrier(60)
""",
    )
    late = [result.told[rank]["allreduce"].says("did not come within 0.5 s") for rank in (0, 1)]
    assert any(late)  # the other may have found that the first one has given up
    for rank in (0, 1):
        told = result.told[rank]
        other = 1 - rank
        for name, seconds in (("bsp", 1), ("short", 0.1)):
            assert told[name].ranks == (2,)
            assert told[name].says("gather of vector 'w'", "rank 2", "iteration 1")
            assert seconds <= told[name].seconds < PROMPT
        assert told["full"].ranks in ((2,), tuple(sorted((2, other))))
        assert told["full"].says("scatter of vector 'q'", "all 2 slots", "rank", "raise depth")
        assert told["iterations"] == (2, 2)
        assert 2 in told["allreduce"].ranks or told["allreduce"].says("gave up waiting")
        assert told["barrier"].ranks[-1] == 2
        assert told["barrier"].says("barrier", "rank", "did not come within 0.2 s")
        assert told["again"].ranks[-1] == 2
        assert refused(
            told["busy"],
            "'malt.barrier' timed out or was interrupted on this rank",
            "repeat that first",
        )
        assert told["never"].ranks[-1] == 2
        assert told["never"].says("vector 'n'", "did not come within 1 s")
        for name in ("bsp", "short", "full", "allreduce", "barrier", "again", "never"):
            assert told[name].kind == "TimeoutError", told[name]
            assert told[name].seconds < PROMPT
        assert told["kept"].tolist() == [rank + 1] * 3
    assert [told["w"].tolist() for told in result.told] == [[6.0] * 3] * 3
    assert [told["pending"] for told in result.told] == [2, 2, 4]


INTERRUPTED = {
    "gather": "v.gather(staleness=0)",
    "scatter": "q.scatter()",
    "barrier": "malt.barrier()",
    "allreduce": "v.allreduce()",
    "vector": "malt.vector(np.zeros(3), name='n')",
}


def test_ctrl_c_ends_each_wait_at_once(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=100)
w = np.full(3, rank + 1.0)
v = malt.vector(w, name="v")
q = malt.vector(np.zeros(1), name="q", policy="queue", depth=1)
if rank == 0:
    v.scatter()
    q.scatter()
    errors = {}
    for name in calls:
        errors[name] = interrupted(lambda: exec(calls[name], globals()))
        if name in ("barrier", "vector"):
            raise_flag(name)
            exec(calls[name])
    tell(errors=errors)
else:
    await_flag("barrier")
    malt.barrier()
    await_flag("vector")
    malt.vector(np.zeros(3), name="n")
    v.scatter()
g = v.gather(malt.SUM, staleness=0)
tell(w=w, count=g.count)
malt.barrier()
""",
        calls=INTERRUPTED,
    )
    for name, error in result.told[0]["errors"].items():
        assert error is not None, f"{name} went on through Ctrl-C"
        assert error.kind == "builtins.KeyboardInterrupt", (name, error)
        assert 0.2 < error.seconds < PROMPT, (name, error)
    assert [told["w"].tolist() for told in result.told] == [[3.0] * 3] * 2


def test_allreduce_that_ctrl_c_ended_does_not_leave_its_rank_out_of_the_others(
    tmp_path: Path,
) -> None:
    """It is over for all of them, or for none: whoever gets a result has the sum of both."""
    result = run_job(
        tmp_path,
        2,
        """
meet("here")
malt.init(timeout=5)
w = np.full(3, rank + 1.0)
v = malt.vector(w)
if rank == 1:
    tell(interrupted=interrupted(lambda: v.allreduce(malt.SUM)))
    raise_flag("interrupted")
else:
    await_flag("interrupted")
    time.sleep(0.3)  # rank 1 is in its second call
errors = []
for attempt in range(3):
    error = error_of(v.allreduce, malt.SUM)
    errors.append(error)
    if error is None:
        break
tell(errors=errors, w=w)
malt.barrier(30)
""",
    )
    assert result.told[1]["interrupted"].kind == "builtins.KeyboardInterrupt"
    if (first := result.told[0]["errors"][0]) is not None:
        assert first.says("rank 1 gave up waiting (at the time limit, or interrupted)"), first
        assert first.ranks == (1,)
    for told in result.told:
        assert told["errors"][-1] is None, told["errors"]
        assert told["w"].tolist() == [3.0] * 3


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("count", [8, 30_000])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_round_that_is_interrupted_or_times_out_is_in_all_results_once(
    tmp_path: Path, transport: str, count: int, size: int
) -> None:
    """Others may have ended a call that an exception ends here; the next call goes on with it."""
    result = run_job(
        tmp_path,
        size,
        """
malt.init(timeout=30)
w = np.zeros(count)
v = malt.vector(w)
v.allreduce(malt.SUM)

class Interrupt(Exception):
    pass

def interrupt(*_):
    global is_due
    if is_due:
        is_due = False
        raise Interrupt

is_due = False
signal.signal(signal.SIGALRM, interrupt)
if rank == 1:
    signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
draw = np.random.default_rng(rank)
failures = 0
wrong = []
has_failed = np.zeros(1)  # on how many of the ranks 0 and 1
failed = malt.vector(has_failed)
round = 0
while round < 400 or has_failed[0] < 2:
    round += 1
    before = v.uses.allreduces
    while v.uses.allreduces == before:
        w[:] = round
        time.sleep(draw.uniform(0, 0.0006))  # so that each rank waits for the others at times
        limit = draw.choice([0.0003, 30]) if rank == 0 else 30
        try:
            try:
                is_due = True
                v.allreduce(malt.SUM, timeout=limit)
            finally:
                is_due = False
        except (Interrupt, malt.TimeoutError):
            failures += 1
    if not (w == round * size).all():
        wrong.append((round, w[0], w[-1]))
    if round % 100 == 0:
        has_failed[0] = rank < 2 and failures > 0
        failed.allreduce(malt.SUM)
signal.setitimer(signal.ITIMER_REAL, 0)
tell(wrong=wrong)
malt.barrier()
""",
        transport=transport,
        count=count,
    )
    assert [told["wrong"] for told in result.told] == [[]] * size


@pytest.mark.parametrize("size", [2, 3])
def test_a_first_allreduce_that_ends_early_on_a_rank_works_when_it_is_repeated(
    tmp_path: Path, size: int
) -> None:
    """Between hosts it makes mailboxes first: the others may have ended the last step of that."""
    body = """
import threading
from malt._job import job as jobs

malt.init(timeout=20)
w = np.full(1_000_000, rank + 1.0)
v = malt.vector(w)
tell(pid=os.getpid())
malt.barrier()

def stop_before_the_last_step(posted):
    while jobs.current().group.posted < posted:
        time.sleep(1e-5)
    os.kill(os.getpid(), signal.SIGSTOP)

if rank == 0:
    posted = jobs.current().group.posted + 3  # to meet, and two of the three steps
    threading.Thread(target=stop_before_the_last_step, args=[posted]).start()
error = error_of(v.allreduce, malt.SUM, timeout=1.0 if rank == 1 else 20)
tell(error=error)
if rank == 1:
    await_flag("again")
if error is not None:
    v.allreduce(malt.SUM)
tell(sums=[w[0], w[-1]])
"""
    with start_job(tmp_path, size, body, environ={"MALT_TRANSPORT": "tcp"}) as job:
        [error] = job.await_told("error", ranks=[1])
        os.kill(job.told(0)["pid"], signal.SIGCONT)
        time.sleep(0.5)  # it ends the last step, or waits in it
        job.raise_flag("again")
        result = job.finish()
    if error is not None:  # on a busy machine rank 0 may stop when all is done
        assert error.kind == "TimeoutError", error
        assert 0 in error.ranks, error
        for other in [0, *range(2, size)]:  # the call that rank 1 has given up
            ended = result.told[other]["error"]
            assert ended.kind == "TimeoutError", ended
            assert 1 in ended.ranks or ended.says("1 gave up waiting"), ended
    assert result.each("sums") == [[size * (size + 1) / 2] * 2] * size


@pytest.mark.parametrize("comes", [False, True])
@pytest.mark.parametrize("closes", [False, True])
def test_a_rank_whose_first_allreduce_has_ended_may_make_another_call(
    tmp_path: Path, closes: bool, comes: bool
) -> None:
    """It need not repeat that one, and cannot if the vector is closed.

    `comes`: the other rank still comes to it; or else it goes on to the other call.
    """
    result = run_job(
        tmp_path,
        2,
        """
malt.init(transport="tcp", timeout=20)
v = malt.vector(np.full(3, rank + 1.0))
if rank == 0:
    tell(late=error_of(v.allreduce, timeout=0.3))
    if closes:
        v.close()
    raise_flag("late")
else:
    await_flag("late")
    tell(late=error_of(v.allreduce) if comes else None)
malt.barrier()
if not closes:
    v.allreduce(malt.SUM)
    tell(sum=v.array[0])
""",
        closes=closes,
        comes=comes,
    )
    assert result.told[0]["late"].ranks == (1,)
    if comes:
        late = result.told[1]["late"]
        assert late.kind == "TimeoutError"
        assert late.says("rank 0 gave up waiting"), late
        assert late.seconds < PROMPT
    assert closes or result.each("sum") == [3.0, 3.0]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_rank_whose_interrupt_ends_an_allreduce_is_named(
    tmp_path: Path, transport: str
) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=100)
v = malt.vector(np.full(3, rank + 1.0))
v.allreduce(malt.SUM)
if rank == 1:
    tell(error=interrupted(lambda: v.allreduce(malt.SUM)))
    raise_flag("over")
elif rank == 0:
    tell(error=error_of(v.allreduce, malt.SUM))
await_flag("over")
malt.barrier()
""",
        transport=transport,
    )
    error = result.told[0]["error"]
    assert error.kind == "TimeoutError"
    assert error.says("rank 2 did not come before rank 1 gave up waiting"), error
    assert error.ranks == (1,)
    assert error.seconds < PROMPT


def test_an_error_of_one_rank_ends_the_job_with_its_code(tmp_path: Path) -> None:
    """The example of a newcomer's first mistake: one rank's message is seen, and nothing hangs."""
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=100)
v = malt.vector(np.zeros(3, dtype="float16" if rank == 1 else "float32"))
""",
        code=1,
    )
    assert "[1] malt.ConfigError: dtype is float16; a vector has float32" in result.output


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_slow_wait_says_for_whom_and_goes_on(tmp_path: Path, transport: str) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(3), name="v")
q = malt.vector(np.zeros(3), name="q", policy="queue", depth=2)
def late(call):
    if rank == 1:
        time.sleep(0.6)
    call()
v.scatter()
late(lambda: v.scatter())
v.gather(malt.SUM, staleness=0)
late(lambda: v.allreduce(malt.SUM))
late(malt.barrier)
if rank == 0:
    for _ in range(3): q.scatter()
late(lambda: q.gather(malt.SUM))
malt.barrier()
""",
        environ={"MALT_TRANSPORT": transport, "MALT_SLOW_AFTER": "0.3"},
    )
    notices = [line for line in result.output.splitlines() if "rank 0 waits: " in line]
    for call, lacks in (
        ("gather of vector 'v'", "rank 1 did not scatter iteration 2"),
        ("allreduce of ", "rank 1 did not come"),
        ("malt.barrier", "rank 1 did not come"),
        ("scatter of vector 'q'", "all 2 slots hold updates that rank 1 did not gather"),
    ):
        about = [line for line in notices if f"waits: {call}" in line]
        assert len(about) == 1, (call, result.output)
        assert lacks in about[0]
        assert about[0].endswith("; this rank waits on, for up to 60 s")


def test_a_rank_that_gives_up_says_where_the_missing_one_is(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=3 if rank == 0 else 60)
v = malt.vector(np.zeros(3), name="v")
v.scatter()
if rank == 0:
    for _ in range(2): v.scatter()
    tell(gather=error_of(v.gather, malt.SUM, staleness=0), barrier=error_of(malt.barrier))
    raise_flag("told")
await_flag("told")
malt.barrier(60)
""",
    )
    told = result.told[0]
    assert told["gather"].says("within 3 s (this rank is at iteration 3, rank 1 at 1)")
    assert told["barrier"].says("(rank 1 was last in vector 'v')")
    for error in told.values():
        assert error.says(
            "a longer limit: malt.init(timeout=...) or MALT_TIMEOUT",
            ", or timeout= of a call that has it",
        )


@pytest.mark.parametrize(
    ("call", "most"),
    [
        ("malt.finalize()", LIMIT + 1),
        ("tables[0].close(timeout=LIMIT)", LIMIT + 1),
        ("tables[0].leave(timeout=LIMIT)", LIMIT),
    ],
)
def test_all_groups_are_left_within_one_limit_though_a_rank_is_stopped(
    tmp_path: Path, call: str, most: float
) -> None:
    body = """
malt.init(timeout=LIMIT, silence=60)
tables = [malt.ps.Table(10) for _ in range(2)]
edge = malt.messages.Edge(0, 1)
malt.barrier()
tell(pid=os.getpid())
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
await_flag("stopped")
start = time.monotonic()
try:
    exec(call)
except malt.TimeoutError:
    pass
tell(seconds=time.monotonic() - start)
"""
    told = _told_beside_a_stopped_rank(tmp_path, body, "tcp", call=call)
    assert told["seconds"] < most + SLACK


@pytest.mark.parametrize(
    ("call", "transport", "steps"),
    [
        ("malt.vector(np.zeros(1 << 20), name='w')", "shm", 1),
        ("malt.sparse_vector(1000, capacity=10)", "tcp", 1),
        ("malt.messages.Edge(0, 1)", "shm", 1),
        ("malt.messages.Edge(0, 1)", "tcp", AGREED + MET),
        ("malt.messages.Edge(0, 1)", "tcp", AGREED + CONNECTED),
        ("[kept.append(subgroups.form([0, 1], lambda group: group)) for _ in 'ab']", "tcp", MET),
        (
            "[kept.append(subgroups.form([0, 1], lambda group: group)) for _ in 'ab']",
            "tcp",
            CONNECTED + DONE + MET,
        ),
        ("malt.ps.Shared(np.zeros(10))", "shm", 1),
        ("malt.ps.Table(10)", "shm", 1),
        ("malt.ps.Table(10)", "tcp", 11),
        ("malt.optimize.Consensus(np.zeros(10))", "shm", 1),
        ("malt.Pool(over=malt.init())", "shm", 0),
        ("malt.save(path, {'v': np.zeros(10)}, timeout=LIMIT)", "shm", 1),
    ],
)
def test_a_call_of_several_steps_has_one_limit(
    tmp_path: Path, call: str, transport: str, steps: int
) -> None:
    """Rank 1 comes late, and is stopped after so many steps of the call; 0: in the first one."""
    body = """
import threading
from malt._core_import import Group
from malt._job import job as jobs
from malt._messages.subgroup import Subgroups
malt.init(timeout=LIMIT, silence=60)
subgroups, kept = Subgroups("two subgroups"), []
malt.barrier()
tell(pid=os.getpid())
if rank == 1:
    time.sleep(LIMIT * 2 / 3)
    exchange, left, before = Group.exchange, steps, jobs.current().group.posted
    def stop_in_first():
        while jobs.current().group.posted == before:
            time.sleep(1e-5)
        os.kill(os.getpid(), signal.SIGSTOP)
    if steps == 0:
        threading.Thread(target=stop_in_first, daemon=True).start()
    def exchange_and_stop(*given):
        global left
        posts = exchange(*given)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return posts
    Group.exchange = exchange_and_stop
start = time.monotonic()
error = error_of(lambda: eval(call))
tell(seconds=time.monotonic() - start, error=error)
"""
    path = str(tmp_path / "checkpoints")
    told = _told_beside_a_stopped_rank(tmp_path, body, transport, call=call, path=path, steps=steps)
    assert told["error"].kind == "TimeoutError"
    assert told["error"].ranks == (1,)
    assert told["error"].says("rank 1 did not come within 3 s")
    assert told["seconds"] < LIMIT + SLACK


def test_a_pools_program_that_misses_a_rank_ends_soon_after_its_limit(tmp_path: Path) -> None:
    """Leaving the program's job, and waiting for the answer of the rank, take 3 s more."""
    body = """
def program():
    v = malt.vector(np.zeros(1))
    v.allreduce()
    if malt.rank() == 1:
        tell(pid=os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    v.allreduce()
malt.init(timeout=LIMIT, silence=60)
with malt.Pool(over=malt.init()) as pool:
    if pool:
        start = time.monotonic()
        error = error_of(pool.run, program)
        tell(seconds=time.monotonic() - start, error=error)
"""
    told = _told_beside_a_stopped_rank(tmp_path, body, "tcp")
    assert told["error"].kind == "TimeoutError"
    assert told["error"].ranks == (1,)
    assert told["seconds"] < LIMIT + 3 + SLACK


def test_a_wait_without_time_says_so(tmp_path: Path) -> None:
    body = """
malt.init(timeout=60)
v = malt.vector(np.zeros(1))
if rank == 0:
    tell(error=error_of(v.allreduce, timeout=0.0))
meet("end")
"""
    error = run_job(tmp_path, 2, body).told[0]["error"]
    assert error.says("rank 1 did not come within 0 s"), error


def _told_beside_a_stopped_rank(
    directory: Path, body: str, transport: str, **given: Any
) -> dict[str, Any]:
    """Return what rank 0 tells in a job of two whose rank 1 stops itself."""
    given["LIMIT"] = LIMIT
    header = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    environ = {"MALT_TRANSPORT": transport}
    with start_job(directory, 2, header + body, "--keep-going", environ=environ) as job:
        [pid] = job.await_told("pid", ranks=[1])
        stat = Path(f"/proc/{pid}/stat")
        while stat.read_text().rpartition(") ")[2][0] != "T":
            assert not job.has_ended
        job.raise_flag("stopped")
        job.await_told("seconds", ranks=[0])
        os.kill(pid, signal.SIGKILL)
        return job.told(0)
