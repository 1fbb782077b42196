"""Which part of the data is whose."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from malt import _job

Data = TypeVar("Data")


def shard(data: Data) -> Data:
    """This rank's part of `data`: every size-th element, from the rank-th on.

    Args:
        data: an array or matrix (rows are elements; a NumPy array gives a view), a list, range or
            other sequence that can be sliced, or any iterable, which gives an iterator.
    """
    group = _job.current().group
    every = slice(group.rank, None, group.size)
    rows = getattr(data, "iloc", data)  # pandas slices rows by position there
    if hasattr(rows, "__getitem__") and (hasattr(data, "__len__") or hasattr(data, "shape")):
        part: Data = rows[every]
        return part
    if isinstance(data, Iterable):
        return islice(data, group.rank, None, group.size)  # type: ignore[return-value]
    raise TypeError(f"cannot share out {type(data).__name__}: it is no array, sequence or iterable")
