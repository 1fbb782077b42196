"""Vectors, edges and collective calls: what an interrupt at any moment leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import refused, run_job

COLLECTIVE = """
from interrupts import AlarmError, interrupts_of_rank_0
malt.init(timeout=1)
a, b = np.full(3, float(rank)), np.zeros(3)
malt.save("saved", {"a": a})
if rank == 0:
    open("rows.csv", "w").write("1,2\\n" * 500)
malt.barrier()
right, kinds, moments = set(), set(), 0
for where, errors, made in interrupts_of_rank_0("call", MAKE, FILES, step=STEP, raised=RAISED):
    right.add(RIGHT)
    kinds |= {type(error).__name__ for error in errors}
    moments += 1
    made = None
tell(right=right, kinds=kinds, moments=moments)
malt.barrier()
"""


def sum_over(vector: str) -> str:
    return f"({vector}.array.__setitem__(0, rank + 1), {vector}.allreduce(malt.SUM), "


@pytest.mark.parametrize(
    ("make", "files", "step", "right"),
    [
        (
            "lambda: malt.vector(np.zeros(1))",
            ["calls.py"],
            1,
            sum_over("made") + "made.array[0] == 3, made.close())[2]",
        ),
        (
            "lambda: malt.allreduce(rank + 1, malt.SUM)",
            ["agree", "collective", "calls"],
            5,
            "made == 3",
        ),
        ("lambda: malt.broadcast([rank])", ["agree", "collective", "calls"], 5, "made == [0]"),
        ("malt.barrier", [""], 1, "made is None"),
        (
            "lambda: malt.messages.Edge(0, 1)",
            ["edge", "subgroup", "agree"],
            13,
            "(made.send([7]) is None if rank == 0 else made.receive() == [7], made.close())[0]",
        ),
        (
            "lambda: malt.save('again', {'a': a})",
            [""],
            29,
            "(b.fill(9), malt.restore('again', {'a': b}), b[0] == rank)[2]",
        ),
        ("lambda: malt.restore('saved', {'a': b})", [""], 29, "(b[0] == rank, b.fill(9))[0]"),
        (
            "lambda: malt.load_data('rows.csv', label=0)",
            [""],
            29,
            "malt.allreduce(made.y.size, malt.SUM) == 500",
        ),
    ],
    ids=["vector", "allreduce", "broadcast", "barrier", "edge", "save", "restore", "load_data"],
)
def test_collective_call_works_again_after_an_interrupt_of_one_rank(
    tmp_path: Path, make: str, files: list[str], step: int, right: str
) -> None:
    are_alike = ("malt.allreduce", "malt.broadcast", "malt.barrier")
    raised = "AlarmError" if any(call in make for call in are_alike) else "KeyboardInterrupt"
    body = COLLECTIVE.replace("MAKE", make).replace("FILES", repr(files)).replace("RAISED", raised)
    body = body.replace("STEP", str(step)).replace("RIGHT", f"bool({right})")
    result = run_job(tmp_path, 2, body)
    assert result.each("right") == [{True}] * 2
    assert result.told[0]["moments"] > 3
    assert result.told[0]["kinds"] >= {raised}
    assert result.told[1]["kinds"] <= {"ConfigError", "TimeoutError"}
    if raised == "AlarmError":
        assert result.told[0]["kinds"] <= {raised, "TimeoutError"}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("malt.allreduce(np.full(count, float(turn)), malt.SUM)", "turn * size"),
        ("malt.broadcast(np.full(count, float(turn)) if rank == 0 else None)", "turn"),
    ],
    ids=["allreduce", "broadcast"],
)
@pytest.mark.parametrize(("count", "seconds"), [(8, 0.003), (3000, 0.02)])
def test_call_that_is_interrupted_does_not_mix_with_the_next(
    tmp_path: Path, call: str, expected: str, count: int, seconds: float
) -> None:
    """The others may have ended it, and are then in their next one when this rank repeats it."""
    body = """
class Interrupt(BaseException):
    pass

def interrupt(_, frame):
    global is_due
    # Out of a frame of the test's, nobody could tell whether the call has ended.
    if is_due and frame.f_code.co_filename != __file__:
        is_due = False
        raise Interrupt

malt.init(timeout=60)
malt.allreduce(np.zeros(1))  # imports what it needs
is_due = False
interrupts = 0
wrong = []
signal.signal(signal.SIGALRM, interrupt)
if rank == 1:
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
for turn in range(1, 151):
    while True:
        try:
            is_due = True
            got = CALL
            is_due = False
            break
        except Interrupt:
            interrupts += 1
    if set(got.tolist()) != {EXPECTED}:
        wrong.append((turn, got[0], got[-1]))
