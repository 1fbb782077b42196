"""malt.Pool(over=...): the ranks of a job as those of a pool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import refused, run_job
from nodes import Nodes

import malt

SEEDS = range(int(os.environ.get("MALT_SEEDS", 2)))

# Functions that the pool can call, at the top of the script.
FUNCTIONS = """
import threading, weakref

def squared_error(theta, x, y):
    error = x @ theta - y
    return float(error @ error), x.T @ error

def first(theta, x):
    return int(x[0])

def whole(theta, x):                   # a result and an argument of many messages
    return {"theta": theta + x[0], "rows": len(x)}

def die_once(theta, x):
    if rank in theta and not flag_is_up(f"died-{rank}"):
        raise_flag(f"died-{rank}")
        os.kill(os.getpid(), signal.SIGKILL)
    return int(x[0])

def die_in_last(theta, x):
    if x[0] == theta:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1

def exit_code(theta, x):
    sys.exit("enough")

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one, two)

def fail(kind, x):
    if x[0] == 7:
        raise {"value": ValueError("seven"), "odd": Odd("7", "odd"),
               "unicode": UnicodeDecodeError("utf-8", b"7", 0, 1, "odd")}[kind]
    return 0

def make_object(theta, x):
    return {"it": object()}

def of_many_shapes(theta, x):
    return np.zeros(int(x[0]) + 1)

BITS = np.left_shift(1, np.arange(40), dtype=np.int64)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [1, 3])
def test_sum_is_that_of_all_chunks(tmp_path: Path, transport: str, size: int) -> None:
    body = """
rng = np.random.default_rng(7)
X, y, theta = rng.normal(size=(1000, 5)), rng.normal(size=1000), np.arange(5.0)
with malt.Pool(over=malt.init(timeout=60)) as pool:
    tell(ranks=pool.ranks)
    if pool:
        tell(sum=pool.sum(squared_error, theta, pool.share(X, y, chunks=7)))
        bits = pool.share(BITS, chunks=40)
        tell(bits=[pool.sum(first, None, bits) for _ in range(20)])
        wide = np.arange(1e6)
        total = pool.sum(whole, wide, pool.share(np.ones(3), chunks=3), progress=True)
        tell(whole=np.array_equal(total["theta"], 3 * (wide + 1)), rows=total["rows"])
        total["theta"] += 1    # it is the caller's own
        tell(stats=pool.stats()._asdict())
tell(is_open=bool(pool), after=int(malt.allreduce(np.ones(1), malt.SUM)[0]))
"""
    environ = {"MALT_TRANSPORT": transport}
    result = run_job(tmp_path, size, FUNCTIONS + body, environ=environ)
    told = result.told[0]
    rng = np.random.default_rng(7)
    x, y, theta = rng.normal(size=(1000, 5)), rng.normal(size=1000), np.arange(5.0)
    with malt.Pool(1) as pool:  # the same bits as there

        def squared_error(theta: Any, x: Any, y: Any) -> Any:
            error = x @ theta - y
            return float(error @ error), x.T @ error

        cost, gradient = pool.sum(squared_error, theta, pool.share(x, y, chunks=7))
    assert told["sum"][0] == cost
    assert told["sum"][1].tobytes() == gradient.tobytes()
    assert told["bits"] == [2**40 - 1] * 20
    assert (told["whole"], told["rows"]) == (True, 3)
    assert "3/3" in result.output
    assert told["stats"]["calls"] == 22
    assert told["stats"]["chunks_copied"] == 7 + 40 + 1  # ones(3) has one chunk three times
    assert told["stats"]["chunks_found"] == 2
    assert result.each("is_open") == [False] * size
    assert result.each("ranks") == [size] * size
    assert result.each("after") == [size] * size


