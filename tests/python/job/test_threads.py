"""Calls of several threads, and calls inside calls: of one job they go one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

TRANSPORTS = ["shm", "tcp"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_pair_of_calls_in_two_threads(tmp_path: Path, transport: str) -> None:
    """Each pair for a moment: no crash, no hang, errors of the documented kinds, and the job works.

    Calls that wait for the other rank's, which makes them as well, are made twice: refused, they
    are made again. Two different ones are no pair: their order must be the same on all ranks.
    """
    result = run_job(
        tmp_path,
        2,
        """
import itertools
malt.init(transport, timeout=20)
v, s = malt.vector(np.zeros(2000)), malt.sparse_vector(1000, capacity=100)
r = malt.vector(np.zeros(100))
s.set(range(0, 100, 3), range(0, 100, 3))

def fold(mine, updates):
    time.sleep(0.0005)
    mine += sum(update.values for update in updates)

def sparse_fold(mine, updates):
    time.sleep(0.0005)
    return mine.indices, mine.values

def make():
    w = malt.vector(np.ones(5))
    while True:
        try:
            return w.close()
        except malt.ConfigError as error:
            assert "another thread" in str(error), error

QUICK = {
    "scatter": v.scatter, "gather": v.gather, "fold": lambda: v.gather(fold),
    "wait": lambda: v.gather(staleness=0, timeout=0.01), "stats": v.stats,
    "array": lambda: v.array.sum(), "repr": lambda: (repr(v), v.iteration, v.is_closed),
    "sparse scatter": s.scatter, "sparse gather": lambda: s.gather(malt.REPLACE),
    "sparse fold": lambda: s.gather(sparse_fold), "sparse stats": s.stats,
    "set": lambda: s.set([1, 2], [3, 4]), "read": lambda: (s.indices, s.values),
    "job": lambda: (malt.rank(), malt.size(), malt.alive(), malt.epoch()),
    "on_change": lambda: malt.jobs.on_change(lambda epoch, alive: None),
}
TOGETHER = {
    "allreduce": r.allreduce, "barrier": malt.barrier, "make": make,
    "save": lambda: malt.save("c", {"r": r}),
}
wrong, made = {}, {}

def repeat(name, end):
    while time.monotonic() < end:
        try:
            QUICK[name]()
            made[name] = made.get(name, 0) + 1
        except malt.Error as error:
            fine = isinstance(error, (malt.ConfigError, malt.TimeoutError))
            if not fine or not any(part in str(error) for part in ("another thread", "did not")):
                wrong[name] = repr(error)

def complete(name):
    for _ in range(2):
        while True:
            try:
                TOGETHER[name]()
                break
            except malt.ConfigError as error:
                if "another thread" not in str(error):
                    wrong[name] = repr(error)
                    return
                time.sleep(0.001)

pairs = list(itertools.combinations_with_replacement([*QUICK, *TOGETHER], 2))
pairs = [(a, b) for a, b in pairs if a in QUICK or a == b]
for pair in pairs:
    end = time.monotonic() + 0.02
    threads = [
        threading.Thread(target=repeat if name in QUICK else complete,
                         args=(name, end) if name in QUICK else (name,))
        for name in pair
    ]
    for thread in threads: thread.start()
    for thread in threads: thread.join(30)
    assert not any(thread.is_alive() for thread in threads), pair
    assert not wrong, (pair, wrong)
    malt.barrier()
