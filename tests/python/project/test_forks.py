"""A program that the tests start as a fork does what it does when it is executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest

PROGRAMS = {
    "all is well": "print('well')",
    "an exit code": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    "an exit with words": "import sys; sys.exit('no such thing')",
    "an exception": "def f():\n    raise ValueError('wrong')\nprint('before', flush=True)\nf()",
    "an error of malt": "import malt\nmalt.init(timeout=-1)",
    "Ctrl-C": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
    "a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "a syntax error": "print('never')\n1 +",
    "its end": """
import atexit, threading, time
class Last:
    def __del__(self):
        print("deleted")
last = Last()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print("main")
""",
    "its place": """
import os, sys
print(__name__, __file__, sys.argv, os.getcwd(), sys.path[0], os.environ["GIVEN"])
print(sys.modules["__main__"].__dict__ is globals(), sys.stdout.encoding, sys.stdout.line_buffering)
""",
    "its signals": """
import signal
print([(n, signal.getsignal(n)) for n in signal.valid_signals()], signal.pthread_sigmask(0, []))
""",
    "its descriptors": "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:3])",
    "its warnings": "import warnings; print(warnings.filters); warnings.warn('seen')",
}


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fork_does_what_the_program_does(tmp_path: Path, name: str, unbuffered: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAMS[name])
    arguments = ["program.py", "a", "-b"]
    environ = os.environ | {"GIVEN": "x", "PYTHONUNBUFFERED": unbuffered}
    executed = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    with (tmp_path / "output").open("w+b") as output:
        fork = forks.start(arguments, tmp_path, environ, output, has_torch=False)
        assert fork.wait(100) == executed.returncode
        output.seek(0)
        assert output.read().decode() == executed.stdout.decode()


def test_forks_draw_other_random_numbers(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import random, numpy\nprint(random.random(), numpy.random.random())"
    )
    drawn = set()
    for _ in range(2):
        with (tmp_path / "output").open("w+b") as output:
            fork = forks.start(["program.py"], tmp_path, os.environ, output, has_torch=False)
            assert fork.wait(100) == 0
            output.seek(0)
            drawn |= set(output.read().split())
    assert len(drawn) == 4
