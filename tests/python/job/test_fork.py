"""What a rank forks or starts takes no part in the job, and harms nobody, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import run_job

TRANSPORTS = ("shm", "tcp")
AT_ONCE = 15.0  # seconds, on a busy machine


@pytest.mark.parametrize("end", ["sys.exit", "os._exit", "os.abort"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_forked_child_takes_no_part_and_its_end_is_not_the_ranks(
    tmp_path: Path, transport: str, end: str
) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=20)
w = np.full(1000, rank + 1.0)
v, own, s = malt.vector(w), malt.vector((1000,)), malt.sparse_vector(9, capacity=2)
v.scatter()
v.gather(malt.SUM, staleness=0)
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    calls = (malt.rank, malt.alive, malt.barrier, malt.init, lambda: malt.vector((3,)), v.scatter,
             v.gather, v.allreduce, own.allreduce, s.scatter, s.gather)
    with os.fdopen(write_end, "wb") as pipe:
        pickle.dump([error_of(call) for call in calls], pipe)
    malt.finalize()
    del v, own, s
    {"sys.exit": sys.exit, "os._exit": lambda: os._exit(0), "os.abort": os.abort}[end]()
os.close(write_end)
with os.fdopen(read_end, "rb") as pipe:
    errors = pickle.load(pipe)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
epoch = malt.epoch()
malt.barrier()
rounds = []
for step in range(20):
    w[:] = rank + 1
    v.scatter()
    rounds.append((v.gather(malt.SUM, staleness=0).ranks, w[0], w[-1]))
    own.array[:] = rank
    own.allreduce(malt.SUM)
tell(errors=errors, code=code, rounds=rounds, own=own.array[0], alive=malt.alive(),
     epoch=malt.epoch() - epoch)
malt.barrier()
""",
        end=end,
        environ={"MALT_TRANSPORT": transport},
    )
    for rank, told in enumerate(result.told):
        assert told["code"] == (-signal.SIGABRT if end == "os.abort" else 0)
        for error in told["errors"]:
            assert error is not None
            assert error.kind == "ConfigError", error
            assert error.says("fork"), error
            assert error.seconds < AT_ONCE
        others = tuple(r for r in range(3) if r != rank)
        assert told["rounds"] == [(others, 6, 6)] * 20
        assert (told["own"], told["alive"], told["epoch"]) == (3, (0, 1, 2), 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_child_that_lives_on_does_not_hide_the_ranks_death(
    tmp_path: Path, transport: str
) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60, silence=60)
v = malt.vector(np.zeros(10))
malt.barrier()
if rank == 2:
    if os.fork() == 0:
        os.setsid()  # or the launcher ends it with the rank
        raise_flag("forked")
        signal.alarm(60)  # at the latest
        await_flag("over")
        os._exit(0)
    await_flag("forked")
    raise_flag("dying")
    os.kill(os.getpid(), signal.SIGKILL)
await_flag("dying")
start = time.monotonic()
while malt.alive() != (0, 1):
    time.sleep(0.001)
tell(seconds=time.monotonic() - start)
malt.barrier()
raise_flag("over")
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
        environ={"MALT_TRANSPORT": transport},
    )
    for told in result.told[:2]:
        assert told["seconds"] < AT_ONCE, "the child lives for longer"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_in_a_rank(tmp_path: Path, method: str) -> None:
    result = run_job(
        tmp_path,
        2,
        """
import multiprocessing
def work(x):
    return x * x, error_of(malt.rank), error_of(malt.init)
def main():
    malt.init()
    v = malt.vector(np.full(10, 1.0))
    with multiprocessing.get_context(method).Pool(2) as pool:
        got = pool.map(work, range(8))
    v.scatter()
    g = v.gather(malt.SUM, staleness=0)
    tell(got=got, ranks=g.ranks, alive=malt.alive())
    malt.barrier()
if __name__ == "__main__":
    main()
""",
        method=method,
    )
    for rank, told in enumerate(result.told):
        assert [square for square, _, _ in told["got"]] == [x * x for x in range(8)]
        for _, asked, joined in told["got"]:
            assert asked.kind == joined.kind == "ConfigError"
            assert asked.says("forked from rank" if method == "fork" else "in no job")
            assert joined.says("no rank itself", "__main__")
        assert (told["ranks"], told["alive"]) == ((1 - rank,), (0, 1))


def test_a_program_that_a_rank_starts_is_no_rank_but_may_be_a_job(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
import subprocess
malt.init()
malt.barrier()
init = [sys.executable, "-c", "import malt; malt.init(); print('size', malt.size())"]
job = [sys.executable, "-m", "malt", "run", "-n", "2", *init]
def run(command, **environ):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ})
    return done.returncode, done.stdout + done.stderr
tell(rank=run(init), job=run(job))
malt.barrier()
malt.finalize()
tell(after="MALT_RANK_PROCESS" in os.environ)
""",
    )
    for told in result.told:
        code, text = told["rank"]
        assert code == 1
        assert "ConfigError" in text
        assert "no rank itself" in text
        code, text = told["job"]
        assert code == 0, text
        assert text.count("size 2") == 2
        assert not told["after"]


def test_a_child_of_a_job_of_one_may_be_a_job_of_one(tmp_path: Path) -> None:
    """As a notebook's kernel that is started anew, or a pool's worker."""
    script = """
import os, malt, numpy as np
malt.init()
child = os.fork()
if child == 0:
    malt.init()
    v = malt.vector(np.ones(3))
    v.scatter(), v.gather(), malt.barrier(), malt.finalize()
    malt.init()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
malt.barrier()
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
