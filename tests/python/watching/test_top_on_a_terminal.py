"""`malt top` on a terminal, which is a pseudo-terminal of the test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import start_job

pytest.importorskip("rich")

FOREVER = """
malt.init(timeout=60)
w = np.zeros(100, np.float32)
v = malt.vector(w)
tell(ready=os.getpid())
while v.iteration < goal():
    v.scatter()
    v.gather(malt.AVG, staleness=0)
    malt.report(loss=0.25)
    tell(at=v.iteration)
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A terminal that a process writes to. What it wrote is in `written`."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.written = ""
        self._master = master

    def read_until(self, is_enough: Callable[[str], bool], seconds: float = 60) -> None:
        """Read until `written` is enough, or the process has closed the terminal."""
        deadline = time.monotonic() + seconds
        while not is_enough(self.written):
            assert time.monotonic() < deadline, self.written
            if select.select([self._master], [], [], 1)[0]:
                try:
                    self.written += os.read(self._master, 1 << 16).decode()
                except OSError:  # EIO: the process has ended
                    return

    @property
    def tables(self) -> list[list[str]]:
        """The lines of each table, without the codes for colours and the cursor."""
        text = _CONTROL.sub("", self.written).replace("\r", "\n")
        tables: list[list[str]] = []
        for line in filter(str.strip, text.split("\n")):
            if line.split()[0] == "rank":
                tables.append([])
            tables[-1].append(line)
        return tables


@contextlib.contextmanager
def top(process: int, columns: int = 120) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    command = [sys.executable, "-m", "malt", "top", str(process), "--interval", "0.1"]
    environ = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    started = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env={**environ, "TERM": "xterm"}
    )
    os.close(slave)
    try:
        yield Terminal(started, master)
    finally:
        started.kill()
        started.wait()
        os.close(master)


def three(text: str) -> bool:
    return text.count("staleness") >= 3


def test_table_is_renewed_in_its_place_until_the_job_ends(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, FOREVER, "--record") as job:
        job.await_told("at")
        with top(job.launcher.pid) as terminal:
            terminal.read_until(three)
            job.set_goal(5)
            job.finish()
            terminal.read_until(lambda _: False)
            assert terminal.process.wait(60) == 0
        header, *rows = terminal.tables[1]
        assert header.split()[-2:] == ["staleness", "loss"]
        assert [row.split()[0] for row in rows[:2]] == ["0", "1"]
        assert all(row.split()[-1] == "0.25" for row in rows[:2])
        assert terminal.written.count("\x1b[1A") >= 2 * 2  # up a line: over the last table
        assert "\x1b[?25h" in terminal.written  # the cursor is shown again
        assert "ended" in "".join(terminal.tables[-1])


def test_narrow_terminal_shows_whole_lines_as_far_as_they_fit(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, FOREVER, "--record") as job:
        job.await_told("at")
        with top(job.launcher.pid, columns=40) as terminal:
            terminal.read_until(lambda text: text.count("iteration") >= 3)
        for line in terminal.tables[1][:3]:
            assert len(line) <= 40
        assert [row.split()[0] for row in terminal.tables[1][1:3]] == ["0", "1"]
        job.set_goal(5)
        job.finish()


def test_ctrl_c_ends_it_and_gives_the_cursor_back(tmp_path: Path) -> None:
    with start_job(tmp_path, 2, FOREVER, "--record") as job:
        job.await_told("at")
        with top(job.launcher.pid) as terminal:
            terminal.read_until(three)
            terminal.process.send_signal(signal.SIGINT)
            terminal.read_until(lambda _: False)
            assert terminal.process.wait(60) == 0
        assert "Traceback" not in terminal.written
        assert "\x1b[?25h" in terminal.written
        job.set_goal(5)
        assert job.finish().code == 0
