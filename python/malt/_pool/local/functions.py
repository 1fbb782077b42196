"""Which functions the ranks have: a function is sent again only if it has changed.

A function that is defined in a script or a notebook is pickled whole, with the variables it refers
to. That takes longer than a call, so a function is not pickled again if all that it refers to is
the same object as before, and can never change.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np

from malt._errors import ConfigError
from malt._pool.local import packing

KEPT = 16  # functions that a rank keeps: the latest that it has got

_FIXED = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    np.generic,
    np.ufunc,
    types.ModuleType,
    types.BuiltinFunctionType,
)
_MISSING = object()  # a name that is no global variable now
_MOST_CODES = 1000


class Functions:
    """Numbers functions by what their pickles hold."""

    def __init__(self) -> None:
        self._parts: dict[int, list[bytes | memoryview]] = {}  # the latest, by number
        self._numbers: dict[bytes, int] = {}  # by digest
        self._next = 0
        self._last: tuple[list[object], int] = [], -1  # the last one's references; its number

    def number(self, function: Callable[..., Any]) -> int:
        """Return the function's number. The ranks have it, or must be sent its parts.

        Raises:
            malt.ConfigError: it cannot be pickled; names the variable that cannot.
        """
        refers_to = _refers_to(function)
        before, number = self._last
        if (
            refers_to is not None
            and len(before) == len(refers_to)
            and all(one is other for one, other in zip(before, refers_to, strict=True))
        ):
            return number
        number = self._number_of(_pack(function))
        self._last = (refers_to, number) if refers_to is not None else ([], -1)
        return number

    def parts(self, number: int) -> list[bytes | memoryview]:
        return self._parts[number]

    def _number_of(self, parts: list[bytes | memoryview]) -> int:
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part)
        key = digest.digest()
        if (found := self._numbers.get(key)) is not None:
            return found
        number, self._next = self._next, self._next + 1
        # A function's arrays may change later, but their bytes at this number must not.
        self._parts[number] = [bytes(part) for part in parts]
        self._numbers[key] = number
        if len(self._numbers) > KEPT:
            oldest = next(iter(self._numbers))
            del self._parts[self._numbers.pop(oldest)]
        return number


def _refers_to(function: object) -> list[object] | None:
    """Return all objects that a pickle of the function depends on; None if one may change."""
    if type(function) is not types.FunctionType or cloudpickle.list_registry_pickle_by_value():
        return None
    found: list[object] = []
    waiting: list[types.FunctionType] = [function]
    seen: set[types.FunctionType] = set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        found.append(one)
        if _is_importable(one):
            continue
        found.append(one.__code__)
        for value in _values_of(one):
            if type(value) is types.FunctionType:
                waiting.append(value)
            elif not isinstance(value, _FIXED) and value is not _MISSING:
                return None
            found.append(value)
    return found


def _values_of(function: types.FunctionType) -> Iterator[object]:
    if function.__dict__:
        yield function.__dict__
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield cell
    for name in _names_of(function.__code__):
        yield function.__globals__.get(name, _MISSING)


_names: dict[types.CodeType, tuple[str, ...]] = {}


def _names_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that a function's code, and that of functions in it, may look up."""
    if (names := _names.get(code)) is None:
        inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
        names = code.co_names + tuple(name for each in inner for name in _names_of(each))
        if len(_names) >= _MOST_CODES:
            _names.clear()
        _names[code] = names
    return names


def _is_importable(function: types.FunctionType) -> bool:
    """Return whether the ranks import the function, rather than get its code."""
    import sys

    if function.__module__ == "__main__":
        return False
    found: object = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _pack(function: Callable[..., Any]) -> list[bytes | memoryview]:
    try:
        return packing.pack(function)
    except Exception as error:
        raise ConfigError(
            f"{_name(function)} cannot be sent to the ranks: {_culprit(function) or error}; make "
            "it inside the function, or give its parts as arguments"
        ) from error


def _culprit(function: Callable[..., Any]) -> str:
    """Name the variable of the function that cannot be pickled."""
    if not isinstance(function, types.FunctionType):
        return ""
    names = [*function.__code__.co_freevars]
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    for name in _names_of(function.__code__):
        if name in function.__globals__:
            names.append(name)
            values.append(function.__globals__[name])
    for name, value in zip(names, values, strict=True):
        try:
            packing.pack(value)
        except Exception as error:
            return f"its variable {name!r} is of {_name(type(value))}, and {error}"
    return ""


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