def test_chunk_goes_to_a_rank_once_and_leaves_with_its_data(tmp_path: Path) -> None:
    body = """
seen, there = {}, []

def has_moved(theta, x):
    there.append(weakref.ref(x))
    return seen.setdefault(float(x[0]), x.ctypes.data) != x.ctypes.data

def is_there(theta, x):
    return sum(each() is not None for each in there)

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        X = np.arange(400_000.0)
        first = pool.share(X, chunks=4)
        moved = [int(pool.sum(has_moved, None, first)) for _ in range(3)]
        X[-1] += 1
        second = pool.share(X, chunks=4)
        moved.append(int(pool.sum(has_moved, None, second)))  # the last chunk is a new one
        one = pool.share(np.zeros(2), chunks=2)
        tell(moved=moved, before=pool.sum(is_there, None, one))
        del first, second
        tell(after=pool.sum(is_there, None, one))
"""
    told = run_job(tmp_path, 2, FUNCTIONS + body).told[0]
    assert told["moved"] == [0, 0, 0, 1]
    assert told["before"] == 4 * 4  # each was noted in each of four calls
    assert told["after"] == 0


DEATHS = """
with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(BITS, chunks=40)
        tell(sums=[pool.sum(die_once, dying, data) for _ in range(3)])
        tell(taken=pool.stats().chunks_taken, alive=malt.alive())
        try:
            pool.sum(die_in_last, BITS[-1], data)
        except malt.PeerError as error:
            tell(error=str(error))
        tell(last=pool.sum(first, None, data))
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_chunks_of_ranks_that_die_are_done_by_others(tmp_path: Path, transport: str) -> None:
    result = run_job(
        tmp_path,
        6,
        FUNCTIONS + DEATHS,
        "--keep-going",
        dying=[1, 3],
        environ={"MALT_TRANSPORT": transport},
        code=None,
    )
    told = result.told[0]
    assert told["sums"] == [2**40 - 1] * 3
    assert told["taken"] == 3 * (7 + 7)  # of each of two ranks seven in each of three calls
    assert told["alive"] == (0, 2, 4, 5)
    assert "3 ranks have ended in chunk" in told["error"]
    assert told["last"] == 2**40 - 1  # rank 0 is left, and does all


def test_ranks_of_two_nodes_are_in_the_pool_and_one_may_die(tmp_path: Path) -> None:
    body = f"dying = [2]\n{FUNCTIONS}{DEATHS}"
    nodes = Nodes(tmp_path, body, ["--keep-going"] * 2, ranks=3, MALT_TRANSPORT="tcp")
    try:
        assert nodes.await_told("last", ranks=[0]) == [2**40 - 1]
        assert nodes.told(0)["sums"] == [2**40 - 1] * 3
    finally:
        nodes.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rank_may_be_killed_at_any_moment(tmp_path: Path, transport: str, seed: int) -> None:
    """Also in the middle of an answer or of a chunk that it is sent."""
    body = """
def kill_soon():
    raise_flag("begun")
    time.sleep(np.random.default_rng([seed, rank]).uniform(0, 0.1))
    os.kill(os.getpid(), signal.SIGKILL)

def work(theta, x):
    if rank == 1 and not flag_is_up("begun"):
        threading.Thread(target=kill_soon).start()
    return theta + x[:1000].sum()

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        theta, number, wrong = np.arange(200_000.0), 0, 0
        while 1 in malt.alive():
            number += 1
            X = np.full(600_000, float(number))
            total = pool.sum(work, theta, pool.share(X, chunks=6))
            wrong += not np.array_equal(total, 6 * (theta + 1000 * number))
        tell(wrong=wrong, number=number)
"""
    environ = {"MALT_TRANSPORT": transport}
    result = run_job(
        tmp_path, 3, FUNCTIONS + body, "--keep-going", code=None, environ=environ, seed=seed
    )
    assert result.told[0]["wrong"] == 0
    assert result.told[0]["number"] > 0


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "malt.finalize()"])
def test_end_of_rank_0_ends_the_others_with_an_error(tmp_path: Path, end: str) -> None:
    body = """
job = malt.init(timeout=60)
if rank > 0:
    tell(error=error_of(lambda: malt.Pool(over=job)))
