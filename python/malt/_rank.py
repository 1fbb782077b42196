"""A rank, as its launcher sees it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, field

from malt import _guard
from malt._output import Stream


@dataclass
class Rank:
    """One process of the job, its output, and what it may leave running."""

    rank: int
    local_rank: int  # its number among this host's
    process: subprocess.Popen[bytes]
    started: float
    has_group: bool
    streams: list[Stream]
    ended: float | None = None
    leftovers: list[tuple[float, int]] = field(default_factory=list)  # what to send them, when

    def signal(self, number: int) -> None:
        """To its whole process group, where it has one."""
        if self.has_group:
            _guard.kill_group(self.process.pid, number)
        elif self.ended is None:
            os.kill(self.process.pid, number)


def describe_end(code: int) -> str:
    """What a process died of, from subprocess' return code."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


def exit_code_of(code: int) -> int:
    """What a shell has for subprocess' return code."""
    return code if code >= 0 else 128 - code
