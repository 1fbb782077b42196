"""Checks of the arguments of a table and its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from malt import _core_import as core
from malt._arguments import finite
from malt._core_import import BFLOAT16, FLOAT16, INT8
from malt._errors import ConfigError
from malt.ps._rules import Assign, Rule

Keys: TypeAlias = "npt.NDArray[np.int64] | Sequence[int] | range | None"
Values: TypeAlias = npt.NDArray[Any]

_CODECS = [repr(codec) for codec in (FLOAT16, BFLOAT16, INT8)]


# Arguments of the table


def float_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ConfigError(f"dtype is {dtype!r}; a table has float32 or float64")
    return kind


def check_rule(rule: Any) -> None:
    if isinstance(rule, type) or (not isinstance(rule, Rule) and not callable(rule)):
        raise ConfigError(
            f"update is {rule!r}; it is a rule of malt.ps, as malt.ps.SGD(0.1), or a "
            "function f(values, gradients)"
        )


def check_codec(codec: Any) -> None:
    if codec is not None and repr(codec) not in _CODECS:
        raise ConfigError(
            f"codec is {codec!r}; a table takes malt.FLOAT16, BFLOAT16 or INT8, and holds "
            "back small gradients with threshold="
        )


def check_threshold(threshold: float, rule: Any) -> None:
    finite("threshold", threshold, 0)
    if threshold > 0 and isinstance(rule, Assign):
        raise ConfigError(
            f"threshold is {threshold!r}; Assign() has none, as what is held back is summed"
        )


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


# Arguments of its calls; `name` is the table's


def keys_of(name: str, keys: Keys, rows: int) -> tuple[npt.NDArray[np.int64] | None, int, int]:
    """Return the keys as an array, or None, the first one and their number."""
    if keys is None:
        return None, 0, rows
    if isinstance(keys, range):
        if keys.step != 1:
            raise ConfigError(f"table '{name}': {keys} has step {keys.step}; it is 1")
        return None, keys.start, len(keys)
    array = _as_array(keys)
    if array.shape == (0,):
        array = array.astype(np.int64)
    if array.dtype != np.int64 or array.ndim != 1:
        raise ConfigError(
            f"table '{name}': the keys have dtype {array.dtype} and {array.ndim} "
            "dimensions; they are a 1-D array of int64 (keys.astype(numpy.int64))"
        )
    return np.ascontiguousarray(array), 0, len(array)


def gradients_of(
    name: str, gradients: npt.ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the gradients as an array of this shape and dtype; a scalar is repeated."""
    given = _as_array(gradients)
    if given.dtype.kind in "cOSUMm":
        way = " (of a sparse matrix give matrix.toarray())" if hasattr(gradients, "toarray") else ""
        raise ConfigError(
            f"table '{name}': gradients have dtype {given.dtype}; they are real numbers{way}"
        )
    given = given.astype(dtype, copy=False)
    if given.ndim == 0:
        given = np.broadcast_to(given, shape)
    if given.shape != shape:
        raise ConfigError(
            f"table '{name}': gradients have shape {given.shape}; for {shape[0]} keys they "
            f"have shape {shape}"
        )
    return given


def check_out(name: str, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise ConfigError(f"table '{name}': out is {out!r:.50}; it is a NumPy array")
    is_usable = out.flags.c_contiguous and out.flags.writeable
    if out.shape != shape or out.dtype != dtype or not is_usable:
        raise ConfigError(
            f"table '{name}': out has shape {out.shape} and dtype {out.dtype}; it is a "
            f"writable C-contiguous array of shape {shape} and dtype {dtype}"
        )


def _as_array(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return values as an array: of objects if they have no common shape."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(values, dtype=object)