else:
    pool = malt.Pool(over=job)
    pool.sum(first, 5, pool.share(np.full(2, 5)))
    exec(end)
    pool.close()
"""
    result = run_job(tmp_path, 3, FUNCTIONS + body, "--keep-going", code=None, end=end)
    for told in result.told[1:]:
        assert told["error"].kind == "PeerError"
        assert told["error"].says("rank 0", "malt.Pool")
        assert told["error"].ranks == (0,)


def test_interrupt_gives_a_call_up_and_the_pool_goes_on(tmp_path: Path) -> None:
    body = """
def wait_elsewhere(theta, x):
    if rank > 0:
        if flag_is_up("go"):
            raise_flag("went-on")
        await_flag("go")
    return int(x[0])

def answer_in_vain(theta, x):
    if rank == 0:
        await_flag("answered-1")
        await_flag("answered-2")
        time.sleep(0.5)            # the answers come, and this rank does not take them in
        raise KeyboardInterrupt
    raise_flag(f"answered-{rank}")
    return -1

from malt._pool.over_job import inbox
inbox._PERIOD = 1000 if rank == 0 else inbox._PERIOD
with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        one_each = pool.share(BITS[:3], chunks=3)
        error_of(lambda: pool.sum(answer_in_vain, None, one_each))
        tell(after_answers=[pool.sum(first, None, one_each) for _ in range(3)])

        data = pool.share(BITS, chunks=40)
        tell(error=interrupted(lambda: pool.sum(wait_elsewhere, None, data)))
        raise_flag("go")
        tell(sums=[pool.sum(first, None, data) for _ in range(3)], went_on=flag_is_up("went-on"))
"""
    told = run_job(tmp_path, 3, FUNCTIONS + body).told[0]
    assert not told["went_on"]
    assert told["after_answers"] == [0b111] * 3
    assert told["error"].kind == "builtins.KeyboardInterrupt"
    assert told["sums"] == [2**40 - 1] * 3


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_pool_stands_interrupts_at_any_moment(tmp_path: Path, transport: str) -> None:
    """Also in the middle of messages of many pieces, both ways."""
    body = """
def work(theta, x):
    return theta + x[0]

def bother():
    rng = np.random.default_rng(0)
    while not has_ended:
        time.sleep(rng.uniform(0, 0.05))
        if is_calling:
            os.kill(os.getpid(), signal.SIGINT)
            await_interrupt.acquire()

with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        theta, wrong, number = np.arange(300_000.0), 0, 0
        is_calling, has_ended, await_interrupt = False, False, threading.Semaphore(0)
        thread = threading.Thread(target=bother)
        thread.start()
        for _ in range(30):
            try:
                is_calling = True
                while True:
                    number += 1
                    total = pool.sum(work, theta, pool.share(np.full(6, float(number)), chunks=6))
                    wrong += not np.array_equal(total, 6 * (theta + number))
            except KeyboardInterrupt:
                is_calling = False
                await_interrupt.release()
        has_ended = True
        thread.join()
        total = pool.sum(work, theta, pool.share(np.zeros(6), chunks=6))
        tell(wrong=wrong, last=np.array_equal(total, 6 * theta))
"""
    result = run_job(tmp_path, 3, FUNCTIONS + body, environ={"MALT_TRANSPORT": transport})
    assert result.told[0]["wrong"] == 0
    assert result.told[0]["last"]


def test_message_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    body = """
from malt._pool.over_job import messenger
here = messenger.Messenger(malt.init(timeout=60))
if rank == 0:
    here._mail.send(1, messenger._PIECE.pack(500, 1000, 0), b"x" * 500)  # its beginning is lost
    here._mail.send(1, messenger._PIECE.pack(0, 1000, 900), b"x" * 100)
    here._mail.send(1, messenger._PIECE.pack(500, 1000, 0), b"x" * 500)  # the first is lost
    here._mail.send(1, messenger._PIECE.pack(0, 1000, 900), b"x" * 100)
    here.send(1, "whole", parts=[b"1" * 500_000, b"", b"22"])
    here.flush()
