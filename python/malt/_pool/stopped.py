"""Finds processes that have been stopped (SIGSTOP) for longer than a job's silence.

A process that is not stopped may work for any time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from malt._job.settings import Settings


class Stopped:
    """Keeps since when each has been stopped.

    Attributes:
        silence: MALT_SILENCE, in seconds.
    """

    def __init__(self) -> None:
        self.silence = Settings.read(None, None, None, None).silence
        self._since: dict[int, float] = {}

    def beyond_silence(self, processes: Iterable[int]) -> list[int]:
        """Return those that have been stopped for so long. To be asked a few times a silence."""
        now = time.monotonic()
        stopped = [process for process in processes if _state_of(process) == "T"]
        self._since = {process: self._since.get(process, now) for process in stopped}
        return [process for process in stopped if now - self._since[process] > self.silence]


def _state_of(process: int) -> str:
    """Return the state of a process as proc(5) has it: T is stopped by a signal."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(") ")[2][:1]
    return ""
