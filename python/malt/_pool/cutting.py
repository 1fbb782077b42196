"""Cuts what NumPy, SciPy, pandas, PyTorch or Arrow hold into chunks of consecutive rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from malt._errors import ConfigError


def prepare(data: Any, number: int) -> Any:
    """Return `data` in a form whose rows can be cut out; `number` is its place in the call.

    Raises:
        malt.ConfigError: it has no rows.
    """
    package = type(data).__module__.partition(".")[0]
    if package == "scipy" and hasattr(data, "tocsr"):
        return data.tocsr()
    if package in ("torch", "pandas", "pyarrow") and hasattr(data, "__len__"):
        if package == "torch" and data.device.type != "cpu":
            raise ConfigError(
                f"pool.share(): argument {number} is a tensor on {data.device}; the ranks share "
                "the host's memory: give tensor.cpu()"
            )
        if getattr(data, "ndim", 1) > 0:
            return data.detach() if package == "torch" else data
    elif isinstance(data, list | tuple | range):
        return data
    elif hasattr(data, "__array__") and np.ndim(data) > 0:
        return np.asarray(data)
    raise ConfigError(
        f"pool.share(): argument {number} is of {type(data).__module__}.{type(data).__qualname__}, "
        "which has no rows; it takes arrays of at least one dimension, SciPy's sparse matrices, "
        "tensors, data frames, Arrow's tables and columns, and lists"
    )


def rows_of(data: Any) -> int:
    return int(data.shape[0]) if hasattr(data, "shape") else len(data)


def cut(data: Any, begin: int, end: int) -> Any:
    """Return the rows from `begin` to before `end`, in memory that holds no other rows."""
    package = type(data).__module__.partition(".")[0]
    if package == "pandas":
        rows = data.iloc[begin:end] if hasattr(data, "iloc") else data[begin:end]
        return rows.copy()  # a view's blocks are not contiguous
    if package == "pyarrow":
        return data.slice(begin, end - begin)
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data[begin:end])
    return data[begin:end]


def bounds(rows: int, chunks: int) -> Sequence[tuple[int, int]]:
    """Return where each of `chunks` chunks begins and ends; their lengths differ by at most 1."""
    edges = [rows * chunk // chunks for chunk in range(chunks + 1)]
    return list(itertools.pairwise(edges))
