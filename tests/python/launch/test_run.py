"""`malt run`, with real processes: output, exit codes, signals, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from malt._commands.run import command_line, split
from malt._errors import ConfigError
from malt._launch.output import Sink, Stream
from malt._launch.tracebacks import Tracebacks

MALT_RUN = [sys.executable, "-m", "malt", "run"]
# Each rank writes its process id here, so that a test can see whether it is gone.
PREAMBLE = """
import os, sys, time, signal, subprocess
rank, size = int(os.environ["MALT_RANK"]), int(os.environ["MALT_SIZE"])
def note(name, text=""):
    with open(name + ".tmp", "w") as f: f.write(str(text))
    os.rename(name + ".tmp", name)
def wait_for(*names):
    while not all(os.path.exists(n) for n in names): time.sleep(0.01)
note(f"pid{rank}", os.getpid())
"""

Script = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.chdir(tmp_path)

    def write(body: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(PREAMBLE + body)
        return path

    return write


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [*MALT_RUN, *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )


@contextlib.contextmanager
def running(*arguments: object, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*MALT_RUN, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=100)


def wait_until(is_true: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_true():
            return True
        time.sleep(0.01)
    return is_true()


def exists(*names: str) -> bool:
    return wait_until(lambda: all(Path(name).exists() for name in names))


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def noted(*names: str) -> list[int]:
    return [int(Path(name).read_text()) for name in names]


def assert_gone(*processes: int) -> None:
    for process in processes:
        assert wait_until(lambda p=process: not is_alive(p)), process


# Output


def test_lines_get_their_rank_and_keep_their_stream(script: Script) -> None:
    path = script("print('out', rank, *sys.argv[1:]); print('err', file=sys.stderr)")
    done = run("-n", 3, path, "-n", "9", "--keep-going", "--", "-m")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        b"[%d] out %d -n 9 --keep-going -- -m" % (r, r) for r in range(3)
    ]
    ranks_lines = [line for line in done.stderr.splitlines() if line[:1] == b"["]
    assert sorted(ranks_lines) == [b"[%d] err" % r for r in range(3)]


def test_one_rank_is_passed_through_as_it_is(script: Script) -> None:
    done = run("-n", 1, script("sys.stdout.write('plain\\rbytes'); sys.exit(7)"))
    assert (done.returncode, done.stdout) == (7, b"plain\rbytes")
    assert done.stderr.startswith(b"malt run: rank 0 exited with code 7 after ")


def test_prefix_can_be_asked_for_and_left_out(script: Script) -> None:
    path = script("print('x')")
    assert run("-n", 1, "--prefix", path).stdout == b"[0] x\n"
    assert run("-n", 2, "--no-prefix", path).stdout == b"x\nx\n"


def test_lines_of_many_ranks_stay_whole(script: Script) -> None:
    path = script(
        "line = bytes([97 + rank]) * 5000 + b'\\n'\n"
        "for i in range(200):\n"
        "    for piece in (line[:777], line[777:]): os.write(1, piece)\n"
    )
    lines = run("-n", 4, path).stdout.splitlines()
    assert len(lines) == 800
    for rank in range(4):
        assert lines.count(b"[%d] " % rank + bytes([97 + rank]) * 5000) == 200


def test_bytes_pass_unchanged(script: Script) -> None:
    everything = bytes(range(256)) * 1000 + b"end"
    path = script("if rank == 1: os.write(1, bytes(range(256)) * 1000 + b'end')")
    assert run("-n", 2, "--no-prefix", path).stdout == everything


def test_last_line_without_an_end_is_shown(script: Script) -> None:
    done = run("-n", 2, script("os.write(1, b'last')"))
    assert sorted(done.stdout.splitlines(keepends=True)) == [b"[0] last\n", b"[1] last\n"]


def test_words_before_a_hang_are_shown(script: Script) -> None:
    with running("-n", 2, script("os.write(1, b'loading'); time.sleep(600)")) as job:
        assert job.stdout is not None
        seen = b""
        while seen.count(b"loading") < 2:
            assert select.select([job.stdout], [], [], 10)[0]
            seen += os.read(job.stdout.fileno(), 4096)
        assert sorted(seen.splitlines()) == [b"[0] loading", b"[1] loading"]


def test_progress_bar_is_reduced_to_its_last_state(script: Script) -> None:
    path = script(
        "for i in range(50): os.write(2, b'\\r%d%%' % (2 * i + 2)); time.sleep(0.002)\n"
        "os.write(2, b'\\nnext\\r\\n')\n"
    )
    lines = run("-n", 2, path).stderr.split(b"\n")
    ranks_lines = [line for line in lines if line[:1] == b"["]
    assert sorted(ranks_lines) == [b"[0] 100%", b"[0] next\r", b"[1] 100%", b"[1] next\r"]


def test_progress_bar_is_redrawn_in_place_on_a_terminal() -> None:
    controller, terminal = pty.openpty()
    read_end, write_end = os.pipe()
    sink = Sink(terminal)
    stream = Stream(read_end, sink, 0)
    try:
        for state in (b"10%", b"20%"):
            os.write(write_end, b"\r" + state)
            stream.read(0.0)
            assert stream.show_at() is not None
            stream.show()
        sink.say("other")
        os.write(write_end, b"\r30%\n")
        stream.read(0.0)
        prefix = b"\x1b[36m[0]\x1b[0m "
        expected = prefix + b"10%\r\x1b[K" + prefix + b"20%\r\nother\r\n" + prefix + b"30%\r\n"
        seen = b""
        while len(seen) < len(expected):
            assert select.select([controller], [], [], 5)[0]
            seen += os.read(controller, 4096)
        assert seen == expected
    finally:
        stream.finish()
        for descriptor in (controller, terminal, write_end):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([b"a\nb\n"], b"[7] a\n[7] b\n"),
        ([b"a", b"b\nc\n"], b"[7] ab\n[7] c\n"),
        ([b"10%\r", b"20%\r", b"\n"], b"[7] 10%\n[7] 20%\n"),
        ([b"\r", b"10%\n"], b"[7] 10%\n"),
        ([b"\n\n"], b"[7] \n[7] \n"),
        ([b"a\rb\rc\n"], b"[7] c\n"),
        ([b"a\r\nb\r\n"], b"[7] a\r\n[7] b\r\n"),
        ([b"x", b"\r\n"], b"[7] x\n"),
        ([b"\xff\xfe\x00\n"], b"[7] \xff\xfe\x00\n"),
    ],
)
def test_pieces_that_are_shown_one_by_one_make_lines(
    tmp_path: Path, writes: list[bytes], expected: bytes
) -> None:
    with (tmp_path / "output").open("wb") as file:
        read_end, write_end = os.pipe()
        stream = Stream(read_end, Sink(file.fileno()), 7)
        for data in writes:
            os.write(write_end, data)
            stream.read(0.0)
            stream.show()
        os.close(write_end)
        stream.finish()
    assert (tmp_path / "output").read_bytes() == expected


def test_of_tracebacks_from_one_place_the_first_is_shown_whole(script: Script) -> None:
    path = script("""
