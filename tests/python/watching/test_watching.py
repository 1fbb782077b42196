"""Jobs that are recorded: their trace, their counters, the table and the advice on them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import free_port, run_job, start_job

from malt._core_import import Recorder
from malt._errors import ConfigError
from malt._recording import recorder_memory
from malt._watching import sources

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")

# Rank 2 takes 40 ms longer than the others for each round, whose waits show it.
LOOP = """
malt.init(timeout=60)
w = np.zeros(100, np.float32)
v = malt.vector(w)
tell(ready=os.getpid())
while v.iteration < goal() and v.iteration < ROUNDS:
    if rank == 2:
        time.sleep(0.04)
    if rank == 1 and v.iteration == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    tell(at=v.iteration)
"""
RECORDED = "ROUNDS, DIES_AT = 20, None\n" + LOOP
FOREVER = "ROUNDS, DIES_AT = 10**9, None\n" + LOOP


def malt(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "malt", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def malt_says(
    is_said: Callable[[str], bool], *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Run the command until it says so: on a busy machine other ranks are late in some looks."""
    for _ in range(10):
        done = malt(*arguments)
        if is_said(done.stdout):
            return done
    pytest.fail(f"malt {arguments[0]} says:\n{done.stdout}")


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def of(events: list[dict[str, Any]], name: str, rank: int) -> list[dict[str, Any]]:
    return [one for one in events if one["name"] == name and one["tid"] == rank]


def test_trace_has_every_call_of_every_rank(tmp_path: Path) -> None:
    run_job(tmp_path, 3, RECORDED, "--trace", "trace.json")
    events = events_of(tmp_path / "trace.json")
    for rank in range(3):
        for name in ("scatter", "gather", "fold"):
            assert len(of(events, name, rank)) == 20, (name, rank)
        assert [one["args"]["iteration"] for one in of(events, "scatter", rank)] == [*range(1, 21)]
        assert all(one["args"]["staleness"] == 0 for one in of(events, "fold", rank))
        assert all(one["args"]["bytes"] == 800 for one in of(events, "gather", rank))
    for rank in (0, 1):  # most of the 800 ms
        waits = of(events, "wait for rank 2", rank)
        assert sum(one["dur"] for one in waits) > 400_000
        assert all(2 in one["args"]["ranks"] for one in waits)
    assert not of(events, "wait for rank 2", 2)


def test_trace_has_what_a_killed_rank_did_and_its_death(tmp_path: Path) -> None:
    body = "ROUNDS, DIES_AT = 20, 7\n" + LOOP
    run_job(tmp_path, 3, body, "--keep-going", "--trace", "trace.json", code=128 + signal.SIGKILL)
    events = events_of(tmp_path / "trace.json")
    assert len(of(events, "scatter", 1)) == 7
    assert len(of(events, "scatter", 0)) == 20
    for rank in (0, 2):
        assert of(events, "rank 1 is gone", rank)
        assert of(events, "epoch 1", rank)[0]["args"]["members"] == 2


def test_trace_has_each_process_of_a_rank_that_was_started_again(tmp_path: Path) -> None:
    body = "ROUNDS, DIES_AT = 80, None if malt.jobs.restarts() else 7\n" + LOOP
    run_job(tmp_path, 3, body, "--respawn", "--trace", "trace.json")
    scatters = of(events_of(tmp_path / "trace.json"), "scatter", 1)
    iterations = {one["args"]["iteration"] for one in scatters}
    assert {1, 7, 80} <= iterations


def test_a_job_that_is_not_recorded_has_no_recorder(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, FOREVER) as job:
        pids = job.await_told("ready")
        for pid in pids:
            for one in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # the rank has closed it meanwhile
                    assert "malt-recorder" not in os.readlink(one.path)
        done = malt("top", job.launcher.pid)
        assert done.returncode == 2
        assert "malt run --record" in done.stderr
        job.set_goal(5)


def test_ranks_that_have_not_joined_yet_are_to_be_waited_for() -> None:
    command = [sys.executable, "-m", "malt", "run", "--record", "-n", "1", "sh", "-c"]
    with subprocess.Popen([*command, "echo up; exec sleep 60"], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        done = malt("top", launcher.pid)
        launcher.terminate()
    assert done.returncode == 2
    assert "no rank has begun to record: try again" in done.stderr


def a_recorder(size: int) -> int:
    """Make the memory of a rank that has begun; return its descriptor."""
    descriptor = recorder_memory.make(size)
    Recorder(descriptor, 0, size)
    return descriptor


def test_the_records_of_other_users_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = a_recorder(2)
    try:
        assert [one.size for one in sources.find(os.getpid())] == [2]
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)  # the memory is another user's
        with pytest.raises(ConfigError, match=f"is of user {user}, and you are user {user + 1}; o"):
            sources.find(os.getpid())
    finally:
        os.close(descriptor)


