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
