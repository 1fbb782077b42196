"""Gathers and allreduces that had nobody to wait for, told when this rank leaves the job.

A mistake in most programs, and seen by nothing else: they run on, and fold less than they mean to.
"""

from __future__ import annotations

import logging
import os

from malt._errors import describe_ranks

log = logging.getLogger("malt")

_noted: list[str] = []


def note_unsent(name: str) -> None:
    """This rank gathers from a vector that it has not scattered yet; for the extension."""
    _noted.append(
        f"vector '{name}': gather(staleness=...) came twice before any scatter(), and waited for "
        "nobody: it waits for the updates of as many steps as this rank has scattered"
    )


def note_left(name: str, ranks: list[int], scatters: int) -> None:
    """Ranks left the job with fewer scatters than this rank has made; for the extension."""
    _noted.append(
        f"vector '{name}': {describe_ranks(ranks)} left the job after {scatters} scatters, and "
        "gather(staleness=0) went on without: give all ranks equally many steps"
    )


def note_left_allreduce(name: str, ranks: list[int]) -> None:
    """Ranks left the job, and this rank has called allreduce() since; for the extension."""
    if "MALT_RESTARTS" in os.environ:
        return  # under --respawn and --elastic ranks come and go
    _noted.append(
        f"vector '{name}': {describe_ranks(ranks)} left the job before this rank's last "
        "allreduce(), which went on without: give all ranks equally many calls, or each "
        "malt.shard(..., even=True)"
    )


def tell() -> None:
    """Once, when the rank leaves the job."""
    for note in _noted:
        log.warning(note)
    _noted.clear()
