"""Warnings about gathers and allreduces that had no rank to wait for, or were never called.

They are logged when this rank leaves the job. In most programs they are a mistake that nothing else
shows: the program runs on, and folds less than it is meant to.
"""

from __future__ import annotations

import logging
import sys
import weakref
from typing import NamedTuple

import numpy as np

from malt._arguments import variable
from malt._core_import import Uses, Vector
from malt._errors import describe_ranks
from malt._job.assigning import Arrays
from malt._job.rebinding import module_of, outer_frame
from malt._job.vector_types import AnyVector

log = logging.getLogger("malt")

_ALWAYS_SEEN = 64  # of vectors this short, note_nan() tells: kLook in bindings/nan_watch.hpp
_ESTIMATORS = ("malt._linear.", "malt._topics.", "malt._factorization.")
_MOST_MADE = 1000  # vectors about which nothing is known to be wrong


class _Made(NamedTuple):
    vector: weakref.ref[AnyVector]
    name: str
    uses: Uses  # when the vector is no more: the last ones

    @property
    def is_exchanged(self) -> bool:
        return self.uses.scatters + self.uses.gathers + self.uses.allreduces > 0


_noted: list[str] = []
_made: list[_Made] = []  # vectors that rank 0 is expected to exchange
_made_count = 0  # with those that are no longer in _made because they were exchanged
_excused: set[str] = set()  # the names of vectors whose makers tell of ranks that leave
_alike: set[str] = set()  # the names of those exchanged only to start with the same values
_unsent: set[str] = set()  # the names of those of which note_unsent() has told
_is_of_file = False  # vectors may have been made for a file alone


def note_unsent(name: str) -> None:
    """Note that this rank gathers from a vector before it scatters it; the core calls it."""
    _unsent.add(name)
    _noted.append(
        f"vector '{name}': gather(staleness=...) was called twice before any scatter(), and "
        "waited for no rank: it waits for the updates of as many steps as this rank has scattered"
    )


def note_nan(rank: int, name: str, call: str) -> None:
    """Warn that this rank sends NaN of its own; the core calls it, once for each vector."""
    log.warning(
        "malt: rank %d has NaN in vector '%s' at %s(), and averages carry it to all ranks: look "
        "for the step that made it. With malt.vector(..., reject_nonfinite=True) the other ranks' "
        "gather() refuses such updates; allreduce() does not",
        *(rank, name, call),
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
    if name in _excused or variable("MALT_RESTARTS"):
        return  # under --respawn and --elastic ranks come and go
    _noted.append(
        f"vector '{name}': {describe_ranks(ranks)} left the job before this rank's last "
        "allreduce(), so its result has nothing from there: give all ranks equally many calls, or "
        "each malt.shard(..., even=True)"
    )


def note_made(vector: AnyVector) -> None:
    """Note a vector that rank 0 is expected to exchange; an estimator may need none of its own."""
    global _made_count
    if _is_of_estimator():
        return
    _made_count += 1
    _made.append(_Made(weakref.ref(vector), vector.name, vector.uses))
    if len(_made) > _MOST_MADE:
        _made[:] = [made for made in _made if not made.uses.found + made.uses.allreduces]


def _is_of_estimator() -> bool:
    caller = outer_frame("malt._job")
    return caller is not None and module_of(caller).startswith(_ESTIMATORS)


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
    global _is_of_file
    _is_of_file = True


def tell() -> None:
    """Log all notes, once, when the rank leaves the job."""
    if not _is_failing():
        _noted.extend(_notes_of_made())
    for note in _noted:
        log.warning(note)
    forget()


def _notes_of_made() -> list[str]:
    """Return what rank 0 has to say about the use of its vectors."""
    notes = []
    for made in _made:
        if (vector := made.vector()) is not None:
            _ = vector.uses  # brings _Made.uses up to date
            if made.is_exchanged and isinstance(vector, Vector):
                notes += _of_nan(vector)
    unexchanged = [made for made in _made if not made.is_exchanged or made.name in _alike]
    if _made_count == len(unexchanged) > 0:
        if _is_of_file:
            return []
        note = (
            f"rank 0 made {_made_count} vector{'s' * (_made_count > 1)} and exchanged none, so it "
            "worked by itself: call scatter() and gather(), or allreduce(), in the loop (of "
            "malt.torch and malt.wrap: step() or partial_fit(), perhaps with a smaller every=)"
        )
        return [note]
    notes += [
        f"vector '{made.name}' was freed before it was exchanged: keep it (v = malt.vector(w)), "
        "and call scatter() and gather(), or allreduce(), in the loop"
        for made in unexchanged
        if made.vector() is None and not made.is_exchanged and not _is_of_file
    ]
    return notes + [note for made in _made if (note := _half_used(made))]


def _of_nan(vector: Vector) -> list[str]:
    """Return what there is to say about NaN in a few elements; note_nan() tells of NaN in all."""
    count = len(vector)
    if vector.dtype.kind != "f" or count <= _ALWAYS_SEEN:
        return []
    array = vector.array
    parts = array if isinstance(array, Arrays) else (array,)
    found = sum(int(np.count_nonzero(np.isnan(part))) for part in parts)
    note = (
        f"vector '{vector.name}': {found} of its {count} elements are NaN on rank 0, and averages "
        "carry NaN from one rank to all: with malt.vector(..., reject_nonfinite=True) gather() "
        "refuses such updates, and v.stats().rejected_from names their senders"
    )
    return [note] if 0 < found < count else []


def _half_used(made: _Made) -> str:
    """Return what there is to say about a vector that was scattered or gathered only."""
    uses = made.uses
    if made.name in _unsent | _excused:
        return ""
    if uses.gathers > 1 and uses.scatters + uses.found == 0:
        done = f"rank 0 gathered it {uses.gathers} times, and no rank scattered it"
    elif uses.scatters > 1 and uses.gathers + uses.folded == 0:
        done = f"rank 0 scattered it {uses.scatters} times, and no rank gathered it"
    else:
        return ""
    return (
        f"vector '{made.name}': {done}, so nothing was folded: each round is scatter(), then "
        "gather()"
    )


def forget() -> None:
    """Drop all notes: an error explains them."""
    global _made_count, _is_of_file
    for notes in (_noted, _made, _excused, _alike, _unsent):
        notes.clear()
    _made_count, _is_of_file = 0, False


def _is_failing() -> bool:
    """Return whether an error ends the program; it then explains why nothing was exchanged."""
    return sys.exc_info()[0] is not None or hasattr(sys, "last_type")
