"""Types of the vector classes, and of all objects that move from group to group."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from malt._core_import import (
    DeviceVector,
    Group,
    SparseVectorFloat32,
    SparseVectorFloat64,
    SparseVectorInt32,
    SparseVectorInt64,
    Vector,
)
from malt._errors import ConfigError

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


def _refuse_arguments_of_users() -> None:
    """Have the public class malt.Vector name malt.vector() when a program calls it."""
    make = Vector.__init__

    def init(self: Vector, *args: Any, **options: Any) -> None:
        if "group" not in options:
            raise ConfigError(
                "malt.Vector is the class of vectors; malt.vector(w) makes one, with a small v"
            )
        make(self, *args, **options)

    init.__doc__ = make.__doc__
    setattr(Vector, "__init__", init)  # noqa: B010 - mypy forbids the assignment


_refuse_arguments_of_users()
