"""`malt.data.partition`: which rank gets which rows of the data, and owns which columns.

The kernels are in `src/learn/partition.cpp`. `malt.ps.Table`, `malt.sparse_vector` and
`malt.learn.MatrixFactorization` take a Partition as `partition=`.

May import: `malt._arguments`, `malt._core_import`, `malt._errors`, `malt._npy`.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt import _core_import as core
from malt._arguments import whole
from malt._errors import ConfigError
from malt._npy import Npz

Placed = npt.NDArray[np.int32]

_MOST_COLUMNS = 2**31 - 1
_MOST_PARTS = 1024  # learn::PartitionOptions::kMostParts
_LANES = 8  # the kernel counts for so many parts at a time
_BALANCES = ("rows", "values")


class Traffic(NamedTuple):
    """How many columns travel when each part uses each of its columns once.

    Attributes:
        received: (parts,) int64: how many columns each part gets from others.
        sent: (parts,) int64: how many each part, as their owner, sends to others.
        random: how many travel, on the average, if rows and owners are drawn at random.
    """

    received: npt.NDArray[np.int64]
    sent: npt.NDArray[np.int64]
    random: float

    @property
    def total(self) -> int:
        """How many columns travel."""
        return int(self.received.sum())


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Which part, from 0 to parts - 1, has each row and owns each column of a matrix.

    Part k is for rank k. Made by `malt.data.partition`, or by `from_rows` for rows that something
    else has placed. It can be pickled, and saved with `save`. Its arrays are copies, and read-only.

    Args:
        rows: (rows,) the part of each row.
        columns: (columns,) the part that owns each column.
        shared: (columns,) whether rows of two parts or more have the column.
        parts: how many parts there are.

    Raises:
        ConfigError: an array is not one-dimensional, a part is not one of `parts`, or `shared` has
            another length than `columns`.
    """

    rows: Placed
    columns: Placed
    shared: npt.NDArray[np.bool_]
    parts: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", whole("parts", self.parts, 1, _MOST_PARTS))
        for name in ("rows", "columns"):
            object.__setattr__(self, name, _placed(name, getattr(self, name), self.parts))
        shared = np.array(self.shared, np.bool_)
        if shared.shape != self.columns.shape:
            raise ConfigError(
                f"shared has the shape {shared.shape}; it is one bool for each of the "
                f"{len(self.columns)} columns"
            )
        object.__setattr__(self, "shared", shared)
        for array in (self.rows, self.columns, shared):
            array.setflags(write=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # NumPy's pickles forget that an array is read-only.
        return Partition, (self.rows, self.columns, self.shared, self.parts)

    @staticmethod
    def from_rows(X: Any, rows: npt.ArrayLike, parts: int) -> Partition:
        """Give each column of `X` an owner, for rows that have been placed already.

        Args:
            X: the matrix, as for malt.data.partition.
            rows: (rows,) the part of each row.
            parts: how many parts there are.

        Raises:
            ConfigError: as malt.data.partition does, or `rows` is not one part for each row.
        """
        pattern = _Pattern.of(X)
        whole("parts", parts, 1, _MOST_PARTS)
        placed = _placed("rows", rows, parts)
        _check_room(pattern, parts)
        columns, shared = core.partition_columns(*pattern.arrays, rows=placed, parts=parts)
        return Partition(placed, columns, shared.astype(np.bool_), parts)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        return len(self.rows), len(self.columns)

    @property
    def checksum(self) -> int:
        """A CRC-32, to compare the partitions of several ranks."""
        found = zlib.crc32(np.packbits(self.shared).tobytes(), self.parts)
        for array in (self.rows, self.columns):
            found = zlib.crc32(array.tobytes(), found)
        return found

    def rows_of(self, part: int) -> npt.NDArray[np.intp]:
        """Return the rows of a part, in growing order: `X[p.rows_of(malt.rank())]`."""
        return np.flatnonzero(self.rows == whole("part", part, 0, self.parts - 1))

    def columns_of(self, part: int) -> npt.NDArray[np.intp]:
        """Return the columns that a part owns, in growing order."""
        return np.flatnonzero(self.columns == whole("part", part, 0, self.parts - 1))

    def traffic(self, X: Any) -> Traffic:
        """Count what travels with this partition of `X`, or of other data of the same shape.

        Raises:
            ConfigError: as malt.data.partition does, or X has another shape.
        """
        pattern = _Pattern.of(X)
        arrays, parts = pattern.arrays, self.parts
        _check_room(pattern, parts)
        received, sent = core.partition_traffic(
            *arrays, rows=self.rows, owners=self.columns, parts=parts
        )
        # A column of d rows is needed by parts * (1 - (1 - 1 / parts)^d) parts, on the average.
        degrees = np.bincount(pattern.columns)
        needed = parts * -np.expm1(degrees * np.log1p(-1 / parts)) if parts > 1 else 0 * degrees
        return Traffic(received, sent, float(needed.sum() * (1 - 1 / parts)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, in NumPy's .npz format."""
        arrays = {name: getattr(self, name) for name in ("rows", "columns", "shared", "parts")}
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Partition:
        """Read what `save` has written.

        Raises:
            ConfigError: the file has no partition, or is damaged.
            OSError: it cannot be read.
        """
        with open(path, "rb") as file:
            try:
                return _read(Npz(file, "the file"))
            except (ConfigError, TypeError, ValueError) as error:
                why = f": {error}" if isinstance(error, ConfigError) else ""  # others: internals
                raise ConfigError(
                    f"{os.fspath(path)!r} has no partition{why}; it must be a file that "
                    "Partition.save() wrote: save it once more"
                ) from error


def partition(
    X: Any,
    parts: int,
    *,
    balance: str = "rows",
    slack: float = 0.05,
    passes: int = 2,
    seed: int = 0,
) -> Partition:
    """Place the rows and the columns of a sparse matrix so that little travels between ranks.

    Rows that have columns in common go to the same part, and a column is owned by a part whose rows
    have it. After Parsa (Li, Andersen, Smola, "Graph partitioning via parallel submodular
    approximation", 2015), with rows placed one by one, in several passes. Not collective: ranks of
    the same kind of processor get the same from the same arguments.

    Args:
        X: a SciPy sparse matrix, of which the stored elements count, or a NumPy array of two
            dimensions, of which those count that are not 0.
        parts: how many parts: the ranks; 1 to 1024, and at most the rows.
        balance: what is spread evenly: "rows", or "values", the elements.
        slack: how much more than the mean a part may have of that: 0.05 is 5 %. A row for which no
            part has room goes to the part that has least.
        passes: the most passes over the rows; at least 1. More than 2 seldom help.
        seed: of the order in which rows are placed; at least 0.

    Raises:
        ConfigError: an argument is out of range, X is no matrix, or has no rows or no columns.
    """
    pattern = _Pattern.of(X)
    whole("parts", parts, 1, _MOST_PARTS)
    if balance not in _BALANCES:
        raise ConfigError(f"balance is {balance!r}; it is 'rows' or 'values'")
    if isinstance(slack, bool) or not isinstance(slack, (int, float, np.number)):
        raise ConfigError(f"slack is {slack!r}; it is a number from 0 to 1")
    whole("passes", passes, 1, 1000)
    whole("seed", seed, 0, 2**64 - 1)
    counted = min(pattern.width, len(pattern.columns) // 2)  # in two rows or more
    _check_room(pattern, parts, 4 * counted * -(-parts // _LANES) * _LANES)
    rows = core.partition_rows(
        *pattern.arrays,
        parts=int(parts),
        slack=float(slack),
        by_values=balance == "values",
        passes=int(passes),
        seed=int(seed),
    )
    columns, shared = core.partition_columns(*pattern.arrays, rows=rows, parts=int(parts))
    return Partition(rows, columns, shared.astype(np.bool_), int(parts))


def check_partition(given: Any, *, parts: int, exactly: bool) -> Partition:
    """Return the argument `partition` of a call.

    Args:
        given: by the user.
        parts: how many ranks there are.
        exactly: it must have as many parts, and not fewer.

    Raises:
        ConfigError: it is no Partition, or has parts for other ranks than there are.
    """
    if not isinstance(given, Partition):
        raise ConfigError(
            f"partition is a {type(given).__name__}; it is what malt.data.partition(X, parts) "
            "returns"
        )
    if given.parts > parts or (exactly and given.parts < parts):
        raise ConfigError(
            f"partition has {given.parts} parts, but there are {parts} ranks; make it with "
            f"malt.data.partition(X, {parts})"
        )
    return given


class _Pattern(NamedTuple):
    """Places of the elements of a matrix."""

    starts: npt.NDArray[np.int64]
    columns: Placed
    width: int

    @staticmethod
    def of(X: Any) -> _Pattern:
        if hasattr(X, "tocsr") and len(X.shape) == 2:
            rows = X.tocsr()
            if not rows.has_canonical_format:  # has an element twice, or in any order
                rows = rows.copy()
                rows.sum_duplicates()
            starts, columns, shape = rows.indptr, rows.indices, rows.shape
        elif isinstance(X, np.ndarray) and X.ndim == 2:
            places, columns = np.nonzero(X)
            starts, shape = np.searchsorted(places, np.arange(len(X) + 1)), X.shape
        else:
            of_shape = f" of shape {X.shape}" if hasattr(X, "shape") else ""
            is_frame = hasattr(X, "to_numpy") and len(X.shape) == 2
            way_out = ": give X.to_numpy()" if is_frame else ""
            raise ConfigError(
                f"X is a {type(X).__name__}{of_shape}; it is a SciPy sparse matrix or a NumPy "
                f"array of two dimensions{way_out}"
            )
        if shape[1] > _MOST_COLUMNS:
            raise ConfigError(
                f"X has {shape[1]} columns; at most {_MOST_COLUMNS} can be placed: number those "
                "that occur anew (np.unique)"
            )
        if 0 in shape:
            raise ConfigError(f"X has the shape {shape}; it needs a row and a column at least")
        return _Pattern(
            np.ascontiguousarray(starts, np.int64),
            np.ascontiguousarray(columns, np.int32),
            int(shape[1]),
        )

    @property
    def arrays(self) -> tuple[npt.NDArray[np.int64], Placed, int]:
        return self.starts, self.columns, self.width


def _read(saved: Npz) -> Partition:
    if missing := {"rows", "columns", "shared", "parts"} - set(saved):
        raise ConfigError(f"{', '.join(sorted(missing))} missing")
    return Partition(saved["rows"], saved["columns"], saved["shared"], saved["parts"].item())


def _check_room(pattern: _Pattern, parts: int, counts: int = 0) -> None:
    """Raise ConfigError if there is no memory to look at the columns, and for so many more bytes.

    A column takes a bit for each part, and 20 bytes for what is found of it.
    """
    needed = pattern.width * (20 + 8 * -(-parts // 64)) + counts
    if needed > (free := core.available_bytes()):
        raise ConfigError(
            f"{parts} parts of {pattern.width} columns need {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free: ask for fewer parts, or number the columns that occur "
            "anew (np.unique)"
        )


def _placed(name: str, given: npt.ArrayLike, parts: int) -> Placed:
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(
            f"{name} have the shape {array.shape} and dtype {array.dtype}; they are one part, a "
            "whole number, each"
        )
    outside = np.flatnonzero((array < 0) | (array >= parts))
    if outside.size:
        raise ConfigError(
            f"{name}[{outside[0]}] is {array[outside[0]]}; with {parts} parts it is 0 to "
            f"{parts - 1}"
        )
    return np.array(array, np.int32)
