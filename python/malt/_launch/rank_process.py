"""A rank, as its launcher sees it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field

from malt._launch import orphans
from malt._launch.nursery import Forked
from malt._launch.output import Stream


@dataclass
class Rank:
    """One process of the job, its output, and the processes that it may leave running."""

    rank: int
    local_rank: int  # its number among the ranks of this host
    process: subprocess.Popen[bytes] | Forked
    started: float
    has_group: bool
    streams: list[Stream]
    ended: float | None = None
    stopped: float | None = None  # since when it is stopped, as by SIGSTOP (`time.monotonic`)
    leftovers: list[tuple[float, int]] = field(default_factory=list)  # signals to send them, when

    def signal(self, number: int) -> None:
        """Send a signal to the rank's process group if it has one, else to its process."""
        if self.has_group:
            orphans.kill_group(self.process.pid, number)
        elif self.ended is None:
            os.kill(self.process.pid, number)
