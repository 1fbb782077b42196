"""`malt run`, with real processes: what the ranks are given, exit codes, and bad input."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from launches import MALT_RUN, Script, assert_gone, noted, run

from malt._commands.run import command_line
from malt._commands.run_options import split
from malt._errors import ConfigError

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


@pytest.mark.parametrize(
    "options",
    ["", "-n 2", "--respawn", "--respawn 3", "--respawn=3", "--dashboard 8080 -v", "--grace 1"],
)
def test_the_program_begins_at_the_first_word_that_no_option_takes(options: str) -> None:
    own, program = options.split(), ["train.py", "--respawn", "7"]
    assert split([*own, *program]) == (own, program)
    assert split([*own, "--", *program]) == (own, program)


@pytest.mark.parametrize("options", [(), ("--respawn",)])
def test_child_of_a_rank_does_not_inherit_the_jobs_key(
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


def test_the_collector_does_not_inherit_the_jobs_key(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script("""
import pathlib
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if b"malt._watching.collect" in (process / "cmdline").read_bytes().split(b"\\0"):
            if (process / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getppid()):
                environ = (process / "environ").read_bytes()
                print(b"PATH=" in environ, b"MALT_JOB_KEY" in environ)
    except OSError:
        pass
""")
    monkeypatch.setenv("MALT_JOB_KEY", "5" * 64)
    done = run("--report", "report.html", "-n", 1, path)
    assert done.stdout == b"True False\n", done.stderr


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
        "from malt._bootstrap import find_bootstrap\n"
        "with find_bootstrap.find() as b: print(b.launcher, b.allgather(bytes([65 + rank]), 10))\n"
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
        "from malt._bootstrap import find_bootstrap\n"
        "if rank == 2: os.kill(os.getpid(), 9)\n"
        "try: find_bootstrap.find().allgather(b'', 30)\n"
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
        *(
            (["-n", "2", "--timeout", text, "x.py"], f"'{text}' is not a number of seconds above 0")
            for text in ("soon", "0", "nan")
        ),
        (["-n", "2", "--grace=-1", "x.py"], "'-1' is not a number of seconds, 0 or more"),
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
