"""Places of a table's rows whose keys have owners: `malt.ps.Table(partition=)`.

The compiled table places ranges of rows. So rows are numbered anew: those of an owner lie one after
the other, in the order of their keys, from the beginning of a range on. A new number is a place.
The places at the end of an owner's last range are padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._core_import import Table
from malt._errors import ConfigError
from malt._partition import Partition, check_partition

Places = npt.NDArray[np.int64]


class PlacedKeys(NamedTuple):
    """Keys in the order of their places."""

    places: Places
    order: npt.NDArray[np.intp]  # keys[order] are at places


class Placing:
    """The places of all rows.

    Attributes:
        text: for other ranks, and for checkpoints, to compare it with theirs.
        owners: the rank that owns each range of places.
        places: by row.
        room: how many places there are.
        most: places of the rank that has most of them.

    Raises:
        ConfigError: it is no partition, has another number of columns than the table has rows, or
            parts for more ranks than there are.
    """

    def __init__(self, partition: Any, rows: int, ranks: int) -> None:
        given: Partition = check_partition(partition, parts=ranks, exactly=False)
        if len(given.columns) != rows:
            raise ConfigError(
                f"partition has {len(given.columns)} columns, but the table has {rows} rows; make "
                "it of data with as many columns as the table has rows"
            )
        self._listed = -1, np.empty(0, np.int32)  # an owner and its keys
        self._parts = given.columns.astype(np.uint16)  # which NumPy sorts in linear time
        # By the parts, so that the places are the same whatever the number of ranks.
        shift = Table.range_shift(rows, given.parts)
        counts = np.bincount(self._parts, minlength=given.parts)
        ranges = -(-counts >> shift)
        ends = np.cumsum(ranges) << shift
        self.owners = np.repeat(np.arange(given.parts), ranges)
        self.room = int(ends[-1])
        self.most = int(ranges.max()) << shift
        self.places: Places = np.empty(rows, np.int64)
        order = np.argsort(self._parts, kind="stable")
        self._shift = shift
        self._starts = ends - (ranges << shift)  # by part
        skipped = self._starts - (np.cumsum(counts) - counts)
        self.places[order] = np.arange(rows) + np.repeat(skipped, counts)
        self.text = f"{given.checksum:08x}"

    def keys_at(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Return the keys of places that are within one range; -1 for padding."""
        owner = self.owners[first >> self._shift]
        found = np.full(end - first, -1)
        skipped = first - self._starts[owner]
        keys = self._keys_of(owner)[skipped : skipped + end - first]
        found[: len(keys)] = keys
        return found

    def _keys_of(self, owner: int) -> npt.NDArray[np.int32]:
        """Return the keys of an owner, which are kept: its ranges are saved one after the other."""
        listed, keys = self._listed
        if listed != owner:
            keys = np.flatnonzero(self._parts == owner).astype(np.int32)
            self._listed = owner, keys
        return keys

    def of(self, keys: npt.NDArray[np.int64] | None, first: int, count: int) -> PlacedKeys:
        """Return the places of keys; None: of so many rows from `first` on.

        Raises:
            ConfigError: the keys do not grow, or are no rows. The table would see it in places.
        """
        listed = np.arange(first, first + count) if keys is None else keys
        rows = len(self.places)
        if count and (listed[0] < 0 or listed[-1] >= rows or (np.diff(listed) <= 0).any()):
            raise ConfigError(
                f"keys grow, and are 0 to {rows - 1}; these begin with {listed[:8].tolist()} and "
                f"end with {listed[-1]} (numpy.unique sorts them)"
            )
        order = np.argsort(self._parts[listed], kind="stable")
        return PlacedKeys(self.places[listed[order]], order)
