"""`malt run --elastic`: ranks are added to a running job, and leave it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from chunk_turns import TRAIN, check_turns, turns_taken
from jobs import Ranks, Running, exists, run_job, start_job

from malt._launch.scale import COUNT, ScaleServer, ask, name_of

LOOP = """
malt.init(timeout=20)
w = np.full(10, float(rank))
v = malt.vector(w)
tell(pid=os.getpid(), start=v.iteration, late=malt.jobs.restarts(), left=False)
while not flag_is_up("over") and not malt.jobs.leaving():
    v.scatter()
    v.gather(malt.AVG)
    tell(at=v.iteration, alive=malt.alive())
    time.sleep(0.005)
if malt.jobs.leaving():
    malt.jobs.leave()
    tell(left=True, error=error_of(malt.rank))
"""


def scale(process: int, count: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "malt", "scale", str(process), str(count)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def scale_to(job: Running, count: int) -> str:
    done = scale(job.launcher.pid, count)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(
    path: Path, ranks: int, limits: str, transport: str = "auto", script: str = LOOP
) -> contextlib.AbstractContextManager[Running]:
    environ = {"MALT_TRANSPORT": transport}
    return start_job(path, ranks, script, "--elastic", limits, environ=environ)


def await_alive(job: Ranks, *ranks: int) -> None:
    deadline = time.monotonic() + 100
    while any(job.told(rank).get("alive") != ranks for rank in ranks):
        assert not job.has_ended, job.output
        assert time.monotonic() < deadline, job.output
        time.sleep(0.01)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_job_grows_and_shrinks_and_grows_again(tmp_path: Path, transport: str) -> None:
    with start(tmp_path, 2, "1:4", transport) as job:
        await_alive(job, 0, 1)
        assert "started: ranks 2, 3" in scale_to(job, 4)
        await_alive(job, 0, 1, 2, 3)
        assert job.told(2)["late"] == 1
        assert job.told(3)["start"] > 0  # where the others were
        assert "4 ranks run already" in scale_to(job, 4)

        assert "asked to leave: ranks 2, 3" in scale_to(job, 2)
        await_alive(job, 0, 1)
        first_life = job.told(2)["pid"]
        while exists(first_life):
            time.sleep(0.01)
        assert job.told(2)["left"]
        assert job.told(2)["error"].kind == "ConfigError"

        time.sleep(0.5)  # the launcher knows that it has ended
        assert "started: rank 2" in scale_to(job, 3)
        await_alive(job, 0, 1, 2)
        job.raise_flag("over")
        result = job.finish()
    assert result.code == 0, result.output
    assert job.told(2)["late"] == 2


def test_updates_of_a_leaving_rank_arrive_and_it_goes_on_alone(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        """
malt.init(timeout=20)
v = malt.vector(np.full(3, rank + 1.0), policy="queue", depth=2)
if rank == 2:
    v.scatter()
    malt.jobs.leave()
    raise_flag("left")
    tell(mine=float(v.array[0]), sent=v.stats().sent)
    tell(errors=[error_of(call) for call in (malt.rank, malt.init, malt.barrier)])
else:
    await_flag("left")
    g = v.gather(malt.SUM)
    while malt.alive() != (0, 1):
        time.sleep(0.01)
    malt.barrier()
    tell(ranks=g.ranks, mine=float(v.array[0]))
