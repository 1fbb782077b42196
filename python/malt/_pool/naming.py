"""Functions by name, for ranks of a job: every rank runs the same program, so it has them too.

Functions never go over the network. A function is named by its module and its qualified name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from malt._errors import ConfigError

Name = tuple[str, str]  # of the module, and in it


def name_of(function: Callable[..., Any]) -> Name:
    """Return the name by which the other ranks find the function.

    Raises:
        malt.ConfigError: it has none.
    """
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(
            f"{function!r} cannot be called by the ranks of a job: it has no name in a module; "
            "give a function that is defined with `def` at the top of a module"
        )
    if "<" in name:
        raise ConfigError(
            f"{module}.{name} cannot be called by the ranks of a job: functions are sent by name, "
            "so that no code goes over the network, and a lambda or a function inside another one "
            "has none; define it with `def` at the top of the script or of a module, and give what "
            "it refers to as theta"
        )
    if _look_up(sys.modules.get(module), name) is not function:
        raise ConfigError(
            f"{module}.{name} cannot be called by the ranks of a job: that name means another "
            "object; give a function that is defined with `def` at the top of a module, or of the "
            "script that each rank runs"
        )
    return module, name


def find(module: str, name: str) -> Callable[..., Any]:
    """Return the function of that name on this rank.

    Raises:
        malt.ConfigError: there is none.
    """
    try:
        home = sys.modules.get(module) or importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"this rank cannot import module {module}: {error}") from error
    found = _look_up(home, name)
    if not callable(found):
        raise ConfigError(
            f"this rank has no function {module}.{name}: define it before malt.Pool(over=...), "
            "where every rank comes by"
        )
    return found  # type: ignore[no-any-return]


def _look_up(found: object, name: str) -> Any:
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
