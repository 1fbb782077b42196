"""Ranks that are forked from one process, which has imported what the program imports.

Each is like one that was executed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launches import run
from preloads import assert_forked, both, installed, program

pytestmark = pytest.mark.usefixtures("in_folder")

# A rank is like one that was executed

LOOKS = """
import pickle, threading
from traceback import extract_stack
class Mine: pass
def look():
    yield [__name__, __file__, sys.argv, sys.path[0], sys.orig_argv[1:], sys.flags]
    yield [sys.modules["__main__"].look is look, pickle.loads(pickle.dumps(Mine)) is Mine]
    yield [[file.name, file.mode, file.encoding, file.errors, file.line_buffering,
            file.write_through, file.newlines, type(file.buffer), file.seekable()]
           for file in (sys.stdin, sys.stdout, sys.stderr)]
    yield [(n, signal.getsignal(n)) for n in sorted(signal.valid_signals())]
    yield [signal.pthread_sigmask(signal.SIG_BLOCK, ()), sorted(os.listdir("/proc/self/fd"))[:-1]]
    yield [os.getpgrp() == os.getpid(), os.getsid(0), os.getppid() == int(os.environ["LAUNCHER"])]
    yield [open("/proc/self/cmdline").read(), threading.active_count(), len(extract_stack())]
    yield sorted((n, v) for n, v in os.environ.items() if n not in ("MALT_RENDEZVOUS",
                 "MALT_JOB_KEY", "LAUNCHER"))
    yield [sys.path, "sitecustomize" in sys.modules, os.getcwd(), os.umask(0o22)]
    import resource
    yield [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]
    yield [os.environ["PATH"] == subprocess.check_output(["sh", "-c", "echo -n $PATH"], text=True)]
os.environ["LAUNCHER"] = str(os.getppid())
def main():
    for seen in look(): print(seen)
main()
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_a_rank_looks_like_an_executed_one(as_module: bool) -> None:
    path = program(LOOKS)
    forked, executed = both(*(["-m", "program"] if as_module else [path]), "--lr", "0.1")
    assert sorted(forked.stdout.splitlines()) == sorted(executed.stdout.splitlines())
    assert len(forked.stdout.splitlines()) == 22, forked.stderr


ENDS = {
    "exit": "sys.exit(3)",
    "exit with text": "sys.exit('no')",
    "exception": "def f(): raise ValueError(1)\nf()",
    "cause": "try: 1 / 0\nexcept ZeroDivisionError as e: raise KeyError(2) from e",
    "Ctrl-C": "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "atexit": "import atexit; atexit.register(print, 'bye'); os.close(0)",
    "thread": "import threading; threading.Timer(0.1, print, [1]).start()",
    "unfinished": "sys.stdout.write('no newline'); os.write(1, b'.')",
    "hook": "sys.excepthook = lambda *e: print(e[1], e[2].tb_frame.f_lineno, e[2].tb_next); 1 / 0",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_rank_ends_as_an_executed_one(end: str) -> None:
    forked, executed = both(program("sys.stderr.write(f'{rank}\\n')\n" + ENDS[end]))
    assert forked.returncode == executed.returncode

    def lines(text: bytes) -> list[bytes]:
        varies = rb"after [\d.]+ s(; \d goes on)?|^\[\d\]|as on rank \d"
        return sorted(re.sub(varies, b"", line) for line in text.splitlines())

    assert lines(forked.stdout) == lines(executed.stdout)
    assert lines(forked.stderr) == lines(executed.stderr)


def test_a_program_with_a_mistake_in_its_syntax_says_so_on_each_rank() -> None:
    path = Path("program.py")
    path.write_text("import numpy\nif :\n")
    forked, executed = both("-v", path)[0], run("-n", 2, "--no-preload", "--keep-going", path)
    assert forked.returncode == executed.returncode == 1
    assert forked.stderr.count(b"SyntaxError") == executed.stderr.count(b"SyntaxError") == 2


def test_spawned_processes_find_the_program() -> None:
    path = program("""
import multiprocessing
def double(x): return 2 * x
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [rank]))
""")
    assert sorted(assert_forked(path).splitlines()) == [b"[0] [0]", b"[1] [2]"]


def test_ranks_draw_different_random_numbers() -> None:
    path = program("print(random.random(), numpy.random.rand())", "import numpy.random, random\n")
    drawn = [line.split()[1:] for line in assert_forked(path).splitlines()]
    assert len({number for numbers in drawn for number in numbers}) == 4


def test_each_rank_has_its_environment_and_its_recorder() -> None:
    path = program(
        "malt.init(timeout=60); v = malt.vector(numpy.ones(4)); v.scatter(); v.gather()\n"
        "print(rank, malt.rank(), os.environ['MALT_LOCAL_RANK'])\n",
        "import malt, numpy\n",
    )
    out = assert_forked(path, "--trace", "trace.json")
    assert sorted(out.splitlines()) == [b"[0] 0 0 0", b"[1] 1 1 1"]
    traced = Path("trace.json").read_text()
    assert '"tid": 0' in traced
    assert '"tid": 1' in traced


def test_what_imports_write_comes_from_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "loud", "import sys; print('out'); print('err', file=sys.stderr)")
    forked, executed = both(program("", "import numpy, loud\n"))
    assert sorted(forked.stdout.splitlines()) == [b"[0] out", b"[1] out"]
    assert sorted(forked.stdout) == sorted(executed.stdout)
    assert forked.stderr.count(b"] err") == executed.stderr.count(b"] err") == 2


def test_standard_input_goes_to_rank_0() -> None:
    path = program("print(repr(sys.stdin.read()))")
    done = subprocess.run(
        [sys.executable, "-m", "malt", "run", "-n", "2", "--preload", path],
        input=b"data",
        capture_output=True,
        timeout=100,
        check=True,
    )
    assert sorted(done.stdout.splitlines()) == [b"[0] 'data'", b"[1] ''"]


def test_a_launcher_without_standard_input_starts_all_ranks() -> None:
    program("print(rank)")
    shell = f"exec {sys.executable} -m malt run -n 2 --preload program.py <&-"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=100, check=True)
    assert sorted(done.stdout.splitlines()) == [b"[0] 0", b"[1] 1"]


# Options


def test_ranks_are_executed_when_told_so_or_when_they_are_no_more_than_the_cores() -> None:
    path = program('print("malt._launch.forking" in sys.modules)')
    cores = len(os.sched_getaffinity(0))
    for options, expected in (
        (["-n", cores], b"False"),
        (["-n", cores + 1], b"True"),
        (["-n", cores + 1, "--no-preload"], b"False"),
        (["-n", 1, "--preload"], b"False"),
    ):
        lines = run("--no-prefix", *options, path).stdout.splitlines()
        assert set(lines) == {expected}, options
