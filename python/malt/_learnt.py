"""What a scikit-learn estimator has learnt, and whether all ranks learn the same kind of thing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._errors import ConfigError, describe_ranks
from malt._together import Report

Array = npt.NDArray[Any]

_MOST_SHOWN = 250  # characters of what ranks compare, in messages


def learnt(estimator: Any) -> dict[str, Array]:
    """The arrays that are averaged, by name and in one order; each memory once."""
    parameters = estimator.get_params(deep=False)
    found: dict[str, Array] = {}
    addresses = set()
    for name, value in sorted(vars(estimator).items()):
        items = value if isinstance(value, list | tuple) else [value]
        for place, item in enumerate(items):
            if name in parameters or not _is_floats(item) or item.ctypes.data in addresses:
                continue
            addresses.add(item.ctypes.data)
            found[name if item is value else f"{name}[{place}]"] = item
    if not found:
        raise ConfigError(
            f"{type(estimator).__name__} has learnt no array of float32 or float64 (of its "
            f"attributes {', '.join(sorted(vars(estimator)))}), so there is nothing to average"
        )
    return found


def _is_floats(value: Any) -> bool:
    floats = (np.float32, np.float64)
    return isinstance(value, np.ndarray) and value.dtype in floats and value.size > 0


def labels(classes: Any) -> Report:
    """For compare(); nothing of None."""
    if classes is None:
        return {}
    values = np.unique(np.asarray(classes)).tolist()
    return described("classes", [repr(value) for value in values])


def layout(estimator: Any) -> Report:
    """Names, shapes and dtypes, for compare()."""
    arrays = learnt(estimator).items()
    return described("layout", [f"{name} {array.shape} {array.dtype}" for name, array in arrays])


def described(key: str, parts: Sequence[str]) -> Report:
    """What ranks compare, and as much of it as a message shows."""
    whole = ", ".join(parts)
    shown = whole if len(whole) <= _MOST_SHOWN else f"{whole[:_MOST_SHOWN]}..."
    return {key: hashlib.sha256(whole.encode()).hexdigest(), f"{key} shown": shown}


def compare(call: str, reports: Mapping[int, Report]) -> None:
    """Raise ConfigError, on every rank, if one has other labels or learns other arrays."""
    first, expected = next(iter(reports.items()))
    for key, noun, remedy in (
        ("settings", "settings", "give the same on every rank"),
        ("classes", "labels", "give classes=, all labels, on every rank, or shard the rows evenly"),
        ("layout", "learnt arrays", "give all ranks rows of the same features, and equal options"),
    ):
        other = [rank for rank, report in reports.items() if report.get(key) != expected.get(key)]
        if other:
            there, here = reports[other[0]].get(f"{key} shown"), expected.get(f"{key} shown")
            raise ConfigError(
                f"{call}: {noun} differ: {there} on {describe_ranks(other)}, {here} on rank "
                f"{first}; {remedy}"
            )
