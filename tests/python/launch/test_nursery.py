"""The process that forks ranks: what it imports, when it refuses, and its death."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import assert_gone, exists, noted, run, running, wait_until
from preloads import ALONE, assert_forked, installed, program, reason

pytestmark = pytest.mark.usefixtures("in_folder")

# Imports


def test_modules_of_the_program_are_imported_by_each_rank() -> None:
    Path("own.py").write_text("import os; print('own', os.environ['MALT_RANK'])")
    path = program("", "import numpy\nimport own\n")
    assert sorted(assert_forked(path).splitlines()) == [b"[0] own 0", b"[1] own 1"]


def test_what_modules_of_the_program_import_first_is_shared() -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("from . import part\n")
    Path("package/part.py").write_text("from numpy import linalg\n")
    assert_forked(program("", "from package import part\n"))


@pytest.mark.parametrize(
    "imports",
    ["import json\n", "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport numpy\n"],
)
def test_only_what_the_program_imports_before_all_else_is_shared(imports: str) -> None:
    assert reason(program("", imports)) == (
        b"it imports no installed package before it does anything else"
    )


def test_a_module_of_the_program_hides_an_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "inner", "print('installed')")
    installed(monkeypatch, "outer", "import inner")
    Path("inner.py").write_text("print('own')")
    path = program("", "import numpy, outer\n")
    assert reason(path) == b"the program's folder has its own inner"
    assert run("-n", 1, "--preload", path).stdout == b"own\n"


# Imports after which nothing can be forked


UNFIT = {
    "thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=[9], daemon=1).start()",
        b"what it imports has started 1 threads",
    ),
    "file": ("kept = open(__file__)", b"what it imports has opened /"),
    "process": (
        "import subprocess; kept = subprocess.Popen(['sleep', '.5'])",
        b"what it imports has started a process",
    ),
    "error": ("import os; os.environ['MALT_RANK']", b"import unfit fails: KeyError('MALT_RANK')"),
    "end": ("import os; 'MALT_RANK' in os.environ or os._exit(3)", b"the process that was to "),
}


@pytest.mark.parametrize("what", UNFIT)
def test_ranks_of_an_import_that_cannot_be_forked_are_executed(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, expected = UNFIT[what]
    installed(monkeypatch, "unfit", text)
    assert reason(program("", "import numpy, unfit\n")).startswith(expected)


def test_threads_of_openblas_do_not_hinder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    path = program("a = numpy.ones((300, 300)); print(float((a @ a).sum()))")
    assert sorted(assert_forked(path).splitlines()) == [b"[0] 27000000.0", b"[1] 27000000.0"]


def test_a_python_that_does_not_read_pythonpath_executes_ranks() -> None:
    wrapper = Path("python").absolute()
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -E "$@"\n')
    wrapper.chmod(0o755)
    launch = f"import sys; sys.executable = {str(wrapper)!r}; sys.argv[0] = 'malt'; "
    launch += "from malt._commands.main import main; sys.exit(main())"
    options = ["run", "-n", "2", "--preload", "-v", program("print(rank)")]
    command = [sys.executable, "-c", launch, *options]
    done = subprocess.run(command, capture_output=True, timeout=100, check=True)
    assert ALONE + b"this Python takes no sitecustomize" in done.stderr
    assert sorted(done.stdout.splitlines()) == [b"[0] 0", b"[1] 1"]


def test_the_users_own_sitecustomize_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text("import builtins; builtins.customized = True")
    monkeypatch.setenv("PYTHONPATH", str(Path("site").absolute()), prepend=os.pathsep)
    path = program("print(customized, sys.modules['sitecustomize'].__file__ == SITE)")
    path.write_text(
        f"SITE = {str(Path('site/sitecustomize.py').absolute())!r}\n" + path.read_text()
    )
    assert sorted(assert_forked(path).splitlines()) == [b"[0] True True", b"[1] True True"]


# Deaths


def children_of(process: int) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == process:
                found.add(int(entry.name))
    return found


def command_of(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []


def nursery_of(launcher: int, *ranks: int) -> int:
    """Return the process that has the command line of the ranks and is none of them."""

    def found() -> list[int]:
        others = {child: command_of(child) for child in children_of(launcher) - set(ranks)}
        return [
            child
            for child, command in others.items()
            if b"program.py" in command and b"run" not in command
        ]

    assert wait_until(lambda: len(found()) == 1)
    return found()[0]


SLOW = "import time\nfor _ in range(500 * (not __import__('os').environ.get('MALT_RANK'))):\n"
SLOW += "    time.sleep(0.01)"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_job_starts_without_its_nursery(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    installed(monkeypatch, "slow", SLOW)
    path = program("print(rank)", "import numpy, slow\n")
    with running("-n", "2", "--preload", path) as launcher:
        os.kill(nursery_of(launcher.pid), number)
        out, _ = launcher.communicate(timeout=60)
    assert sorted(out.splitlines()) == [b"[0] 0", b"[1] 1"]
    assert launcher.returncode == 0


def test_ctrl_c_during_the_imports_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "slow", SLOW)
    with running("-n", "2", "--preload", program("", "import numpy, slow\n")) as launcher:
        nursery = nursery_of(launcher.pid)
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 128 + signal.SIGINT
        assert_gone(nursery)


def test_ranks_start_again_with_their_nursery_and_without(tmp_path: Path) -> None:
    path = program("""
life = int(os.environ["MALT_RESTARTS"])
note(f"life{rank}-{life}", os.getpid())
note(f"shared{rank}-{life}", "malt._launch.forking" in sys.modules)
wait_for("end")
""")
    with running("-n", "2", "--preload", "--respawn", path) as launcher:
        assert exists("shared0-0", "shared1-0")
        nursery = nursery_of(launcher.pid, *noted("life0-0", "life1-0"))
        os.kill(*noted("life1-0"), signal.SIGKILL)
        assert exists("shared1-1")
        os.kill(nursery, signal.SIGKILL)
        assert_gone(nursery)
        os.kill(*noted("life1-1"), signal.SIGKILL)
        assert exists("shared1-2")
        Path("end").touch()
        launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    shared = [Path(f"shared1-{life}").read_text() for life in range(3)]
    assert shared == ["True", "True", "False"]


def test_the_nursery_ends_when_all_ranks_have_started_if_none_can_start_again() -> None:
    path = program('wait_for("pid0", "pid1"); time.sleep(0.3); note(f"end{rank}")')
    with running("-n", "2", "--preload", path) as launcher:
        assert exists("pid0", "pid1")
        pids = set(noted("pid0", "pid1"))
        guard = children_of(launcher.pid) - pids
        assert len(guard) == 1
        launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    assert exists("end0", "end1")


@contextlib.contextmanager
def killed_after(seconds: float, *arguments: object) -> Iterator[int]:
    with running(*arguments, start_new_session=True) as launcher:
        time.sleep(seconds)
        launcher.kill()
        launcher.wait(60)
        yield launcher.pid


def in_session(session: int) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.add(int(entry.name))
    return found


@pytest.mark.parametrize("seconds", [0.15, 0.3, 0.45, 0.6, 0.8])
def test_nothing_outlives_a_killed_launcher(seconds: float) -> None:
    path = program("subprocess.Popen(['sleep', '60']); time.sleep(60)")
    with killed_after(seconds, "-n", 8, "--preload", "--respawn", path) as launcher:
        assert wait_until(lambda: not in_session(launcher), 20), in_session(launcher)
