"""What run() and a program of it are given and return, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._arguments import function, whole
from malt._errors import ConfigError

Array = npt.NDArray[Any]
_DTYPES = ("float32", "float64", "int32", "int64")


class Options(NamedTuple):
    """The arguments of run(), of which all ranks have the same."""

    length: int
    rounds: int | None
    staleness: int
    dtype: Any


def check(program: Any, length: Any, rounds: Any, staleness: Any, dtype: Any) -> Options:
    """Return the arguments.

    Raises:
        ConfigError: one is out of range.
    """
    for call in ("schedule", "push", "pull"):
        function(f"the program's {call}()", getattr(program, call, None))
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or kind not in [np.dtype(name) for name in _DTYPES]:
        shown = repr(dtype) if kind is None else kind
        raise ConfigError(f"dtype is {shown}; it must be one of {', '.join(_DTYPES)}")
    return Options(
        whole("length", length, 1),
        None if rounds is None else whole("rounds", rounds, 0),
        whole("staleness", staleness, 0),
        kind,
    )


def filled(values: npt.ArrayLike | None, length: int, dtype: np.dtype[Any]) -> Array:
    """Return `length` values, of which the first are those given."""
    if values is None:
        raise ConfigError(
            "push() returned None: it must return its update; an empty list if there is none"
        )
    given = np.asarray(values).ravel()
    if len(given) > length:
        raise ConfigError(
            f"push() returned {len(given)} values; length={length} is the most: give run() more"
        )
    if len(given) > 0 and not np.can_cast(given.dtype, dtype, "same_kind"):
        raise ConfigError(
            f"push() returned values of dtype {given.dtype}, and run() has dtype={dtype}: return "
            "numbers of that kind, or give run() another dtype"
        )
    filled = np.zeros(length, dtype)
    held = filled[: len(given)]
    with np.errstate(over="ignore"):
        held[:] = given
    fits = held == given if dtype.kind == "i" else np.isfinite(held) | ~np.isfinite(given)
    if not fits.all():
        raise ConfigError(
            f"push() returned {given[np.argmin(fits)]}, which {dtype} does not hold: give run() "
            "another dtype"
        )
    return filled


def parts(schedule: Callable[[int], Sequence[Any] | None], ranks: int) -> Sequence[Any] | None:
    """Return the parts of a round; None: there is none."""
    drawn = schedule(ranks)
    if drawn is not None and len(drawn) != ranks:
        raise ConfigError(
            f"schedule() returned {len(drawn)} parts for {ranks} ranks: return one for each (an "
            "empty one for a rank that has nothing to do)"
        )
    return drawn
