"""Types of the vector classes, and of all objects that move from group to group."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from malt._core_import import (
    DeviceVector,
    Group,
    SparseVectorFloat32,
    SparseVectorFloat64,
    SparseVectorInt32,
    SparseVectorInt64,
    Vector,
)

SparseVector: TypeAlias = (
    SparseVectorFloat32 | SparseVectorFloat64 | SparseVectorInt32 | SparseVectorInt64
)
AnyVector: TypeAlias = Vector | DeviceVector | SparseVector
SPARSE_VECTORS = (
    SparseVectorFloat32,
    SparseVectorFloat64,
    SparseVectorInt32,
    SparseVectorInt64,
)


class Movable(Protocol):
    """An object that all ranks make, and that moves with its rank from group to group."""

    @property
    def name(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_used(self) -> bool: ...
    @property
    def iteration(self) -> int: ...  # how often this rank has sent
    def clock_of(self, rank: int, /) -> int: ...  # the same of `rank`, as far as it arrived here
    def regroup(self, group: Group) -> None: ...
