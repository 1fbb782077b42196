"""Limits and refusals of the system: each message names the limit, and the way out."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launches import MALT_RUN, Script, run

from malt._errors import ConfigError
from malt._pool import starting
from malt._pool.local import nursery
from malt._pool.memory import Memory
from malt._pool.over_job.inbox import Inbox
from malt._recording import recorder_memory
from malt._watching import endings, run_report, trace
from malt._watching.collect import Collector

# Runs a module in which the system refuses what the first line says, as it does at `ulimit -u`.
REFUSED = """
import os, runpy, subprocess, sys, threading
REFUSE
sys.argv[0] = "malt"
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
FORK = """
def fork():
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fork
"""
PROCESS = """
class Popen(subprocess.Popen):
    left = LEFT
    def __init__(self, *arguments, **options):
        Popen.left -= 1
        if Popen.left < 0:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        super().__init__(*arguments, **options)
subprocess.Popen = Popen
"""
THREAD = """
start = threading.Thread.start
def refuse(thread):
    if thread.name.startswith("NAME"):
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = refuse
"""
WAY_OUT = "raise the limit on processes and threads of the user (ulimit -u"


def run_refused(
    refuse: str, module: str, *arguments: object, **options: Any
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", REFUSED.replace("REFUSE", refuse), module]
    command += map(str, arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


@pytest.fixture
def file_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Processes and threads


@pytest.mark.parametrize(
    ("refuse", "what"),
    [
        (FORK, "the process that ends what ranks leave behind"),
        (PROCESS.replace("LEFT", "0"), "rank 0"),
        (PROCESS.replace("LEFT", "1"), "rank 1"),
        (THREAD.replace("NAME", "malt-rendezvous"), "the thread that serves the ranks"),
    ],
    ids=["guard", "first rank", "second rank", "server"],
)
def test_a_job_that_reaches_the_limit_on_processes_says_so(
    script: Script, refuse: str, what: str
) -> None:
    done = run_refused(refuse, "malt", "run", "-n", 2, script("time.sleep(60)"))
    assert done.returncode == 2
    assert f"malt run: error: cannot start {what} (" in done.stderr
    assert WAY_OUT in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_that_cannot_be_started_again_leaves_the_others_running(script: Script) -> None:
    path = script("""
if rank == 0:
    sys.exit(3)
time.sleep(1)
note("done")
""")
    refuse = PROCESS.replace("LEFT", "2")
    done = run_refused(refuse, "malt", "run", "--respawn", "--keep-going", "-n", 2, path)
    assert done.returncode == 3
    assert "rank 0 cannot be started: cannot start rank 0 (" in done.stderr
    assert WAY_OUT in done.stderr
    assert (path.parent / "done").exists()


def test_a_rank_that_reaches_the_limit_on_threads_says_so(script: Script) -> None:
    refuse = THREAD.replace("NAME", "malt-member")
    path = script(f"import threading\n{refuse}\nimport malt\nmalt.init(timeout=20)")
    done = run("--respawn=1", "-n", 1, path)
    assert done.returncode == 1
    assert b"malt.ConfigError: cannot start the thread that hears the launcher (" in done.stderr


def test_a_collector_that_reaches_the_limit_on_threads_says_so() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listening:
        passed = [theirs.fileno(), listening.fileno()]
        done = run_refused(
            THREAD.replace("NAME", "Thread"),
            *("malt._watching.collect", passed[0], 0, "--metrics", passed[1]),
            pass_fds=passed,
        )
    assert done.returncode == 1
    assert "malt: cannot start the thread that answers requests (" in done.stderr
    assert WAY_OUT in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pool_that_reaches_the_limit_on_processes_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def refuse_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(ConfigError, match=r"a rank of malt.Pool .*ulimit -u"):
        starting.fork(lambda: 0)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with socket.socket() as control, pytest.raises(ConfigError, match=r"malt.Pool.*ulimit -u"):
        nursery.start(control, 2)
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    with pytest.raises(ConfigError, match=r"malt.Pool.*ulimit -u"):
        Inbox()


# The size of files, which memory files have too


def test_lost_output_is_reported_with_the_limit_on_files(script: Script, tmp_path: Path) -> None:
    """The rank goes on without it: its results are worth more than its log."""
    path = script("for _ in range(20):\n    print('x' * 40_000, flush=True)\nopen('end', 'x')")
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            ["prlimit", f"--fsize={1 << 16}", *MALT_RUN, "--prefix", "-n", "1", str(path)],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            cwd=tmp_path,
        )
    assert "malt run: what ranks write is lost from here on: File too large" in done.stderr
    assert done.returncode == 0
    assert (tmp_path / "end").exists()
    assert "is 65,536 bytes; raise it (ulimit -f)" in done.stderr


@pytest.mark.usefixtures("file_limit")
def test_memory_that_is_larger_than_a_file_may_be_is_refused_with_the_limit() -> None:
    with pytest.raises(ConfigError, match=r"cannot be recorded.* 65,536 bytes.*ulimit -f"):
        recorder_memory.make(2)
    memory = Memory.make("test")
    with pytest.raises(ConfigError, match=r"malt.Pool needs.* 65,536 bytes.*ulimit -f"):
        memory.reserve(1 << 17)
    memory.close()


@pytest.mark.usefixtures("file_limit")
def test_reports_and_traces_that_are_larger_than_a_file_may_be_are_refused_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def write(path: Path, *_: object) -> None:
        path.write_text("x" * (1 << 17))

    says = "is 65,536 bytes; raise it (ulimit -f)"
    monkeypatch.setattr(run_report, "write", write)
    collector: Any = SimpleNamespace(processes=list, exchange=None, origin=0)
    endings.write_report(collector, tmp_path / "report.html", "")
    assert says in capfd.readouterr().err
    monkeypatch.setattr(trace, "write", write)
    assert not Collector(0, True, False, False, 1).write_trace(tmp_path / "trace.json")
    assert says in capfd.readouterr().err


# System calls that a container may refuse


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_a_seccomp_filter_that_refuses_memory_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(ConfigError, match=r"cannot be recorded.*memfd_create.*seccomp filter"):
        recorder_memory.make(2)
    with pytest.raises(ConfigError, match=r"memfd_create.*seccomp filter"):
        Memory.make("test")


def test_a_host_without_loopback_is_refused_before_ranks_start(script: Script) -> None:
    own_network = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*own_network, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a network namespace: unshare --user --net is refused")
    done = subprocess.run(
        [*own_network, *MALT_RUN, "-n", "2", str(script("note('started')"))],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2
    assert "cannot reach 127.0.0.1" in done.stderr
    assert "ip link set lo up" in done.stderr
    assert "Traceback" not in done.stderr