v.gather(), s.gather(malt.REPLACE)
malt.barrier()
v.array[:] = rank
v.allreduce()
tell(unmade=set(QUICK) - set(made), counters=[counters(v), counters(s)], mean=v.array[0])
malt.barrier()
""",
        transport=transport,
    )
    assert result.each("mean") == [0.5, 0.5]
    for told in result.told:
        assert told["unmade"] <= {"wait"}  # that may always find the other rank elsewhere
        for counted in told["counters"]:
            assert counted["sent"] == counted["folded"] + counted["overwritten"]
            assert counted["sent"] < 2**40


def test_a_call_inside_a_fold_is_refused_and_the_gather_ends(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
v, other = malt.vector(np.zeros(4)), malt.vector(np.zeros(4))
s = malt.sparse_vector(10, capacity=10)
s.set([rank], [1.0])
v.array[:] = 1
v.scatter(), s.scatter()
malt.barrier()
CALLS = {
    "scatter": v.scatter, "gather": v.gather, "allreduce": v.allreduce, "close": v.close,
    "others": other.scatter, "set": lambda: s.set([3], [3]), "barrier": malt.barrier,
    "vector": lambda: malt.vector(np.zeros(3)), "save": lambda: malt.save("c", {"v": v}),
    "finalize": malt.finalize, "leave": malt.jobs.leave,
}
errors = {}

def fold(mine, updates):
    global other
    for name, call in CALLS.items():
        errors[name] = error_of(call)
    del CALLS["others"]
    other = None  # its destructor runs here
    seen.append((v.stats().sent, malt.alive(), s.values.tolist()))
    mine += updates[0].values

def sparse_fold(mine, updates):
    errors["sparse"] = error_of(s.gather)
    return mine.indices, mine.values

seen = []
count = v.gather(fold).count
s.gather(sparse_fold)
malt.barrier()
tell(errors=errors, seen=seen, count=count, w=v.array.tolist(), counters=counters(v))
malt.barrier()
""",
    )
    for told in result.told:
        assert len(told["errors"]) == 12
        for name, error in told["errors"].items():
            assert error.kind == "ConfigError", (name, error)
            assert error.says("inside the function that gather of the same job runs"), error
        assert told["seen"] == [(1, (0, 1), [1.0])]
        assert (told["count"], told["w"]) == (1, [2.0] * 4)
        assert (told["counters"]["sent"], told["counters"]["folded"]) == (1, 1)


def test_a_call_while_another_thread_waits_names_that_thread(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=20)
v = malt.vector(np.zeros(4))
if rank == 0:
    v.scatter()
    waiting = threading.Thread(target=v.gather, kwargs={"staleness": 0}, name="the waiting one")
    waiting.start()
    while not (error := error_of(v.scatter)): time.sleep(0.01)
    others = [error_of(call) for call in (malt.finalize, malt.barrier, v.close)]
    tell(error=error, others=others, stats=counters(v), alive=malt.alive())
    raise_flag("refused")
    waiting.join()
else:
    await_flag("refused")
    v.scatter(), v.gather(staleness=0)
malt.barrier()
""",
    )
    told = result.told[0]
    says = "another thread (the waiting one) is in gather"
    assert told["error"].kind == "ConfigError"
    assert all(error.says(says) for error in [told["error"], *told["others"]])
    assert told["alive"] == (0, 1)


def test_a_daemon_thread_that_waits_does_not_keep_the_process_from_its_end(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
malt.init(timeout=60)
v = malt.vector(np.zeros(4))
if rank == 0:
    v.scatter()
    def wait(): tell(error=error_of(v.gather, staleness=0))
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.3)
    tell(left=time.time())
else:
    while len(malt.alive()) > 1: time.sleep(0.01)
    tell(seen=time.time())
""",
    )
    assert result.told[1]["seen"] - result.told[0]["left"] < 10
    error = result.told[0].get("error")  # none: the process has ended before the thread could tell
    assert error is None or error.says("this rank has left the job")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_making_a_vector_again_after_a_time_out_works_when_all_do(
    tmp_path: Path, transport: str
) -> None:
    """Rank 0 gives up in the middle of it; rank 1 comes to where that was."""
    result = run_job(
        tmp_path,
        2,
        """
malt.init(transport, timeout=1)
group = malt.init().group
malt.barrier(20)
kinds = []
if rank == 1:
    told = b'{"named": true, "place": "", "digest": 0, "gpu": false, "shards": {}}'
    group.exchange("vector 'v', step 0", told, 20)  # as far as this, and stuck
    await_flag("gave up")
else:
    kinds.append(error_of(malt.vector, np.zeros(3), name="v").kind)
    raise_flag("gave up")
v = None
while v is None:
    try:
        v = malt.vector(np.full(3, rank), name="v")
    except malt.Error as error:
        kinds.append(type(error).__name__)
v.allreduce(malt.SUM, timeout=20)
v.scatter()
malt.barrier(20)
tell(kinds=kinds, w=v.array.tolist(), count=v.gather().count)
malt.barrier(20)
""",
        transport=transport,
    )
    assert result.each("w") == [[1] * 3] * 2
    assert result.each("count") == [1, 1]
    assert result.told[0]["kinds"][0] == "TimeoutError"
    assert all(len(told["kinds"]) <= 3 for told in result.told)