signal.setitimer(signal.ITIMER_REAL, 0)
tell(wrong=wrong, interrupts=interrupts)
malt.barrier()
"""
    body = body.replace("CALL", call).replace("EXPECTED", expected)
    result = run_job(tmp_path, 2, body, count=count, seconds=seconds)
    assert result.each("wrong") == [[], []]
    assert result.told[1]["interrupts"]


def test_interrupted_receive_loses_no_array_and_keeps_no_other_thread_out(tmp_path: Path) -> None:
    body = """
from interrupts import interrupts
malt.init(timeout=10)
edge = malt.messages.Edge(1, 0, depth=64)
if rank == 1:
    for number in range(200):
        edge.send(number)
else:
    got = []
    for where in interrupts(lambda: got.append(int(edge.receive()))):
        thread = threading.Thread(target=lambda: got.append(int(edge.receive(timeout=5))))
        thread.start()
        thread.join()
    moments = len(got)
    while len(got) < 200:
        got.append(int(edge.receive()))
    tell(got=got, moments=moments)
malt.barrier()
"""
    told = run_job(tmp_path, 2, body).told[0]
    assert sorted(told["got"]) == list(range(200))
    assert told["moments"] > 20


def test_repeated_call_with_other_arguments_does_not_pass_as_the_first(tmp_path: Path) -> None:
    body = """
malt.init(timeout=0.5 if rank == 0 else 30)
call = functools.partial(error_of, malt.shard, chunk=2)
if rank == 0:
    first = call(np.zeros(10))
    raise_flag("late")
    tell(first=first, other=call(np.zeros(12)))
else:
    await_flag("late")
    tell(error=call(np.zeros(10)))
"""
    told = run_job(tmp_path, 2, "import functools\n" + body).told
    assert told[0]["first"].kind == "TimeoutError"
    assert refused(told[0]["other"], "malt.shard: an exception has ended this call before"), told
    assert told[1]["error"] is None or told[1]["error"].ranks == (0,), told


def test_a_call_that_goes_on_has_the_settings_of_the_first(tmp_path: Path) -> None:
    """A refused one changes nothing: the call is still the one that the others are in."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
errors, got = [], []
if rank == 0:
    errors.append(error_of(malt.allreduce, 1, malt.SUM, timeout=0.1))
    errors.append(error_of(malt.allreduce, 5, malt.AVG))
    errors.append(error_of(malt.allreduce, 5, malt.REPLACE))
    errors.append(error_of(malt.allreduce, 5, malt.SUM, timeout=-1))
else:
    time.sleep(0.5)
got += [malt.allreduce(10 ** rank, malt.SUM), malt.allreduce(2 * 10 ** rank, malt.SUM)]
if rank == 0:
    errors.append(error_of(malt.broadcast, "a", 0, timeout=0.1))
    errors.append(error_of(malt.broadcast, "b", 1))
    errors.append(error_of(malt.broadcast, "b", 7))
else:
    time.sleep(0.5)
got += [malt.broadcast("a", 0), malt.broadcast("c", 1)]
tell(errors=errors, got=got)
""",
    )
    assert result.each("got") == [[11, 22, "a", "c"]] * 2
    first, folds, fold, timeout, second, roots, root = result.told[0]["errors"]
    assert first.kind == second.kind == "TimeoutError"
    assert folds.says("whose fold was malt.SUM; here it is malt.AVG; repeat that call first")
    assert fold.says("fold is REPLACE; malt.allreduce takes malt.AVG")
    assert timeout.says("timeout is -1")
    assert roots.says("whose root was 0; here it is 1; repeat that call first")
    assert root.says("root is 7")


def test_allreduce_inside_its_own_fold_is_refused(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
inside = error_of(malt.allreduce, rank, lambda values: malt.allreduce(values[0], max))
beside = malt.allreduce(rank, lambda values: malt.broadcast(values))
tell(inside=inside, beside=beside, after=malt.allreduce(rank, malt.SUM))
""",
    )
    assert result.each("beside") == [[0, 1]] * 2
    assert result.each("after") == [1, 1]
    for error in result.each("inside"):
        assert error.kind == "ConfigError"
        assert error.says("malt.allreduce inside the function that malt.allreduce folds with")


