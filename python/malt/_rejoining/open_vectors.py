"""The vectors that move with this rank from group to group, and their kept rounds."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import NamedTuple, cast

from malt._core_import import Group
from malt._rejoining import handover
from malt._vector_types import AnyVector, Movable


class _KeptRound(NamedTuple):
    call: int  # the group's superseded_by at that time
    iteration: int
    values: handover.Copy  # as the round's gather left them


@dataclass
class _OpenVector:
    vector: weakref.ref[Movable]
    description: str
    has_shared_values: bool  # False: each rank has values of its own, or exchanges them itself
    is_of_loop: bool  # a rejoining rank that has used it is where the others are
    round: _KeptRound | None = None  # the last one that has ended while the group was superseded

    def round_in(self, group: Group | None) -> _KeptRound | None:
        """Return the kept round, or None if there is none or later rounds may have ended.

        Later rounds may have ended if another rank of the host restored the group since.
        """
        if group is None or self.round is None:
            return None
        return self.round if self.round.call == group.superseded_by else None


class OpenVectors:
    """This rank's open vectors, in the order in which they were made."""

    def __init__(self) -> None:
        self._entries: list[_OpenVector] = []

    def add(
        self, vector: Movable, description: str, has_shared_values: bool, is_of_loop: bool
    ) -> None:
        entry = _OpenVector(weakref.ref(vector), description, has_shared_values, is_of_loop)
        self._entries.append(entry)

    def keep_round(self, group: Group, name: str) -> None:
        """Keep the values that a gather or an allreduce of vector `name` left.

        The group is superseded. A rejoining rank begins its round with these values. The survivors'
        present values would not do: they move to the next group at the beginning of a round, when
        they have made its step already.
        """
        for vector, entry in self._with_shared_values():
            if vector.name == name:
                values = handover.copy_of(vector)
                entry.round = _KeptRound(group.superseded_by, vector.iteration, values)

    def forget_rounds(self) -> None:
        """Free the memory of the kept values."""
        for entry in self._entries:
            entry.round = None

    def all(self) -> list[Movable]:
        return [vector for vector, _ in self._open()]

    def described(self) -> list[tuple[Movable, str]]:
        return [(vector, entry.description) for vector, entry in self._open()]

    def kept_iterations(self, group: Group | None) -> list[int]:
        """Return the iteration of each round that has been kept in `group`."""
        rounds = [entry.round_in(group) for _, entry in self._open()]
        return [kept.iteration for kept in rounds if kept is not None]

    def shared(self, group: Group | None) -> list[tuple[AnyVector, handover.Copy | None]]:
        """Return each vector with shared values, and the values of the round kept in `group`."""
        return [
            (vector, kept.values if (kept := entry.round_in(group)) else None)
            for vector, entry in self._with_shared_values()
        ]

    def are_used(self) -> bool:
        """Return whether this rank has used a vector of its loop."""
        return any(vector.is_used for vector, entry in self._open() if entry.is_of_loop)

    def _with_shared_values(self) -> list[tuple[AnyVector, _OpenVector]]:
        return [
            (cast(AnyVector, vector), entry)
            for vector, entry in self._open()
            if entry.has_shared_values
        ]

    def _open(self) -> list[tuple[Movable, _OpenVector]]:
        opened = [
            (vector, entry)
            for entry in self._entries
            if (vector := entry.vector()) and not vector.is_closed
        ]
        self._entries = [entry for _, entry in opened]
        return opened
