"""Checks of parameters. They raise malt.ConfigError with messages of one form."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from malt._errors import ConfigError

MOST_DEPTH = 1024  # slots of a sender, as dstorm/segment/agreement.cpp has it


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
) -> float:
    """Return the value as a float; `instead` says what to give in place of one outside."""
    given = math.nan if isinstance(value, bool) else _as_float(value)
    if not ((given > least if above else given >= least) and given <= most):
        words = f"a number {'above' if above else 'at least'} {least:g}"
        words += f" and at most {most:g}" if most < math.inf else ""
        raise ConfigError(f"{name} is {value!r}; it must be {words}{instead}")
    return given


def finite(name: str, value: Any, least: float = -math.inf) -> float:
    """Return the value as a float."""
    given = _as_float(value)
    if not math.isfinite(given) or given < least:
        limit = f" of at least {least:g}" if least > -math.inf else ""
        raise ConfigError(f"{name} is {value!r}; it is a finite number{limit}")
    return given


def _as_float(value: Any) -> float:
    """Return NaN for what is no number, and an infinity for one that no float can hold."""
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def seconds(timeout: float | None) -> float | None:
    """Check the `timeout` of a call; None stands for the job's."""
    if timeout is None:
        return None
    return number("timeout", timeout, 0.0, instead=" seconds, or None")


def whole(name: str, value: Any, least: int, most: int | None = None, why: str = "") -> int:
    """Return the value as an int; `why` says why it cannot be more than `most`."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is {value!r}; it must be a whole number {limit}{why}")
    return int(value)


def function(name: str, value: Any) -> None:
    if not callable(value):
        raise ConfigError(f"{name} is {value!r:.50}; it must be a function")


def unmasked(array: Any) -> None:
    """Check that an array has no mask, which would be lost where its memory is read."""
    ma = sys.modules.get("numpy.ma")  # which takes time to import, and open files
    if ma is not None and isinstance(array, ma.MaskedArray):
        raise ConfigError(
            "the array is masked, and its mask would be lost: fill it first (w = w.filled(0.0)), "
            "then use that w"
        )


def text(name: str, value: Any) -> None:
    """Check a text that is encoded as UTF-8 for others to read."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r:.50}; it is a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        wrong = f"UTF-8 cannot encode {value[error.start]!r}"
        raise ConfigError(f"{name} is {value!r:.50}; {wrong}: leave it out") from None