def test_records_of_more_ranks_than_a_job_may_have_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "MAX_RANKS", 1)
    descriptor = a_recorder(2)
    try:
        with pytest.raises(ConfigError, match="no rank has begun to record"):
            sources.find(os.getpid())
    finally:
        os.close(descriptor)


def test_top_shows_who_waits_for_whom(tmp_path: Path) -> None:
    with start_job(tmp_path, 3, FOREVER, "--record") as job:
        pids = job.await_told("ready")
        job.await_told("at")
        shown = malt_says(lambda out: out.count("rank 2") == 2, "top", job.launcher.pid)
        rows = [line.split() for line in shown.stdout.splitlines()]
        assert rows[0][0] == "rank"
        assert [row[0] for row in rows[1:]] == ["0", "1", "2"]
        assert rows[1][-3:-1] == rows[2][-3:-1] == ["rank", "2"]
        (row,) = [line.split() for line in malt("top", pids[1]).stdout.splitlines()][1:]
        assert row[0] == "1"  # a rank alone has its own recorder only
        job.set_goal(5)
        job.finish()


def test_top_shows_a_stopped_rank_and_the_wait_for_it(tmp_path: Path) -> None:
    with start_job(tmp_path, 3, FOREVER, "--record", environ={"MALT_SILENCE": "60"}) as job:
        job.await_told("at")
        pids = job.await_told("ready")
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(1.2)
        table = malt("top", job.launcher.pid, "--interval", 0.2).stdout
        doctor = malt("doctor", job.launcher.pid, "--seconds", 0.5)
        os.kill(pids[1], signal.SIGCONT)
        assert "stopped" in table
        assert "rank 1" in table
        assert doctor.returncode == 1
        assert "Rank 1 is stopped" in doctor.stdout
        assert "Rank 0 has waited for rank 1" in doctor.stdout
        job.set_goal(5)
        job.finish()


def test_doctor_names_the_straggler(tmp_path: Path) -> None:
    with start_job(tmp_path, 3, FOREVER, "--record") as job:
        job.await_told("at")
        text = "Rank 2 is a straggler: ranks 0, 1"
        done = malt_says(lambda out: text in out, "doctor", job.launcher.pid, "--seconds", 1)
        assert done.returncode == 1
        job.set_goal(5)
        job.finish()


@pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None,
    reason="needs mpirun and mpi4py (pip install malt-sgd[mpi])",
)
def test_trace_is_written_under_mpirun_too(tmp_path: Path) -> None:
    program = """
import numpy as np, malt
malt.init(timeout=60)
w = np.zeros(100, np.float32)
v = malt.vector(w)
for _ in range(20):
    v.scatter()
    v.gather(malt.AVG, staleness=0)
"""
    (tmp_path / "program.py").write_text(program)
    environ = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "MALT_TRACE": "trace.json",
    }
    options = ["--enable-recovery", "--oversubscribe", "--bind-to", "none", "-n", "2"]
    subprocess.run(
        [str(MPIRUN), *options, sys.executable, "program.py"],
        cwd=tmp_path,
        env=environ,
        check=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    events = events_of(tmp_path / "trace.json")
    for rank in range(2):
        assert len(of(events, "scatter", rank)) == 20


def test_metrics_are_served_while_the_job_runs(tmp_path: Path) -> None:
    port = free_port()
    with start_job(tmp_path, 3, FOREVER, "--metrics", str(port)) as job:
        job.await_told("at")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # on a busy machine a rank may be late
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                lines = answer.read().decode().splitlines()
            values = dict(line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
            if all(f'malt_scatters_total{{rank="{rank}"}}' in values for rank in range(3)):
                break
        job.set_goal(5)
        job.finish()
    for rank in range(3):
        assert float(values[f'malt_scatters_total{{rank="{rank}"}}']) > 0
        assert values[f'malt_up{{rank="{rank}"}}'] == "1"
    assert 'malt_waited_for_seconds_total{rank="0",waited_for="2"}' in values


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "-n", "1", "--trace", "/no/such/folder/t.json", "true"), "cannot be written"),
        (("run", "-n", "1", "--metrics", "http", "true"), "is not [HOST:]PORT"),
        (("top", "4194999"), "does not run on this host"),
        (("doctor", "4194999"), "does not run on this host"),
        (("top", "0"), "not the number of a process"),
    ],
)
def test_mistakes_are_refused_with_the_way_out(arguments: tuple[str, ...], says: str) -> None:
    done = malt(*arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = malt("run", "-n", "1", "--metrics", server.getsockname()[1], "true")
    assert done.returncode == 2
    assert "take another port" in done.stderr


def test_a_rank_refuses_a_wrong_setting(tmp_path: Path) -> None:
    program = "import malt; malt.init()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MALT_RECORD": "yes"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "MALT_RECORD is 'yes'; it is 1 (record) or 0" in done.stderr
