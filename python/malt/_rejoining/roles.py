"""The roles of a new group's ranks: which of them rejoin, and which may send them the values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from malt._errors import DamagedError

_STATE = struct.Struct("=?IIIIQ")


class State(NamedTuple):
    """The state that a rank tells the others as it enters a group."""

    is_rejoining: bool
    restarts: int  # how often it has been started again
    vectors: int  # how many it has
    epoch: int  # of the old group
    kept: int  # how many vectors it has kept a round of
    rounds: int  # the sum of the iterations of these rounds

    def pack(self) -> bytes:
        return _STATE.pack(*self)


class Roles(NamedTuple):
    """All ranks of the group assign the same roles."""

    rejoining: list[int]
    senders: list[int]  # the ranks that may send the rejoining ones the values, the best first
    vectors: int  # how many the survivors have
    epoch: int  # the first one of the new group
    restarts: dict[int, int]  # by rank: how often it has been started again


def assign(states: Sequence[bytes]) -> Roles:
    """Assign the roles by each rank's packed state; that of a rank that is not there is empty."""
    here = {rank: _state_of(rank, state) for rank, state in enumerate(states) if state}
    survivors = {rank: state for rank, state in here.items() if not state.is_rejoining}
    # A rejoining rank gets the iteration of the rank that is furthest behind.
    order = {rank: (-state.kept, state.rounds, rank) for rank, state in survivors.items()}
    return Roles(
        rejoining=[rank for rank, state in here.items() if state.is_rejoining],
        senders=sorted(survivors, key=order.__getitem__),
        vectors=max((state.vectors for state in survivors.values()), default=0),
        epoch=1 + max(state.epoch for state in here.values()),
        restarts={rank: state.restarts for rank, state in here.items()},
    )


def _state_of(rank: int, state: bytes) -> State:
    if len(state) != _STATE.size:
        raise DamagedError(f"the state of rank {rank} that arrived is damaged")
    return State(*_STATE.unpack(state))