else:
    while (message := here.receive()) is None:
        here.wait(here.live())
    tell(message=(message.sender, message.subject, [bytes(part) for part in message.parts]))
malt.barrier()
here.close()
"""
    told = run_job(tmp_path, 2, body).told[1]
    assert told["message"] == (0, ["whole"], [b"1" * 500_000, b"", b"22"])


def test_exceptions_of_ranks_come_out_of_the_call(tmp_path: Path) -> None:
    body = """
with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        data = pool.share(np.arange(10), chunks=10)
        for kind in ("value", "odd", "unicode"):
            try:
                pool.sum(fail, kind, data)
            except Exception as error:
                tell(**{kind: (type(error).__name__, str(error), str(error.__cause__))})
        two = pool.share(np.arange(2), chunks=2)  # one on each rank
        tell(exit=error_of(lambda: pool.sum(exit_code, None, two)),
             object=error_of(lambda: pool.sum(make_object, None, two)),
             shapes=error_of(lambda: pool.sum(of_many_shapes, None, data)),
             rows=pool.sum(first, None, data))
"""
    told = run_job(tmp_path, 2, FUNCTIONS + body).told[0]
    kind, text, trace = told["value"]
    assert (kind, text) == ("ValueError", "seven")
    assert "on rank 1:" in trace
    assert "in fail" in trace
    assert told["odd"][:2] == ("Error", "rank 1: __main__.Odd: ('7', 'odd')")
    assert told["unicode"][0] == "Error"
    assert told["exit"].says("enough")
    assert refused(told["object"], "a result", "builtins.object")
    assert refused(told["shapes"], "cannot be added")
    assert told["rows"] == 45


def test_functions_that_other_ranks_cannot_find_are_refused(tmp_path: Path) -> None:
    body = """
import functools, subprocess
class Model:
    def method(self, theta, x):
        return 0
with malt.Pool(over=malt.init(timeout=60)) as pool:
    if pool:
        def late(theta, x):
            return 0
        def outer():
            def inner(theta, x):
                return 0
            return inner
        data = pool.share(np.arange(4), chunks=4)
        def error(function, theta=None):
            return error_of(lambda: pool.sum(function, theta, data))
        old, first = first, squared_error
        tell(lambda_=error(lambda theta, x: 0), inner=error(outer()), late=error(late),
             method=error(Model().method), partial=error(functools.partial(first, 1)),
             renamed=error(old), theta=error(first, object()), numpy=error(np.savetxt),
             library=error(subprocess.getoutput), malt=error(malt.allreduce),
             data=error_of(lambda: pool.share([object()])),
             run=error_of(lambda: pool.run(lambda: 0)),
             again=error_of(lambda: malt.Pool(over=malt.init())))
    else:
        tell(call=error_of(lambda: pool.share([1])), stats=pool.stats()._asdict())
job = malt.init()
tell(number=error_of(lambda: malt.Pool(2, over=job)), kind=error_of(lambda: malt.Pool(over=2)))
with malt.Pool(over=job) as pool:   # another one, after the first
    if pool:
        tell(rows=pool.sum(first, np.zeros(2), pool.share(np.ones((4, 2)), np.ones(4)))[0])
malt.finalize()
tell(left=error_of(lambda: malt.Pool(over=job)))
"""
    result = run_job(tmp_path, 2, FUNCTIONS + body)
    told, other = result.told
    assert refused(told["lambda_"], "<lambda>", "by name", "def")
    assert refused(told["inner"], "outer.<locals>.inner", "def")
    assert refused(told["method"], "Model.method")
    assert refused(told["partial"], "no name")
    assert refused(told["renamed"], "means another object")
    assert refused(told["theta"], "theta", "builtins.object")
    assert refused(told["numpy"], "numpy is not one", "a function of your own")
    assert refused(told["library"], "subprocess is not one", "a function of your own")
    assert refused(told["malt"], "malt is not one", "a function of your own")
    assert refused(told["data"], "builtins.object")
    assert refused(told["run"], "<lambda>", "by name", "def")
    assert refused(told["again"], "a pool already")
    assert refused(told["late"], "this rank has no function __main__.late", "before malt.Pool")
    assert refused(other["call"], "if pool:")
    assert set(other["stats"].values()) == {0}
    for each in result.told:
        assert refused(each["number"], "leave the number away")
        assert refused(each["kind"], "malt.init()")
        assert refused(each["left"])
    assert told["rows"] == 4


# A rank that writes messages of its own, or rank 0 whose messages somebody has changed.
LIES = r"""
from malt._pool.over_job import serving
from malt._messages import values
from malt._pool.over_job.messenger import Messenger

