"""`malt run` on programs whose ranks note their process ids, and a look at what they leave."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
