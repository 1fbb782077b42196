"""Checks of parameters. They raise malt.ConfigError with messages of one form."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from malt._errors import ConfigError


def variable(name: str, otherwise: str = "", env: Mapping[str, str] = os.environ) -> str:
    """Return an environment variable; one that is empty counts as unset."""
    return env.get(name) or otherwise


def choose(name: str, value: object, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def number(
    name: str,
    value: Any,
    least: float,
    *,
    above: bool = False,
    most: float = math.inf,
    instead: str = "",
) -> None:
    """Check a number; `instead` says what to give in place of one outside."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and (value > least if above else value >= least) and value <= most):
        words = f"a number {'above' if above else 'at least'} {least:g}"
        words += f" and at most {most:g}" if most < math.inf else ""
        raise ConfigError(f"{name} is {value!r}; it must be {words}{instead}")


def whole(name: str, value: Any, least: int, most: int | None = None, why: str = "") -> int:
    """Return the value as an int; `why` says why it cannot be more than `most`."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is {value!r}; it must be a whole number {limit}{why}")
    return int(value)
