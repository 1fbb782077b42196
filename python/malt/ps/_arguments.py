"""Checks of a table's arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from malt import _core_import as core
from malt._errors import ConfigError


def as_array(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return values as an array: of objects if they have no common shape."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(values, dtype=object)


def hot_rows_of(
    hot: npt.ArrayLike, table_rows: int, staleness: int | None
) -> npt.NDArray[np.int64]:
    """Return the hot rows of a table, sorted.

    Raises:
        ConfigError: they are not rows of the table, or it has no staleness.
    """
    rows = np.unique(np.asarray(hot))
    if rows.size == 0:
        return rows.astype(np.int64)
    if rows.dtype.kind not in "iu":
        raise ConfigError(f"hot has dtype {rows.dtype}; it is a list of rows, which are ints")
    for row in (rows[0], rows[-1]):
        if not 0 <= row < table_rows:
            raise ConfigError(
                f"hot has {row}, which is not a row of the table; it has rows 0 to {table_rows - 1}"
            )
    if staleness is None:
        raise ConfigError(
            "hot rows need a staleness, as servers keep them until a later clock is asked "
            "for; pass staleness= and call clock() in each iteration"
        )
    return rows.astype(np.int64)


def check_memory(
    name: str,
    rows: int,
    rows_here: int,
    row_bytes: int,
    replicas: int,
    live: int,
    list_bytes: int,
) -> None:
    """Check that a table fits into this rank's memory.

    Args:
        name: of the table.
        rows: of the table.
        rows_here: of this rank, without replicas.
        row_bytes: of a row with the rule's state.
        replicas: of each row.
        live: how many ranks are live.
        list_bytes: of cached keys and hot rows.

    Raises:
        ConfigError: it does not.
    """
    needed = rows_here * row_bytes * (1 + replicas) + list_bytes
    there = core.available_bytes()
    if needed > there:
        raise ConfigError(
            f"table '{name}' needs about {needed >> 20} MB on this rank ({rows} rows of "
            f"{row_bytes} bytes with the rule's state, {1 + replicas} times, on {live} ranks, and "
            f"{list_bytes >> 20} MB of cached keys and hot rows), and {there >> 20} MB are free; "
            "use more ranks, fewer replicas, rows, cached keys or hot rows, or another rule"
        )
