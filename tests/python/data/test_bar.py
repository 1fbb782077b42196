"""malt.shard(bar=True): rank 0 shows how far all ranks have come."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from jobs import run_job

import malt

LOOP = """
malt.init(timeout=60)
parts = malt.shard(np.arange(50), chunk=1, bar=True)
for pass_ in range(2):
    for number, part in enumerate(parts):
        if pass_ == 1 and rank == DIES and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)
"""


def lines(output: str) -> list[tuple[int, int, int, list[int]]]:
    """The lines of rank 0: pass, chunks finished, chunks in all, turns by rank."""
    found = re.findall(
        r"pass (\d+): (\d+) of (\d+) chunks in [\d.]+ s; turns by rank: (.*)", output
    )
    return [
        (int(one), int(done), int(of), [int(count) for count in turns.split()])
        for one, done, of, turns in found
    ]


def test_the_line_at_the_end_of_a_pass_counts_all_ranks_chunks(tmp_path: Path) -> None:
    first, second = lines(run_job(tmp_path, 3, "DIES = None\n" + LOOP).output)
    assert first[:3] == (1, 50, 50)
    assert sum(first[3]) >= 50  # others may be in the next pass already
    assert second[:3] == (2, 50, 50)
    assert sum(second[3]) == 100
    assert set(second[3]) <= {32, 33, 34}


def test_a_pass_that_a_rank_does_not_survive_is_shown_to_its_end(tmp_path: Path) -> None:
    body = "DIES = 2\n" + LOOP
    result = run_job(tmp_path, 3, body, "--keep-going", code=128 + signal.SIGKILL)
    _, second = lines(result.output)
    assert second[:3] == (2, 50, 50)
    assert second[3][2] <= 17 + 3
    assert sum(second[3]) >= 100 - 1  # the dead rank's last turn may not have been told


PROGRAM = """
import time, numpy as np, malt
malt.init()
for part in malt.shard(np.arange(30), chunk=1, bar=True):
    time.sleep(0.02)
for part in malt.shard(np.arange(30), chunk=1, bar=True):
    break
"""


def on_terminal(program: str, path: str = "") -> tuple[int, str]:
    """Run a program whose standard error is a terminal; its exit code and what it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    environ = os.environ | ({"PYTHONPATH": path} if path else {})
    with subprocess.Popen([sys.executable, "-c", program], stderr=theirs, env=environ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 1 << 16)
            except OSError:  # nobody has the other end open any more
                break
    os.close(ours)
    return process.returncode, shown.decode()


def test_on_a_terminal_it_is_a_bar() -> None:
    code, shown = on_terminal(PROGRAM)
    assert code == 0, shown
    assert "pass 1: 100%" in shown
    assert "30/30" in shown
    assert "turns by rank: 30" in shown
    assert "\r" in shown


def test_without_tqdm_a_terminal_gets_an_error_that_says_how_to_get_it(tmp_path: Path) -> None:
    # What import finds instead of tqdm is nothing.
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['tqdm'] = None\n")
    code, shown = on_terminal(PROGRAM, str(tmp_path))
    assert code == 1
    assert "ConfigError" in shown
    assert 'pip install "malt-sgd[watch]"' in shown


def test_a_bar_needs_chunks(alone: None) -> None:
    with pytest.raises(malt.ConfigError, match="bar= need chunk="):
        malt.shard([1, 2], bar=True)  # type: ignore[call-overload]
