"""Checks of a table's arguments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from malt._errors import ConfigError


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
