"""The traceback of an error of MALT ends at the program's own line, without a chain of causes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import malt, numpy as np
malt.init()
def train():
    {call}
train()
"""


@pytest.mark.parametrize(
    ("call", "is_chained"),
    [
        ("malt.vector(np.zeros(3, np.float16))", False),
        ("malt.load_data('none.svm')", False),  # through contextlib
        ("malt.vector(np.zeros(3)).array = None", False),  # from the core
        ("malt.allreduce(object())", False),
        ("try: 1 / 0\n    except ZeroDivisionError: malt.vector(None)", True),
    ],
)
def test_a_traceback_ends_at_the_programs_own_line(
    tmp_path: Path, call: str, is_chained: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(call=call))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "malt.ConfigError: " in done.stderr
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert all(str(path) in frame for frame in frames), done.stderr
    assert frames[-1].endswith("in train")
    assert done.stderr.count("Traceback") == 1 + is_chained


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
{imports}
def interrupt():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)
def train():
    threading.Thread(target=interrupt, daemon=True).start()
    {call}
if __name__ == "__main__":
    train()
"""


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import malt", "malt.Pool(1).run(time.sleep, 60)"),
        (  # which imports none of malt's own names
            "from malt.learn import SGDClassifier",
            "SGDClassifier(max_iter=10**9, tol=None, ranks=2).fit(np.eye(2), [0, 1])",
        ),
    ],
)
def test_the_traceback_of_ctrl_c_in_a_call_ends_at_the_programs_own_line(
    tmp_path: Path, imports: str, call: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(INTERRUPTED.format(imports=imports, call=call))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("KeyboardInterrupt\n")
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert all(str(path) in frame for frame in frames), done.stderr
    assert frames[-1].endswith("in train")


def test_the_traceback_of_ctrl_c_elsewhere_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    call = "subprocess.run(['sleep', '60'])"
    imports = "import subprocess\nfrom malt import rank"
    path.write_text(INTERRUPTED.format(imports=imports, call=call))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert "subprocess.py" in done.stderr


def test_frames_of_a_function_that_malt_calls_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("""
import malt
from malt._job.job import call_at_new_epoch
malt.init()
def change(epoch, alive): raise malt.ConfigError("called back")
malt.jobs.on_change(change)
call_at_new_epoch()
""")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert "in change" in done.stderr
    assert done.stderr.endswith("malt.ConfigError: called back\n")
