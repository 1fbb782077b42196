"""The changes of an array as bytes, and the addition of such changes to an array.

A delta is a list of parts, each of which fits a message. A part is a list of records, each for one
block of the flat array, and only for blocks that have changed:

    start (u64)   the block's first element
    length (u32)  its elements
    count (u32)   changed elements listed, or EVERY: all of the block
    count x u32   their places in the block, in increasing order; none if EVERY
    values        the changes of these elements

Places and values are each padded with zeros to a multiple of 8 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._core_import import add_changes, find_changes
from malt._errors import ConfigError, DamagedError

Array = npt.NDArray[Any]

BLOCK = 1 << 15  # elements
_HEAD = struct.Struct("<QII")
_EVERY = 0xFFFFFFFF
_PLACE = np.dtype(np.uint32)


class Change(NamedTuple):
    """The changes of one block."""

    block: slice
    places: Array | None  # None: all of the block
    values: Array


def part_bytes(array: Array) -> int:
    """Return the size of the largest part: room for two whole blocks, or for all of the array."""
    return 2 * _HEAD.size + _padded(min(2 * BLOCK, array.size) * array.itemsize) + 8


def most_parts(array: Array) -> int:
    """Return how many parts a delta of the array can have: one for each block, and one if empty."""
    return max(1, -(-array.size // BLOCK))


def difference(array: Array, copy: Array) -> list[bytes]:
    """Return array - copy as parts; there is at least one, which is empty if nothing has changed.

    Args:
        array: flat.
        copy: flat, of the same length and dtype.

    Raises:
        ConfigError: a float change is infinite or NaN.
    """
    most = part_bytes(array)
    parts, room = [b""], most
    for start in range(0, array.size, BLOCK):
        mine, last = array[start : start + BLOCK], copy[start : start + BLOCK]
        places, values = find_changes(mine, last)
        if len(places) == 0:
            continue
        record = _record(start, mine, last, places, values)
        if len(record) > room:
            parts.append(b"")
            room = most
        parts[-1] += record
        room -= len(record)
    return parts


def _record(start: int, mine: Array, last: Array, places: Array, values: Array) -> bytes:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        at = int(places[np.flatnonzero(~np.isfinite(values))[0]])
        raise ConfigError(
            f"element {start + at} (counted from 0 in the flat array) changed from {last[at]} to "
            f"{mine[at]}, and a change must be a finite number: it would spoil the sum on all "
            "ranks; set the element right, then call again"
        )
    if len(places) * (_PLACE.itemsize + mine.itemsize) >= mine.nbytes:
        every = np.zeros_like(mine)
        every[places] = values
        return _HEAD.pack(start, len(mine), _EVERY) + _pad(every)
    head = _HEAD.pack(start, len(mine), len(places))
    return head + _pad(places) + _pad(values)


def _padded(length: int) -> int:
    return -(-length // 8) * 8


def _pad(values: Array) -> bytes:
    data = values.tobytes()
    return data.ljust(_padded(len(data)), b"\0")


def changes(parts: Sequence[bytes], array: Array) -> list[Change]:
    """Return what the parts change in `array`; nothing has been changed yet.

    Raises:
        DamagedError: these are no changes of such an array.
    """
    return [change for part in parts for change in _changes_of(part, array)]


def _changes_of(part: bytes, array: Array) -> Iterator[Change]:
    at = 0

    def take(dtype: np.dtype[Any], count: int) -> Array:
        nonlocal at
        values = np.frombuffer(part, dtype, count, at)
        at += _padded(values.nbytes)
        return values

    try:
        while at < len(part):
            start, length, count = _HEAD.unpack_from(part, at)
            at += _HEAD.size
            block = slice(start, start + length)
            if not (0 < length <= BLOCK and block.stop <= array.size):
                raise ValueError(f"a block of {length} elements from {start} on")
            places = None if count == _EVERY else take(_PLACE, count)
            if places is not None and not (
                0 < count <= length and places[-1] < length and (places[1:] > places[:-1]).all()
            ):
                raise ValueError(f"places outside of a block of {length} elements, or twice there")
            yield Change(block, places, take(array.dtype, length if places is None else count))
    except (ValueError, struct.error) as error:
        raise DamagedError(
            f"a delta that arrived for an array of {array.size} elements of {array.dtype} is "
            f"damaged: {error}"
        ) from error


def add(changed: Sequence[Change], *arrays: Array) -> None:
    """Add the changes to each of the arrays. Integers wrap around."""
    with np.errstate(over="ignore", invalid="ignore"):
        for block, places, values in changed:
            for array in arrays:
                if places is None:
                    array[block] += values
                else:
                    add_changes(array[block], places, values)
