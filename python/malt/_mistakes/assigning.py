"""Assignment to a vector's `.array`: the values are copied into the memory that is exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._errors import ConfigError


class Arrays(tuple[npt.NDArray[Any], ...]):
    """The arrays of a vector. Assigning to an element copies into that array."""

    def __setitem__(self, index: int, values: Any) -> None:
        if values is not self[index]:  # after `arrays[0] += x` they are there already
            _copy(f"array {index}", self[index], values)

    def __repr__(self) -> str:
        return repr(list(self))


def write(name: str, own: Any, values: Any) -> None:
    """Copy `values` into the arrays of vector `name`; the core calls it for `v.array = values`.

    Raises:
        ConfigError: the values have another shape, or do not fit the dtype; nothing is copied.
    """
    what = f"the array of vector '{name}'"
    if not isinstance(own, Arrays):
        _copy(what, own, values)
        return
    if not isinstance(values, Sequence) or len(values) != len(own):
        raise ConfigError(
            f"vector '{name}' has {len(own)} arrays: assign to each (v.array[0] = ...), or a list "
            f"of as many to v.array, not {values!r:.50}"
        )
    fitting = [
        _fitting(f"array {index} of vector '{name}'", array, each)
        for index, (array, each) in enumerate(zip(own, values, strict=True))
    ]
    for array, each in zip(own, fitting, strict=True):
        array[...] = each


def _copy(what: str, own: npt.NDArray[Any], values: Any) -> None:
    own[...] = _fitting(what, own, values)


def _fitting(what: str, own: npt.NDArray[Any], values: Any) -> npt.NDArray[Any]:
    try:
        given = np.asarray(values.detach() if hasattr(values, "detach") else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{what} cannot be assigned {values!r:.50}: {error}") from None
    if given.shape not in ((), own.shape):
        raise ConfigError(
            f"{what} has shape {own.shape}, and cannot be assigned values of shape {given.shape}: "
            "assigning copies the values into the vector's memory; a vector keeps its shape"
        )
    if not np.can_cast(given.dtype, own.dtype, "same_kind"):
        raise ConfigError(
            f"{what} has dtype {own.dtype}, and cannot be assigned values of {given.dtype}, which "
            f"would be cut: convert them first (.astype(np.{own.dtype}))"
        )
    return given
