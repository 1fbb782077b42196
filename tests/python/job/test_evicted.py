"""Ranks that are stopped, or asleep, until the others have evicted them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from certificates import Authority
from jobs import PROMPT, exists, run_job, start_job

import malt
from malt._job import job


def test_rank_that_is_stopped_is_left_out_and_told_so_when_it_wakes(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=60, silence=1)
w = np.full(1000, 10.0 ** rank)
v = malt.vector(w)
malt.barrier()
if rank == 2:
    tell(pid=os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    calls = (v.scatter, v.gather, v.allreduce, malt.barrier, lambda: malt.ps.Table(10, replicas=1))
    tell(errors=[error_of(call) for call in calls])
    raise_flag("awake")
    sys.exit()
start = time.monotonic()
v.scatter()
got = v.gather(malt.SUM, staleness=0)
waited = time.monotonic() - start
while malt.epoch() == 0: time.sleep(0.01)
if rank == 0:
    import pickle
    os.kill(pickle.loads(open("told-2", "rb").read())["pid"], signal.SIGCONT)
await_flag("awake")
summed = v.allreduce(malt.SUM)
tell(waited=waited, got=got.ranks, alive=malt.alive(), epoch=malt.epoch(), summed=summed.ranks)
malt.barrier()
""",
    )
    for rank in (0, 1):
        told = result.told[rank]
        assert 0.5 < told["waited"] < 3
        assert told["got"] == (1 - rank,)
        assert (told["alive"], told["epoch"], told["summed"]) == ((0, 1), 1, (1 - rank,))
    for error in result.told[2]["errors"]:
        assert error.kind == "PeerError"
        assert error.says("rank 2 was evicted from the job", "for 1 s", "stopped")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_rank_that_sleeps_until_the_others_are_done_does_not_go_on_alone(
    tmp_path: Path, transport: str
) -> None:
    script = """
malt.init(timeout=30, silence=1)
v = malt.vector(np.full(3, 10.0 ** rank))
malt.barrier()
if rank == 2:
    tell(pid=os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    error = None
    for _ in range(3):  # what the others sent before may be there
        error = error or error_of(v.scatter) or error_of(v.gather, malt.SUM, staleness=0)
    tell(error=error)
    sys.exit()
v.scatter()
g = v.gather(malt.SUM, staleness=0)
while malt.epoch() == 0: time.sleep(0.01)
malt.barrier()
tell(pid=os.getpid(), ranks=g.ranks)
"""
    environ = {"MALT_TRANSPORT": transport}
    with start_job(tmp_path, 3, script, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        while any(map(exists, pids[:2])):
            time.sleep(0.01)
        os.kill(pids[2], signal.SIGCONT)
        result = job.finish()
    assert [result.told[rank]["ranks"] for rank in (0, 1)] == [(1,), (0,)]
    told = result.told[2]
    assert told["error"] is not None, "it went on alone"
    assert told["error"].kind == "PeerError"


@pytest.mark.parametrize(
    ("transport", "others"),
    [("shm", "end"), ("shm", "stay"), ("tcp", "end"), ("tcp", "stay"), ("tls", "stay")],
)
def test_rank_that_was_left_out_asleep_finalizes_at_once(
    tmp_path: Path, transport: str, others: str
) -> None:
    """Nobody takes its goodbye: whom it tells has ended, or has left it out."""
    script = """
malt.init(timeout=60, silence=1)
malt.barrier()
tell(pid=os.getpid())
if rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
    start = time.monotonic()
    malt.finalize()
    tell(seconds=time.monotonic() - start)
    sys.exit()
while malt.epoch() == 0: time.sleep(0.01)
malt.barrier()
tell(gone_on=True)
if others == "stay": await_flag("over")
"""
    environ = {"MALT_TRANSPORT": transport}
    if transport == "tls":
        environ = {"MALT_TRANSPORT": "tcp", "MALT_TLS": Authority(tmp_path / "tls").issue("rank")}
    header = f"others = {others!r}"
    with start_job(tmp_path, 3, header + script, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        job.await_told("gone_on", ranks=[0, 1])
        while others == "end" and any(map(exists, pids[:2])):
            time.sleep(0.01)
        os.kill(pids[2], signal.SIGCONT)
        [seconds] = job.await_told("seconds", ranks=[2])
        job.raise_flag("over")
        assert job.finish().code == 0
    assert seconds < PROMPT


def test_epochs_that_pass_at_once_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, tuple[int, ...]]] = []
    malt.init()
    try:
        malt.jobs.on_change(lambda epoch, alive: told.append((epoch, alive)))
        monkeypatch.setattr(job, "epoch", lambda: 2)
        job.call_at_new_epoch()  # for the first of two epochs
        job.call_at_new_epoch()
    finally:
        malt.finalize()
    assert told == [(2, (0,))]
