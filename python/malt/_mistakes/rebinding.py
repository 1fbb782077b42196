"""Tells when the program has replaced an array that a vector shares, instead of changing it."""

from __future__ import annotations

import inspect
import logging
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np

log = logging.getLogger("malt")

# References to a thing that is no longer used: those of the vector, of a variable here, of the call
# that counts them.
_TO_ARRAY = 4
_TO_BASE = 3  # the memory's owner, where the array is a view
_TO_STORAGE = 2  # of a tensor: that of the vector's array, and _Part's

_REBOUND = (
    "malt: %s of vector '%s' is no longer used by anybody else, so what is gathered into it is "
    "lost: was it rebound (w = w - g)? Change it in place: w -= g, w[:] = ..., or v.array = ..., "
    "which copies (in PyTorch: w.sub_(g), p.data.copy_(...))"
)


class Watch:
    """Looks whether the program still uses the arrays of one vector; the core calls it."""

    def __init__(self, name: str, parts: Sequence[_Part | None], several: bool) -> None:
        self._name = name
        self._parts = parts
        self._several = several

    def __call__(self) -> bool:
        """Warn of an array that has been replaced; return whether to look again."""
        for index, part in enumerate(self._parts):
            if part is not None and part.is_lost():
                which = f"array {index} (counted from 0)" if self._several else "the array"
                log.warning(_REBOUND, which, self._name)
                return False
        return True


def references_kept(data: Any, counted: int) -> list[int]:
    """Return how many references to each array the caller keeps.

    Args:
        data: an array, or a list of arrays.
        counted: sys.getrefcount(data) in the function that the caller has called with it.
    """
    kept = counted - _TO_TEMPORARY
    if not isinstance(data, Sequence) or isinstance(data, (str, bytes)):
        return [kept]
    return [sys.getrefcount(part) - _TO_BASE if kept == 0 else kept for part in data]


def _count(data: object) -> int:
    return sys.getrefcount(data)


_TO_TEMPORARY = _count(object())  # as malt.vector() counts the references to its argument


def watch(name: str, given: Sequence[Any], kept: Sequence[int], several: bool) -> Watch | None:
    """Return what watches a vector over `given`; None if the caller keeps no reference to it.

    Args:
        name: of the vector.
        given: NumPy arrays, tensors of PyTorch, or other arrays, which are not watched.
        kept: of references_kept().
        several: `given` is a list of the caller's.
    """
    caller = outer_frame()
    parts = [
        _Part(part, count, caller) if is_watchable(part) and caller else None
        for part, count in zip(given, kept, strict=True)
    ]
    parts = [part if part is not None and part.is_kept else None for part in parts]
    return Watch(name, parts, several) if any(parts) else None


def outer_frame(*packages: str) -> FrameType | None:
    """Return the innermost frame outside of these packages; without any, of malt."""
    inner = tuple(f"{package}." for package in packages or ("malt",))
    frame: FrameType | None = sys._getframe()
    while frame is not None and f"{module_of(frame)}.".startswith(inner):
        frame = frame.f_back
    return frame


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code runs in this frame."""
    return str(frame.f_globals.get("__name__", ""))


class _Part:
    """One array or tensor of a vector.

    Attributes:
        is_kept: the program had a reference to it, or to its memory, when the vector was made.
    """

    def __init__(self, data: Any, kept: int, caller: FrameType) -> None:
        self._data = weakref.ref(data)
        self._root: Any = None  # the storage of a tensor
        self._address = 0
        if _is_tensor(data):
            self._root = data.untyped_storage()
            self._address = data.data_ptr()
        is_shared = self._is_shared(data)
        self.is_kept = kept > 0 or is_shared
        self._names = [name for name, value in variables(caller) if value is data]
        self._code = caller.f_code if caller.f_code.co_flags & inspect.CO_OPTIMIZED else None
        self._module = id(caller.f_globals)
        # Then the array may be unused because the function has returned that made the vector.
        self._is_only_named = kept == len(self._names) and not is_shared

    def is_lost(self) -> bool:
        """Return whether no change of the program can reach the vector's memory any more."""
        data = self._data()
        if self._root is not None and data is not None:
            return bool(data.data_ptr() != self._address)
        variables = self._present_variables()  # first: it drops references that Python has kept
        if data is not None and sys.getrefcount(data) > _TO_ARRAY:
            return False
        if any(self._is_another(value, data) for value in variables):
            return True
        return not (self._is_shared(data) or self._is_only_named)

    def _is_shared(self, data: Any) -> bool:
        """Return whether something else refers to the memory: another view, or its owner."""
        if self._root is not None:
            own = _TO_STORAGE + (data is not None)
            return _uses_of(self._root) > own
        base = data.base
        return base is not None and sys.getrefcount(base) > _TO_BASE

    def _is_another(self, value: Any, data: Any) -> bool:
        """Return whether a variable that was the array is now an array in other memory."""
        if _is_tensor(value):
            root = self._root
            return root is None or value.untyped_storage().data_ptr() != root.data_ptr()
        return isinstance(value, np.ndarray) and (
            data is None or (value is not data and _owner(value) is not _owner(data))
        )

    def _present_variables(self) -> list[Any]:
        """Return what the variables are now that were the array; none if their scope has ended."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if self._code is None and id(frame.f_globals) == self._module:
                return [frame.f_globals.get(name) for name in self._names]
            if self._code is not None and frame.f_code is self._code:
                return [value for name, value in variables(frame) if name in self._names]
            frame = frame.f_back
        return []


def variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Generate the names and values of a frame's variables, without keeping references to them."""
    scope = frame.f_locals
    found = list(scope.items())
    # Python 3.12 and earlier keep a copy of a function's variables, and with it what they refer to.
    is_copy = frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(scope, dict)
    if is_copy and sys.getrefcount(scope) == _TO_BASE:
        scope.clear()
    return iter(found)


def is_watchable(data: Any) -> bool:
    """Return whether `data` is a NumPy array or a tensor of PyTorch."""
    return isinstance(data, np.ndarray) or _is_tensor(data)


def _is_tensor(data: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def _uses_of(storage: Any) -> int:
    count = getattr(sys.modules["torch"]._C, "_storage_Use_Count", None)
    return sys.maxsize if count is None else int(count(storage._cdata))


def _owner(array: Any) -> Any:
    return array if array.base is None else array.base
