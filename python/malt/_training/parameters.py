"""Checks of parameters, with messages of one form."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np


def choose(name: str, value: object, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def number(
    name: str,
    value: Any,
    least: float,
    *,
    above: bool = False,
    most: float = np.inf,
    whole: bool = False,
) -> None:
    kind = Integral if whole else Real
    good = isinstance(value, kind) and not isinstance(value, bool)
    if not (good and (value > least if above else value >= least) and value <= most):
        limits = f"{'above' if above else 'at least'} {least:g}"
        limits += f" and at most {most:g}" if most < np.inf else ""
        noun = "a whole number" if whole else "a number"
        raise ValueError(f"{name} is {value!r}; it must be {noun} {limits}")