def test_a_new_thread_does_not_go_on_with_the_call_of_one_that_has_ended(tmp_path: Path) -> None:
    """Threads' numbers are used again; the new one makes a call of its own."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=40)
got = []
def run(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return thread.ident
def fold(values):
    raise KeyboardInterrupt if rank == 0 and 1 in values else RuntimeError
threading.excepthook = lambda _: None
numbers = {run(lambda: malt.allreduce(rank, fold)) for _ in range(2)}
run(lambda: got.append(malt.allreduce(10 + rank, malt.SUM)))
tell(got=got, numbers=numbers)
""",
    )
    assert result.each("got") == [[21]] * 2


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("made", ["vector(x)", "sparse_vector(3, capacity=3)"])
def test_vector_that_an_exception_takes_is_missed_by_the_others(
    tmp_path: Path, made: str, transport: str
) -> None:
    """Without that rank's part their results would be wrong without a word."""
    body = f"""
malt.init(timeout=2)
x = np.full(3, rank + 1.0)
v = malt.{made}
if rank == 1:
    del v
    await_flag(0), await_flag(2)
else:
    if hasattr(v, "allreduce"):
        tell(error=error_of(v.allreduce, malt.SUM))
    else:
        v.scatter()
        tell(error=error_of(v.gather, malt.SUM, staleness=0))
    raise_flag(rank)
"""
    told = run_job(tmp_path, 3, body, environ={"MALT_TRANSPORT": transport}).told
    for rank in (0, 2):
        assert told[rank]["error"].kind == "TimeoutError", told[rank]
        assert 1 in told[rank]["error"].ranks


def test_a_barrier_that_is_interrupted_and_repeated_is_not_the_others_next_one(
    tmp_path: Path,
) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=30)
if rank == 0:
    open("marks", "wb").write(bytes(8 * size))
malt.barrier()
marks = np.memmap("marks", np.int64, "r+", shape=(size,))

class Interrupt(BaseException):
    pass

def interrupt(_, frame):  # in the call, and not after it
    while frame.f_code.co_name != "<module>":
        if "/malt/" in frame.f_code.co_filename:
            raise Interrupt
        frame = frame.f_back

signal.signal(signal.SIGALRM, interrupt)
draw = np.random.default_rng(rank)
early, interrupts = [], 0
for step in range(1, 401):
    marks[rank] = step
    while True:
        if rank == 1 and draw.random() < 0.5:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + 3e-4 * draw.random())
        try:
            malt.barrier()
            break
        except Interrupt:
            interrupts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    early += [step] * bool(marks.min() < step)
tell(early=early, interrupts=interrupts)
""",
    )
    assert result.each("early") == [[]] * 3
    assert result.told[1]["interrupts"] > 0


PROGRAM = """
class Program:
    rounds = 0
    def schedule(self, length):
        self.rounds += 1
        return [self.rounds] * length if self.rounds < 4 else None
    def push(self, _):
        return [1.0]
    def pull(self, _):
        pass
"""


@pytest.mark.parametrize(
    "make",
    [
        "malt.optimize.Consensus(np.zeros(3))",
        "malt.optimize.schedule.run(Program(), length=1)",
        "malt.shard(np.zeros(100), chunk=7)",
        "malt.learn.Lasso(0.1).fit(np.eye(8), np.arange(8.0))",
    ],
    ids=["consensus", "schedule", "shard", "lasso"],
)
def test_a_call_that_times_out_while_it_makes_a_vector_is_repeated(
    tmp_path: Path, make: str
) -> None:
    """Rank 0 is late after the ranks have compared the arguments; both call again."""
    result = run_job(
        tmp_path,
        2,
        f"""
{PROGRAM}
malt.init(timeout=1)
def be_late(frame, event, _):
    if event == "call" and frame.f_code.co_name == "make" and "calls.py" in str(frame.f_code):
        sys.setprofile(None)
        time.sleep(2.2)
if rank == 0:
    sys.setprofile(be_late)
errors = []
while (error := error_of(lambda: {make})) is not None:
    errors.append(error.kind)
tell(errors=errors, total=malt.allreduce(rank + 1, malt.SUM, timeout=30))
""",
        "--keep-going",
    )
    assert result.each("total") == [3, 3]
    assert result.told[1]["errors"][0] == "TimeoutError"


def test_a_call_after_one_that_timed_out_takes_no_earlier_calls_result(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=1)
malt.barrier(30)
malt.allreduce(rank, max, timeout=30)
if rank == 0:
    tell(vector=error_of(malt.vector, np.zeros(3)))
    tell(barrier=error_of(malt.barrier), allreduce=error_of(malt.allreduce, rank, max))
    raise_flag("told")
await_flag("told")
""",
    )
    told = result.told[0]
    assert told["vector"].kind == "TimeoutError"
    for name in ("barrier", "allreduce"):
        assert refused(told[name], "cannot start", "repeat that first")
