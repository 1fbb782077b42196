"""Warnings about gathers and allreduces that had no rank to wait for.

They are logged when this rank leaves the job. In most programs they are a mistake that nothing else
shows: the program runs on, and folds less than it is meant to.
"""

from __future__ import annotations

import logging
import os

from malt._errors import describe_ranks

log = logging.getLogger("malt")

_noted: list[str] = []


def note_unsent(name: str) -> None:
    """Note that this rank gathers from a vector before it scatters it; the extension calls it."""
    _noted.append(
        f"vector '{name}': gather(staleness=...) came twice before any scatter(), and waited for "
        "nobody: it waits for the updates of as many steps as this rank has scattered"
    )


def note_left(name: str, ranks: list[int], scatters: int) -> None:
    """Note that ranks left the job with fewer scatters than this one; the extension calls it."""
    _noted.append(
        f"vector '{name}': {describe_ranks(ranks)} left the job after {scatters} scatters, and "
        "gather(staleness=0) went on without: give all ranks equally many steps"
    )


def note_left_allreduce(name: str, ranks: list[int]) -> None:
    """Note that this rank called allreduce() after ranks had left; the extension calls it."""
    if "MALT_RESTARTS" in os.environ:
        return  # under --respawn and --elastic ranks come and go
    _noted.append(
        f"vector '{name}': {describe_ranks(ranks)} left the job before this rank's last "
        "allreduce(), which went on without: give all ranks equally many calls, or each "
        "malt.shard(..., even=True)"
    )


def tell() -> None:
    """Log all notes, once, when the rank leaves the job."""
    for note in _noted:
        log.warning(note)
    _noted.clear()
