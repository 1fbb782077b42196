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
from malt._core_import import Graph, Group, Uses, Vector
from malt._errors import describe_ranks
from malt._mistakes.assigning import Arrays
from malt._mistakes.rebinding import module_of, outer_frame
from malt._vector_types import AnyVector

log = logging.getLogger("malt")

_ALWAYS_SEEN = 64  # of vectors this short, note_nan() tells: kLook in bindings/nan_watch.hpp
_ESTIMATORS = ("malt._linear.", "malt._topics.", "malt._factorization.")
_LAST_LOOK = 2**40  # the frontier is beyond it when no other rank is alive
_MOST_ROUNDS = 256  # of a graph, that are looked at
_MOST_MADE = 1000  # vectors about which nothing is known to be wrong


class _Made(NamedTuple):
    vector: weakref.ref[AnyVector]
    name: str
    uses: Uses  # when the vector is no more: the last ones
    is_programs: bool  # the program has made it, and not a part of MALT

    @property
    def is_exchanged(self) -> bool:
        return self.uses.scatters + self.uses.gathers + self.uses.allreduces > 0


class _Screen:
    """Tells, once for each sender, that a vector refuses its updates as not finite."""

    def __init__(self, vector: AnyVector, graph: Graph, group: Group) -> None:
        self._vector = weakref.ref(vector)
        self._graph = graph
        self._rank, self._size = group.rank, group.size
        self._told: set[int] = set()
        vector.on_frontier(1, self._look_after)

    def look(self) -> None:
        """Log a warning of each new sender."""
        if (vector := self._vector()) is None:
            return
        for sender in vector.stats().rejected_from.keys() - self._told:
            self._told.add(sender)
            if self._is_lowest_receiver_of(sender):
                log.warning(
                    "malt: vector '%s': updates of rank %d are rejected as not finite, so nothing "
                    "of what it learns arrives: look for its step that made such values. "
                    "v.stats().rejected_from counts these updates",
                    *(vector.name, sender),
                )

    def _look_after(self, iteration: int) -> None:
        self.look()
        vector = self._vector()
        if vector is not None and iteration < _LAST_LOOK:
            vector.on_frontier(iteration + max(1, iteration // 8), self._look_after)

    def _is_lowest_receiver_of(self, sender: int) -> bool:
        """Return whether it is this rank that tells; also if the update came over another graph."""
        rounds = range(min(self._graph.period(self._size), _MOST_ROUNDS))
        receivers = {to for each in rounds for to in self._graph.out(sender, self._size, each)}
        return self._rank not in receivers or self._rank == min(receivers)


_noted: list[str] = []
_made: list[_Made] = []  # vectors that this rank is expected to exchange
_made_count = 0  # with those that are no longer in _made because they were exchanged
_excused: set[str] = set()  # the names of vectors whose makers tell of ranks that leave
_alike: set[str] = set()  # the names of those exchanged only to start with the same values
_unsent: set[str] = set()  # the names of those of which note_unsent() has told
_screens: weakref.WeakSet[_Screen] = weakref.WeakSet()
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
        "allreduce(), so its result has nothing from there. Unless the job was being stopped, give "
        "all ranks equally many calls, or each malt.shard(..., even=True)"
    )


def note_made(vector: AnyVector) -> None:
    """Note a vector that this rank is expected to exchange; an estimator may need none of its own.

    The vector is one of a job of several ranks.
    """
    global _made_count
    caller = outer_frame("malt._mistakes", "malt._job", "malt._vectors")
    maker = module_of(caller) if caller is not None else ""
    if maker.startswith(_ESTIMATORS):
        return
    _made_count += 1
    is_programs = not f"{maker}.".startswith("malt.")
    _made.append(_Made(weakref.ref(vector), vector.name, vector.uses, is_programs))
    if len(_made) > _MOST_MADE:
        _made[:] = [made for made in _made if not made.uses.found + made.uses.allreduces]


def note_screen(vector: AnyVector, graph: Graph, group: Group) -> None:
    """Watch a new vector of several ranks that refuses updates which are not finite."""
    _screens.add(_Screen(vector, graph, group))


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


def tell(group: Group) -> None:
    """Log all notes, once, when the rank leaves the job."""
    if not _is_failing():
        if group.rank == 0:
            _noted.extend(_notes_of_made())
        _noted.extend(note for made in _made if (note := _of_one_rank(made, group)))
        for screen in list(_screens):
            screen.look()
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
            "malt.torch and malt.learn.wrap: step() or partial_fit(), perhaps with a smaller "
            "every=)"
        )
        return [note]
    if not _is_of_file:
        notes += [note for made in unexchanged if (note := _unused(made))]
    return notes + [note for made in _made if (note := _half_used(made))]


def _unused(made: _Made) -> str:
    """Return what there is to say about a vector that rank 0 did not exchange, but others."""
    if made.is_exchanged or made.name in _excused:
        return ""
    if made.vector() is None:
        return (
            f"vector '{made.name}' was freed before it was exchanged: keep it (v = "
            "malt.vector(w)), and call scatter() and gather(), or allreduce(), in the loop"
        )
    if made.is_programs:
        return (
            f"vector '{made.name}' was never exchanged on rank 0: call its scatter() and gather(), "
            "or allreduce(), in the loop, or do not make it"
        )
    return ""


def _of_one_rank(made: _Made, group: Group) -> str:
    """Return what there is to say about a vector that other ranks exchange and this one does not.

    Or the other way round. Of the ranks that have not exchanged it, the lowest tells, unless it
    left before an update came. In the end the rank that leaves last knows.
    """
    vector = made.vector()
    if vector is None or not made.is_programs or made.name in _excused or variable("MALT_RESTARTS"):
        return ""
    uses = vector.uses  # made.uses, brought up to date
    others = [rank for rank in range(group.size) if rank != group.rank]
    came = [rank for rank in others if vector.clock_of(rank) > 0]
    all_ranks = "all ranks make the same calls, and none of them under `if malt.rank() == 0:`"
    if not made.is_exchanged and came and group.rank > 0:
        if any(rank not in came for rank in others if rank < group.rank):
            return ""
        return (
            f"vector '{made.name}': {describe_ranks(came)} scattered it, and rank {group.rank} "
            f"called neither its scatter() nor its gather(): {all_ranks}"
        )
    alone = min(uses.scatters, uses.gathers) > 1 and uses.allreduces == 0
    if alone and not came and uses.found + uses.folded == 0 and group.alive() == (group.rank,):
        return (
            f"vector '{made.name}': rank {group.rank} scattered it {uses.scatters} times and "
            f"gathered it {uses.gathers} times, and {describe_ranks(others)} ended without a "
            f"scatter or a gather of it: {all_ranks}"
        )
    return ""


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
    for notes in (_noted, _made, _excused, _alike, _unsent, _screens):
        notes.clear()
    _made_count, _is_of_file = 0, False


def _is_failing() -> bool:
    """Return whether an error ends the program; it then explains why nothing was exchanged."""
    return sys.exc_info()[0] is not None or hasattr(sys, "last_type")