def fail():
    raise ValueError(f"rank {rank} cannot")
while rank and not os.path.exists("pid0.done"): time.sleep(0.01)
if rank == 0:
    import atexit; atexit.register(lambda: (time.sleep(0.5), note("pid0.done")))
if rank == 2:
    raise ValueError("elsewhere")
fail()
""")
    lines = run("-n", 3, "--keep-going", path).stderr.decode().splitlines()
    shown = {rank: [line for line in lines if line.startswith(f"[{rank}]")] for rank in range(3)}
    assert shown[0][0] == "[0] Traceback (most recent call last):"
    assert shown[0][-1] == "[0] ValueError: rank 0 cannot"
    assert shown[1] == ["[1] (traceback as on rank 0)", "[1] ValueError: rank 1 cannot"]
    assert shown[2][0] == "[2] Traceback (most recent call last):"
    assert shown[2][-1] == "[2] ValueError: elsewhere"


def test_a_traceback_without_an_end_is_shown_too(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as file:
        read_end, write_end = os.pipe()
        stream = Stream(read_end, Sink(file.fileno()), 7, Tracebacks())
        os.write(write_end, b"a\nTraceback (most recent call last):\n  File\n    li")
        stream.read(0.0)
        assert stream.show_at() is not None
        stream.show()
        os.write(write_end, b"ne\nError\n")
        os.close(write_end)
        stream.read(0.0)
        stream.finish()
    shown = b"[7] a\n[7] Traceback (most recent call last):\n[7]   File\n[7]     line\n[7] Error\n"
    assert (tmp_path / "output").read_bytes() == shown


def test_reader_that_goes_away_ends_the_job(script: Script) -> None:
    path = script("wait_for('pid0', 'pid1')\nwhile True: print('x' * 1000)")
    with running("-n", 2, path) as job:
        assert job.stdout is not None
        job.stdout.read(100)
        job.stdout.close()
        assert job.wait(100) != 0
        job.stdout = None
    assert_gone(*noted("pid0", "pid1"))


# What the ranks are given


def test_environment_of_the_ranks(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["MALT_SIZE", "MALT_TIMEOUT", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"]
    path = script(f"print(*[os.environ.get(n) for n in {names}], len(os.environ['MALT_JOB_KEY']))")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    done = run("-n", 2, "--timeout", "7.5", path)
    assert done.stdout.splitlines()[0].split(b" ", 1)[1] == b"2 7.5 1 %d 64" % threads
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert run("-n", 1, path).stdout == b"1 None 1 5 64\n"


@pytest.mark.parametrize("options", [(), ("--respawn",)])
def test_what_a_rank_starts_does_not_inherit_the_jobs_key(
    script: Script, options: tuple[str, ...]
) -> None:
    path = script("""
