"""Tells when a vector was made over a copy of the array that the program's loop changes.

`m = malt.vector(w.astype(np.float32))` is over memory that only `m.array` reaches. That is right in
a program which goes on with `m.array`, and a mistake in one which goes on with `w`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._mistakes.rebinding import is_watchable, outer_frame, variables

log = logging.getLogger("malt")

_MOST_INSIDE = 1000  # elements of a list
_MOST_ELEMENTS = 4096  # of an array, that are looked at


class Copy:
    """Looks whether the program changes an array whose copy a vector shares; the core calls it.

    The core drops it when the program asks for the vector's `.array`.
    """

    def __init__(self, name: str, original: Any) -> None:
        self._name = name
        self._original = weakref.ref(original)
        self._before = _bytes_of(original)

    def __call__(self) -> bool:
        """Warn if the original has changed; return whether to look again."""
        original = self._original()
        if original is None:
            return False
        if _bytes_of(original) == self._before:
            return True
        log.warning(
            "malt: vector '%s' was made over a copy, and the program changes the array that was "
            "copied, so none of its changes are exchanged: give the array of the loop itself, or "
            "keep the copy and go on with it (w = w.astype(np.float32); v = malt.vector(w)), or "
            "change v.array",
            self._name,
        )
        return False


def watch(name: str, arrays: Sequence[npt.NDArray[Any]], kept: Sequence[int]) -> Copy | None:
    """Return what watches a vector over a copy of an array that the program has in a variable.

    Args:
        name: of the vector.
        arrays: of the vector.
        kept: of rebinding.references_kept(), for each array.

    Returns:
        None if the program keeps a reference to an array, or none is known to be a copy.
    """
    caller = outer_frame()
    if caller is None or any(kept):
        return None
    for value in _reached([value for _, value in variables(caller)]):
        for array in arrays if is_watchable(value) else ():
            if tuple(value.shape) == array.shape and _is_copy(array, value):
                return Copy(name, value)
    return None


def _is_copy(array: npt.NDArray[Any], value: Any) -> bool:
    """Return whether an array has the values of another array or tensor, in other memory."""
    some = _some(value)
    if some is None or (isinstance(value, np.ndarray) and np.may_share_memory(array, value)):
        return False
    with np.errstate(all="ignore"):
        return some.astype(array.dtype).tobytes() == _bytes_of(array)


def _reached(variables: Sequence[Any]) -> Iterator[Any]:
    """Generate the values of variables, and what is in their lists and dictionaries."""
    for value in variables:
        yield value
        if isinstance(value, (list, tuple)):
            yield from value[:_MOST_INSIDE]
        elif isinstance(value, dict):
            yield from list(value.values())[:_MOST_INSIDE]


def _bytes_of(value: Any) -> bytes:
    some = _some(value)
    return b"" if some is None else some.tobytes()


def _some(value: Any) -> npt.NDArray[Any] | None:
    """Return some elements of an array or a tensor; None if they are no numbers on the CPU."""
    if isinstance(value, np.ndarray):
        return _sample(value) if value.dtype.kind in "biuf" else None
    is_readable = value.device.type == "cpu" and str(value.layout) == "torch.strided"
    if not is_readable or value.is_complex() or value.is_quantized:
        return None
    some: npt.NDArray[Any] = _sample(value.detach()).double().numpy()
    return some


def _sample(value: Any) -> Any:
    flat = value.reshape(-1)
    return flat[:: max(1, len(flat) // _MOST_ELEMENTS)]
