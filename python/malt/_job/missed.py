"""Warnings about gathers and allreduces that had no rank to wait for, or were never called.

They are logged when this rank leaves the job. In most programs they are a mistake that nothing else
shows: the program runs on, and folds less than it is meant to.
"""

from __future__ import annotations

import logging
import os
import sys
import weakref

from malt._errors import describe_ranks
from malt._job.vector_types import AnyVector

log = logging.getLogger("malt")

_noted: list[str] = []
_made: weakref.WeakSet[AnyVector] = weakref.WeakSet()  # that rank 0 is expected to exchange
_made_count = 0  # with those that exist no longer: nobody knows whether they were used, but for ...
_excused: set[str] = set()  # the names of vectors whose makers tell of ranks that leave
_alike: set[str] = set()  # ... the names of those exchanged only to start with the same values


def note_unsent(name: str) -> None:
    """Note that this rank gathers from a vector before it scatters it; the core calls it."""
    _noted.append(
        f"vector '{name}': gather(staleness=...) was called twice before any scatter(), and "
        "waited for no rank: it waits for the updates of as many steps as this rank has scattered"
    )


def note_left(name: str, ranks: list[int], scatters: int) -> None:
    """Note that ranks left the job with fewer scatters than this one; the core calls it."""
    if name in _excused:
        return
    _noted.append(
        f"vector '{name}': {describe_ranks(ranks)} left the job after {scatters} scatters, so "
        "later gather(staleness=0) calls folded nothing from there: give all ranks equally many "
        "steps"
    )


def note_left_allreduce(name: str, ranks: list[int]) -> None:
    """Note that this rank called allreduce() after ranks had left; the core calls it."""
    if name in _excused or "MALT_RESTARTS" in os.environ:
        return  # under --respawn and --elastic ranks come and go
    _noted.append(
        f"vector '{name}': {describe_ranks(ranks)} left the job before this rank's last "
        "allreduce(), so its result has nothing from there: give all ranks equally many calls, or "
        "each malt.shard(..., even=True)"
    )


def note_made(vector: AnyVector) -> None:
    """Note a vector that rank 0 is expected to exchange."""
    global _made_count
    _made.add(vector)
    _made_count += 1


def note_alike(vector: AnyVector) -> None:
    """Note that the ranks have exchanged this vector only to start with the same values."""
    _alike.add(vector.name)


def note_exchange(vector: AnyVector) -> None:
    """Note an exchange of a vector that was given to note_alike()."""
    _alike.discard(vector.name)


def excuse_departures(vector: AnyVector) -> None:
    """Note nothing about ranks that leave before exchanges of this vector."""
    _excused.add(vector.name)


def excuse_unexchanged() -> None:
    """Note that vectors may have been made for a file alone."""
    _made.clear()
    _alike.clear()


def tell() -> None:
    """Log all notes, once, when the rank leaves the job."""
    unexchanged = _alike | {vector.name for vector in _made if not vector.is_used}
    if _made_count == len(unexchanged) > 0 and not _is_failing():
        _noted.append(
            f"rank 0 made {_made_count} vector{'s' * (_made_count > 1)} and exchanged none, so it "
            "worked by itself: call scatter() and gather(), or allreduce(), in the loop (of "
            "malt.torch and malt.wrap: step() or partial_fit(), perhaps with a smaller every=)"
        )
    for note in _noted:
        log.warning(note)
    forget()


def forget() -> None:
    """Drop all notes: an error explains them."""
    global _made_count
    _noted.clear()
    _excused.clear()
    excuse_unexchanged()
    _made_count = 0


def _is_failing() -> bool:
    """Return whether an error ends the program; it then explains why nothing was exchanged."""
    return sys.exc_info()[0] is not None or hasattr(sys, "last_type")