import subprocess, malt
names = "[n for n in ('MALT_JOB_KEY', 'MALT_RENDEZVOUS') if n in os.environ]"
def inherited():
    child = [sys.executable, "-c", f"import os; print({names})"]
    return subprocess.run(child, capture_output=True, text=True).stdout.strip()
malt.init(timeout=20)
print(inherited())
malt.finalize()
print(inherited())
""")
    done = run(*options, "-n", 1, path)
    assert done.stdout.decode().splitlines() == ["['MALT_RENDEZVOUS']"] * 2, done.stderr


def test_ranks_that_have_left_join_again_though_the_key_has_left_the_environment(
    script: Script,
) -> None:
    path = script("""
import malt
for _ in range(2):
    with malt.init(timeout=20):
        print(malt.size(), "MALT_JOB_KEY" in os.environ)
""")
    done = run("-n", 2, path)
    assert sorted(done.stdout.decode().splitlines()) == [
        f"[{rank}] 2 False" for rank in (0, 0, 1, 1)
    ], done.stderr


def test_verbose_run_has_ranks_log_unless_the_user_has_said_how(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script("print(os.environ.get('MALT_LOG'))")
    monkeypatch.delenv("MALT_LOG", raising=False)
    assert run("-n", 1, path).stdout == b"None\n"
    assert run("-n", 1, "-v", path).stdout == b"info\n"
    monkeypatch.setenv("MALT_LOG", "error")
    assert run("-n", 1, "-v", path).stdout == b"error\n"


def test_ranks_of_one_host_are_its_local_ranks(script: Script) -> None:
    names = ["RANK", "LOCAL_RANK", "NODE_RANK", "NNODES"]
    done = run("-n", 2, script(f"print(*[os.environ['MALT_' + name] for name in {names}])"))
    assert sorted(done.stdout.splitlines()) == [b"[0] 0 0 0 1", b"[1] 1 1 0 1"]


def test_module_and_executable(script: Script) -> None:
    script("print(__name__, sys.argv[1:])")
    done = run("-n", 2, "-m", "program", "-m", "x")
    assert b"[1] __main__ ['-m', 'x']" in done.stdout.splitlines()
    done = run("-n", 2, "--", "sh", "-c", "echo $MALT_RANK of $MALT_SIZE")
    assert sorted(done.stdout.splitlines()) == [b"[0] 0 of 2", b"[1] 1 of 2"]


def test_standard_input_goes_to_rank_0(script: Script) -> None:
    path = script("print(repr(sys.stdin.read()))")
    done = subprocess.run(
        [*MALT_RUN, "-n", "2", path], input=b"data", capture_output=True, timeout=100, check=True
    )
    assert sorted(done.stdout.splitlines()) == [b"[0] 'data'", b"[1] ''"]


def test_ranks_have_no_descriptors_of_the_launcher(script: Script) -> None:
    # os.listdir itself has one open.
    done = run("-n", 2, script("print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"))
    assert sorted(done.stdout.splitlines()) == [b"[0] [0, 1, 2]", b"[1] [0, 1, 2]"]


def test_ranks_meet_through_the_launcher(script: Script) -> None:
    path = script(
        "from malt._job import bootstrap\n"
        "with bootstrap.find() as b: print(b.launcher, b.allgather(bytes([65 + rank]), 10))\n"
    )
    done = run("-n", 3, path)
    expected = b"malt run [b'A', b'B', b'C']"
    assert sorted(done.stdout.splitlines()) == [b"[%d] " % r + expected for r in range(3)]


def test_a_job_that_no_process_joined_is_told_so(script: Script) -> None:
    done = run("-n", 2, script(""))
    assert done.returncode == 0
    assert done.stderr.startswith(b"malt run: none of the 2 processes called malt.init(): each ran")
    assert done.stderr.count(b"\n") == 1
    one_did = "if rank == 0: import malt; malt.init(timeout=1)"
    assert b"none of" not in run("-n", 2, "--keep-going", script(one_did)).stderr
    assert run("-n", 1, script("")).stderr == b""
    assert b"none of" not in run("-n", 2, script("sys.exit(3)")).stderr


def test_ranks_that_wait_for_a_dead_one_hear_of_it(script: Script) -> None:
    path = script(
        "from malt._job import bootstrap\n"
        "if rank == 2: os.kill(os.getpid(), 9)\n"
        "try: bootstrap.find().allgather(b'', 30)\n"
        "except ConnectionError as e: print(e, e.ranks)\n"
    )
    done = run("-n", 3, "--keep-going", path)
    assert sorted(done.stdout.splitlines()) == [
        b"[%d] rank 2 died of SIGKILL during start-up (2,)" % r for r in range(2)
    ]
    assert done.returncode == 128 + 9


# Exit codes


def test_first_bad_exit_code_is_returned_and_the_others_are_stopped(script: Script) -> None:
    path = script(
        "if rank == 1:\n"
        "    wait_for('pid0', 'pid2'); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (note(f'term{rank}'), sys.exit(4)))\n"
        "time.sleep(600)\n"
    )
    done = run("-n", 3, path)
    assert done.returncode == 3
    assert b"malt run: rank 1 exited with code 3 after " in done.stderr
    assert b" s; stopping the others (--keep-going leaves them running)\n" in done.stderr
    assert done.stderr.count(b"malt run:") == 1
    assert_gone(*noted("pid0", "pid1", "pid2"))


def test_signal_that_killed_a_rank_is_named(script: Script) -> None:
    path = script("wait_for('pid0', 'pid1')\nif rank: os.kill(os.getpid(), 9)\ntime.sleep(600)")
    done = run("-n", 2, path)
    assert done.returncode == 137
    assert b"malt run: rank 1 died of SIGKILL after " in done.stderr
    assert_gone(*noted("pid0"))


def test_rank_that_ignores_sigterm_is_killed_after_the_grace(script: Script) -> None:
    path = script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); note(f'ready{rank}')\n"
        "wait_for('ready0', 'ready1')\n"
        "if rank == 1: sys.exit(5)\n"
        "time.sleep(600)\n"
    )
    done = run("-n", 2, "--grace", "0.5", path)
    assert done.returncode == 5
    assert b"malt run: killed rank 0: not stopped 0.5 s after SIGTERM\n" in done.stderr
    assert_gone(*noted("pid0"))


def test_stopped_rank_does_not_hold_up_the_end(script: Script) -> None:
    path = script(
        "wait_for('pid0', 'pid1')\n"
        "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "time.sleep(0.3); sys.exit(6)\n"
    )
    assert run("-n", 2, path).returncode == 6


def test_keep_going_leaves_the_survivors_running(script: Script) -> None:
    path = script(
        "wait_for('pid0', 'pid1', 'pid2')\n"
        "if rank == 1: os.kill(os.getpid(), 9)\n"
        "time.sleep(1); print('finished')\n"
        "if rank == 2: sys.exit(3)\n"
    )
    done = run("-n", 3, "--keep-going", path)
    assert sorted(done.stdout.splitlines()) == [b"[0] finished", b"[2] finished"]
    assert done.returncode == 137
    assert b"rank 1 died of SIGKILL" in done.stderr
    assert b"; 2 go on\n" in done.stderr
    assert b"rank 2 exited with code 3" in done.stderr


# Signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT"])
def test_signal_is_passed_on_to_all_ranks(script: Script, name: str) -> None:
    path = script(
        f"signal.signal(signal.{name}, lambda *_: (note(f'got{{rank}}'), os._exit(0)))\n"
        "note(f'ready{rank}'); time.sleep(600)\n"
    )
    with running("-n", 2, path) as job:
        assert exists("ready0", "ready1")
        job.send_signal(signal.Signals[name])
        assert job.wait(100) == 0
    assert exists("got0", "got1")


def test_interrupt_ends_ranks_once_and_quietly(script: Script) -> None:
    path = script(
        "try: note(f'ready{rank}'); time.sleep(600)\n"
        "except KeyboardInterrupt: print('saved'); time.sleep(0.5); sys.exit(0)\n"
    )
    with running("-n", 2, path) as job:
        assert exists("ready0", "ready1")
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=100)
    assert sorted(out.splitlines()) == [b"[0] saved", b"[1] saved"]
    assert err == b"malt run: SIGINT passed on to the ranks; once more kills them\n"
    assert job.returncode == 0


def test_second_interrupt_kills(script: Script) -> None:
    path = script(
        "signal.signal(signal.SIGINT, lambda *_: note(f'int{rank}'))\n"
        "note(f'ready{rank}')\nwhile True: time.sleep(1)\n"
    )
    with running("-n", 2, path) as job:
        assert exists("ready0", "ready1")
        job.send_signal(signal.SIGINT)
        assert exists("int0", "int1")
        time.sleep(0.4)
        job.send_signal(signal.SIGINT)
        assert job.wait(100) == 137
    assert_gone(*noted("pid0", "pid1"))


def test_terminal_ctrl_c_reaches_each_rank_once(script: Script) -> None:
    path = script(
        "count = 0\n"
        "def on(*_):\n"
        "    global count; count += 1\n"
        "signal.signal(signal.SIGINT, on); print('ready')\n"
        "end = time.time() + 1.5\n"
        "while time.time() < end: time.sleep(0.05)\n"
        "print('count', count)\n"
    )
    for size in (1, 2):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [*MALT_RUN, "-n", str(size), str(path)])
        seen = b""
        while seen.count(b"ready") < size:
            seen += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):  # what reading a terminal ends with
            while data := os.read(terminal, 4096):
                seen += data
        os.close(terminal)
        assert os.waitpid(pid, 0)[1] == 0
        assert seen.count(b"count 1") == size, seen


def test_ctrl_z_stops_the_ranks_too(script: Script) -> None:
    with running("-n", 2, script("time.sleep(600)")) as job:
        assert exists("pid0", "pid1")
        time.sleep(0.2)
        job.send_signal(signal.SIGTSTP)

        def states() -> set[str]:
            processes = [job.pid, *noted("pid0", "pid1")]
            stats = [Path(f"/proc/{p}/stat").read_text() for p in processes]
            return {stat.rpartition(")")[2].split()[0] for stat in stats}

        assert wait_until(lambda: states() == {"T"})
        job.send_signal(signal.SIGCONT)
        assert wait_until(lambda: states() == {"S"})


def test_ignored_hangup_stays_ignored(script: Script) -> None:
    path = script("note(f'ready{rank}'); time.sleep(1)")
    with running(
        "-n", 2, path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ) as job:
        assert exists("ready0", "ready1")
        job.send_signal(signal.SIGHUP)
        assert job.wait(100) == 0


# Nothing is left behind

HELPER = (
    "subprocess.Popen([sys.executable, '-c', 'import os, time; "
    'open("helper%d.tmp", "w").write(str(os.getpid())); '
    'os.rename("helper%d.tmp", "helper%d"); time.sleep(600)\' % (rank, rank, rank)])\n'
    "wait_for(f'helper{rank}')\n"
)


def test_kill_of_the_launcher_takes_ranks_and_their_children_along(script: Script) -> None:
    with running("-n", 2, script(HELPER + "note(f'ready{rank}'); time.sleep(600)")) as job:
        assert exists("ready0", "ready1")
        guards = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        job.kill()
        job.wait(100)
        assert_gone(*noted("pid0", "pid1", "helper0", "helper1"))
        assert_gone(*map(int, guards))


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.06, 0.09, 0.12, 0.2, 0.3])
def test_kill_of_the_launcher_at_any_time_leaves_nothing(script: Script, delay: float) -> None:
    path = script("time.sleep(600)")
    with running("-n", 4, path) as job:
        time.sleep(delay)
        job.kill()
        job.wait(100)

    def left() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(path).encode() in process.read_bytes() and is_alive(int(process.parts[2])):
                    found.append(process.parts[2])
        return found

    assert wait_until(lambda: not left()), left()


def test_child_that_outlives_its_rank_neither_hangs_the_launcher_nor_stays(script: Script) -> None:
    done = run("-n", 2, script(HELPER))
    assert done.returncode == 0
    assert_gone(*noted("helper0", "helper1"))


def test_daemon_that_holds_the_output_does_not_hang_the_launcher(script: Script) -> None:
    daemon = HELPER.replace("])\n", "], start_new_session=True)\n", 1)
    done = run("-n", 2, script(daemon + "print('done')"))
    assert sorted(done.stdout.splitlines()) == [b"[0] done", b"[1] done"]
    for process in noted("helper0", "helper1"):
        assert is_alive(process)  # it has left on purpose
        os.kill(process, signal.SIGKILL)


def test_children_of_a_killed_rank_are_ended(script: Script) -> None:
    path = script(
        HELPER + "wait_for('helper0', 'helper1')\nif rank: os.kill(os.getpid(), 9)\ntime.sleep(600)"
    )
    assert run("-n", 2, path).returncode == 137
    assert_gone(*noted("pid0", "helper0", "helper1"))


def test_launcher_sleeps_while_ranks_work(script: Script) -> None:
    with running("-n", 2, script("note(f'ready{rank}'); time.sleep(600)")) as job:
        assert exists("ready0", "ready1")
        time.sleep(0.2)

        def ticks() -> int:
            stat = Path(f"/proc/{job.pid}/stat").read_text()
            return sum(map(int, stat.rpartition(")")[2].split()[11:13]))

        before = ticks()
        time.sleep(1)
        assert ticks() - before <= 1


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "x.py"], "'0' is not a number of ranks, 1 or more"),
        (["-n", "-3", "x.py"], "'-3' is not a number of ranks"),
        (["-n", "two", "x.py"], "'two' is not a number of ranks"),
        (["x.py"], "-n N is missing"),
        (["-n", "2"], "what to run is missing"),
        (["-n", "2", "--"], "what to run is missing"),
        (["-n"], "expected one argument"),
        (["-n", "2", "missing.py"], "there is no script missing.py"),
        (["-n", "2", "missing-thing"], "there is no script or executable missing-thing"),
        (["-n", "2", "./notes.txt"], "neither a .py file nor executable"),
        (["-n", "2", "-m"], "-m needs the name of a module"),
        (["-n", "2", "--timeout", "soon", "x.py"], "'soon' is not a number of seconds"),
        (["-n", "2", "--gibberish", "x.py"], "unrecognized arguments: --gibberish"),
        (["-n", "900000000", "program.py"], "open files in the launcher, the limit is"),
        (["-n", "2", "./broken"], "Exec format error"),
        (["-n", "2", "./lost"], "No such file or directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    script: Script, arguments: list[str], message: str
) -> None:
    script("")
    Path("notes.txt").write_text("")
    for name, text in (("broken", "no program"), ("lost", "#!/nowhere/interpreter\n")):
        Path(name).write_text(text)
        Path(name).chmod(0o755)
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    assert message in done.stderr.decode()
    assert done.stderr.startswith(b"malt run: error: ")
    assert done.stderr.count(b"\n") == 1


def test_help_says_what_is_set_for_the_ranks() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert b"OMP_NUM_THREADS" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "own", "program"),
    [
        (["-n", "2", "a.py", "-n", "3"], ["-n", "2"], ["a.py", "-n", "3"]),
        (["-n2", "a.py"], ["-n2"], ["a.py"]),
        (["--timeout=3", "-n", "2", "-m", "x"], ["--timeout=3", "-n", "2"], ["-m", "x"]),
        (["-n", "2", "--", "-m", "x", "--"], ["-n", "2"], ["-m", "x", "--"]),
        (["--no-prefix", "a.py", "--help"], ["--no-prefix"], ["a.py", "--help"]),
        (["--nnodes", "2", "--key-file", "k", "a"], ["--nnodes", "2", "--key-file", "k"], ["a"]),
        (
            ["--node-rank", "1", "--rendezvous", "h:1", "a"],
            ["--node-rank", "1", "--rendezvous", "h:1"],
            ["a"],
        ),
        (["-n"], ["-n"], []),
        ([], [], []),
    ],
)
def test_program_and_its_arguments_are_left_untouched(
    arguments: list[str], own: list[str], program: list[str]
) -> None:
    assert split(arguments) == (own, program)


def test_executable_in_the_working_folder_is_found(script: Script) -> None:
    script("")
    Path("prog").write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="chmod"):
        command_line(["prog"])
    Path("prog").chmod(0o755)
    assert command_line(["prog", "-x"]) == [str(Path("prog").absolute()), "-x"]
