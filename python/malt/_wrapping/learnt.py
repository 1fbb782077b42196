"""The arrays that an estimator learns, and checks that all ranks learn arrays of one kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._alike import brief, check_alike
from malt._errors import ConfigError
from malt._job.agreement import Report

Array = npt.NDArray[Any]

_MOST_SHOWN = 250  # the most characters that a message shows of what ranks compare


def learnt(estimator: Any) -> dict[str, Array]:
    """Return the arrays to average, by name and in a fixed order; each piece of memory once."""
    parameters = estimator.get_params(deep=False)
    found: dict[str, Array] = {}
    memories = set()
    for name, value in sorted(vars(estimator).items()):
        items = value if isinstance(value, list | tuple) else [value]
        for place, item in enumerate(items):
            if name in parameters or not _is_floats(item):
                continue
            memory = (item.ctypes.data, item.nbytes)
            if memory in memories:
                continue
            memories.add(memory)
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
    """Return the labels for compare(); an empty report for None."""
    if classes is None:
        return {}
    values = np.unique(np.asarray(classes)).tolist()
    return {"labels": brief(", ".join(map(repr, values)))}


def layout(arrays: Mapping[str, Array]) -> list[str]:
    """Return names, shapes and dtypes."""
    return [f"{name} {array.shape} {array.dtype}" for name, array in arrays.items()]


def check_unchanged(arrays: Mapping[str, Array], before: Sequence[str]) -> None:
    """Raise ConfigError if the arrays, whose layout() was `before`, can no longer be averaged."""
    now = layout(arrays)
    if now != before:
        new = ", ".join(each for each in now if each not in before) or "nothing"
        old = ", ".join(each for each in before if each not in now) or "nothing"
        raise ConfigError(
            f"partial_fit() made {_shown(new)} in place of {_shown(old)} after the first rows. It "
            "may replace an array by another only of the same shape and dtype: have the first call "
            "make all arrays in their final sizes"
        )
    fixed = [name for name, array in arrays.items() if not array.flags.writeable]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)} cannot be written to, and the mean of the ranks belongs there: "
            "have partial_fit() keep a copy (numpy.array)"
        )


def check_is_used(estimator: Any, train: Callable[[Any], object]) -> None:
    """Raise ConfigError if training does not continue from the arrays that would be averaged.

    Some estimators make these arrays anew in each call from what another object holds; each rank
    would then train by itself. To detect this, `train` trains two copies of the estimator, one of
    them after a small change of its arrays. The change must show in what that copy has learnt.
    """
    plain, changed = deepcopy(estimator), deepcopy(estimator)
    for array in learnt(changed).values():
        array += 1e-3 * (1 + np.abs(array))
    train(plain)
    train(changed)
    pairs = zip(learnt(plain).values(), learnt(changed).values(), strict=True)
    if all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
        raise ConfigError(
            f"{type(estimator).__name__}.partial_fit() does not train on from its "
            f"{_shown(', '.join(learnt(estimator)))}, but makes them anew, so each rank would "
            "train by itself: keep what it trains as float32 or float64 arrays in its own "
            "attributes"
        )


def _shown(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def compare(call: str, reports: Mapping[int, Report]) -> None:
    """Raise ConfigError, on every rank, if a rank has other labels or learns other arrays."""
    for key, way_out in (
        ("settings", "give the same on every rank"),
        ("labels", "give classes=, all labels, on every rank, or shard the rows evenly"),
        ("learnt arrays", "give all ranks rows of the same features, and equal options"),
    ):
        given = {rank: {f"the {key}": report.get(key)} for rank, report in reports.items()}
        check_alike(call, given, way_out)