def harmless(theta, x):
    return 0

def post_of(job):  # as malt.Pool makes it
    serving.begin(job)
    return Messenger(job)

def ask(messenger, victim, module, name):
    command = f"touch {flag}"
    arguments = values.pack(((command,), {}), "arguments")
    messenger.send(victim, "run", 1, module, name, [0, 1], parts=arguments)
    messenger.send(victim, "sum", 1, module, name, 1, [], parts=values.pack(command, "theta"))
    messenger.flush()

here = os.path.dirname(os.path.abspath(__file__))
flag = os.path.join(here, "called-by-a-stranger")
elsewhere = os.path.join(here, "elsewhere", "site-packages")  # of no interpreter, on the path
os.makedirs(elsewhere, exist_ok=True)
with open(f"{elsewhere}/strange{rank}.py", "w") as file:
    file.write("import os\ndef run(command, *rest):\n    return os.system(command)")
os.replace(file.name, f"{elsewhere}/strange.py")
sys.path.insert(0, elsewhere)
import strange
NAMES = [("os", "system"), ("posix", "system"), ("__main__", "os.system"), ("this", "sys.exit"),
         ("subprocess", "getoutput"), ("malt._launch.run", "main"), ("numpy", "savetxt"),
         ("strange", "run")]
"""


def test_names_of_other_functions_call_nothing(tmp_path: Path) -> None:
    body = """
job = malt.init(timeout=60)
if rank == 0:
    messenger = post_of(job)
    for name in NAMES:
        ask(messenger, 1, *name)
    answers = []
    while len(answers) < 2 * len(NAMES):
        if message := messenger.receive():
            answers.append(message.subject)
        else:
            messenger.wait([0, 1])
    tell(answers=answers, called=os.path.exists(flag))
    messenger.send(1, "close")
    messenger.flush()
    messenger.close()
else:
    malt.Pool(over=job)
"""
    told = run_job(tmp_path, 2, LIES + body).told[0]
    assert not told["called"]
    for kind, _, error, text, *_ in told["answers"]:
        assert (kind, error) == ("failed", "malt.ConfigError")
        assert "is not one" in text or "no function" in text


def test_calls_of_another_rank_than_0_are_refused(tmp_path: Path) -> None:
    body = """
job = malt.init(timeout=60)
if rank == 1:
    messenger = post_of(job)
    ask(messenger, 2, "__main__", "harmless")
    while not flag_is_up("refused"):
        time.sleep(.01)
elif rank == 2:
    try:
        malt.Pool(over=job)
    except malt.Error as error:
        tell(error=str(error))
    raise_flag("refused")
else:
    with malt.Pool(over=job):
        while not flag_is_up("refused"):
            time.sleep(.01)
"""
    result = run_job(tmp_path, 3, LIES + body, "--keep-going")
    assert "rank 1 makes calls of malt.Pool, as only rank 0 does" in result.told[2]["error"]


def test_job_whose_ranks_rejoin_is_refused(tmp_path: Path) -> None:
    body = "job = malt.init(timeout=60)\ntell(error=error_of(lambda: malt.Pool(over=job)))\n"
    result = run_job(tmp_path, 2, body, "--respawn")
    for error in result.each("error"):
        assert refused(error, "--respawn", "--keep-going")
