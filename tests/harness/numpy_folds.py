"""Malt's folds as NumPy computes them, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np


def inputs(ranks: int, dtype: str, length: int) -> np.ndarray[Any, Any]:
    """What the ranks send, by rank; the script makes the same."""
    random = np.random.default_rng(length)
    return (random.standard_normal((ranks, length)) * 1000).astype(dtype)


def fold_with_numpy(name: str, all_values: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
    """The fold over ALL as its documentation words it; integers round toward zero."""
    ranks = len(all_values)
    exact = all_values.astype(np.float64)
    ordered = np.sort(exact, axis=0)
    cut = int(0.3 * ranks)
    folded = {
        "AVG": exact.mean(axis=0),
        "SUM": exact.sum(axis=0),
        "WEIGHTED": exact.mean(axis=0),  # ALL gives every rank the same weight
        "REPLACE": exact[0 if rank != 0 else 1],  # all are as new: the first
        "MEDIAN": np.median(exact, axis=0),
        "TRIMMED_MEAN": ordered[cut : ranks - cut].mean(axis=0),
    }[name]
    if all_values.dtype.kind == "f":
        return folded
    return np.rint(folded) if name == "WEIGHTED" else np.trunc(folded)


def is_close(
    values: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], all_values: np.ndarray[Any, Any]
) -> bool:
    """Equal for integers; the rounding of a sum of floats is relative to its terms."""
    relative = {"float32": 1e-6, "float64": 1e-14}.get(values.dtype.name, 0)
    return bool((np.abs(values - expected) <= relative * np.abs(all_values).sum(axis=0)).all())