""",
    )
    assert result.told[0] == {"ranks": (2,), "mine": 4.0}
    assert result.told[1] == {"ranks": (2,), "mine": 5.0}
    assert (result.told[2]["mine"], result.told[2]["sent"]) == (3.0, 2)
    for error in result.told[2]["errors"]:
        assert error.kind == "ConfigError"
        assert error.says("left the job for good (malt.jobs.leave())")


def test_an_elastic_job_stops_when_too_few_are_left(tmp_path: Path) -> None:
    with start(tmp_path, 3, "2:3") as job:
        await_alive(job, 0, 1, 2)
        os.kill(job.told(1)["pid"], signal.SIGKILL)
        await_alive(job, 0, 2)
        os.kill(job.told(2)["pid"], signal.SIGKILL)
        result = job.finish()
    assert result.code == 128 + signal.SIGKILL
    assert "rank 2 died of SIGKILL" in result.output
    assert "malt run: 1 of at least 2 are left; stopping the others" in result.output


def test_added_ranks_get_chunks_of_the_next_pass(tmp_path: Path) -> None:
    elements, passes = 120, 40
    given = {"transport": "auto", "elements": elements, "chunk": 3, "passes": passes}
    given |= {"shuffle": 1, "lockstep": False, "deaths": {}}
    header = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    with start(tmp_path, 2, "1:4", script=header + TRAIN) as job:
        while not (tmp_path / "taken-0-0").exists():
            assert not job.has_ended, job.output
            time.sleep(0.01)
        scale_to(job, 4)
        result = job.finish()
    assert result.code == 0, result.output
    by_chunk = turns_taken(tmp_path)
    check_turns(by_chunk, elements, passes, ())
    last = [turns[0].life for chunk, turns in by_chunk.items() if chunk[0] == passes]
    assert set(last) == {"0-0", "1-0", "2-1", "3-1"}


@pytest.mark.parametrize(
    ("count", "error"),
    [
        ("5", "5 ranks are not within the job's 2 to 4 (--elastic)"),
        ("1", "1 rank is not within the job's 2 to 4"),
        ("0", "'0' is not a number, 1 or more"),
        ("two", "'two' is not a number"),
    ],
)
def test_wrong_counts_are_refused(tmp_path: Path, count: str, error: str) -> None:
    with start(tmp_path, 2, "2:4") as job:
        await_alive(job, 0, 1)
        done = scale(job.launcher.pid, count)
        assert done.returncode == 2
        assert error in done.stderr
        job.raise_flag("over")
        assert job.finish().code == 0


def test_jobs_that_are_not_elastic_and_other_processes_are_refused(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, LOOP) as job:
        await_alive(job, 0, 1)
        for process in (job.launcher.pid, os.getpid()):
            done = scale(process, 1)
            assert done.returncode == 2
            assert f"process {process} is not a `malt run --elastic`" in done.stderr


def test_a_launchers_socket_leaves_no_file_and_has_no_name_that_others_could_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 40)  # longer than a socket's name may be
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    asked = []
    with contextlib.closing(ScaleServer(lambda what, number: asked.append((what, number)))) as one:
        assert not any(folder.iterdir())
        assert str(name_of(os.getpid())).startswith(f"/proc/{os.getpid()}/fd/")
        client = threading.Thread(target=ask, args=(os.getpid(), COUNT, 3))
        client.start()
        one.hear()
        one.answer(True, "done")
        client.join()
        assert asked == [(COUNT, 3)]
    assert name_of(os.getpid()) is None


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_another_user_cannot_reach_a_launchers_socket(tmp_path: Path) -> None:
    with start(tmp_path, 2, "1:4") as job:
        await_alive(job, 0, 1)
        name = name_of(job.launcher.pid)
        assert name is not None
        # `malt scale` itself would refuse first; and that user may not be able to read this Python.
        script = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.setuid(65534)
try:
    connection.connect(sys.argv[1])
except PermissionError:
    print("it cannot be reached")
"""
        done = subprocess.run(
            [sys.executable, "-c", script, name], capture_output=True, text=True, timeout=100
        )
        assert done.stdout == "it cannot be reached\n", done.stderr
        assert "started: rank 2" in scale_to(job, 3)
        job.raise_flag("over")
        assert job.finish().code == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--elastic", "1:4", "-n", "5"), "-n 5 is not within --elastic 1:4"),
        (("--elastic", "4:2"), "'4:2' is not MIN:MAX"),
        (("--elastic", "3"), "'3' is not MIN:MAX"),
        (("--elastic", "0:3"), "'0:3' is not MIN:MAX"),
        (("--elastic", "1:1048577"), "'1:1048577' is not MIN:MAX, with 1 <= MIN <= MAX <= 1048576"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: tuple[str, ...], error: str) -> None:
    with start_job(tmp_path, 2, "", *options) as job:
        result = job.finish()
    assert result.code == 2
    assert error in result.output


def test_a_rank_that_cannot_be_started_stops_nobody(tmp_path: Path) -> None:
    """Its program has gone."""
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    with start_job(tmp_path, 1, LOOP, "--elastic", "1:2", "--", str(program)) as job:
        await_alive(job, 0)
        program.unlink()
        scale_to(job, 2)
        while "rank 1 cannot be started: " not in job.output:
            assert not job.has_ended, job.output
            time.sleep(0.01)
        job.raise_flag("over")
        assert job.finish().code == 0
