"""Rules by which a server applies the gradients that are pushed to a row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from numbers import Real
from typing import Any, ClassVar, TypeAlias

import numpy.typing as npt

from malt._errors import ConfigError

UpdateFunction: TypeAlias = Callable[[npt.NDArray[Any], npt.NDArray[Any]], None]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A built-in update rule. The servers keep its state, and run it without Python."""

    _states: ClassVar[tuple[str, ...]] = ()  # numbers that the servers keep for each value

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value: Any = getattr(self, field.name)
            least = 0.0 if field.default is not dataclasses.MISSING else math.ulp(0.0)
            is_number = isinstance(value, Real) and math.isfinite(value)
            if not is_number or value < least:
                above = "at least 0" if least == 0 else "above 0"
                raise ConfigError(
                    f"{type(self).__name__}({field.name}={value!r}): {field.name} is a finite "
                    f"number {above}"
                )

    def numbers(self) -> list[float]:
        """Return the fields in order, as the core takes them."""
        return [float(getattr(self, field.name)) for field in dataclasses.fields(self)]


@dataclasses.dataclass(frozen=True)
class Add(Rule):
    """``w += g``: sums and counts."""


@dataclasses.dataclass(frozen=True)
class Assign(Rule):
    """``w = g``: the last push wins."""


@dataclasses.dataclass(frozen=True)
class SGD(Rule):
    """``w -= lr * g``."""

    lr: float


@dataclasses.dataclass(frozen=True)
class Momentum(Rule):
    """``v = momentum * v + g; w -= lr * v``."""

    _states = ("v",)

    lr: float
    momentum: float = 0.9


@dataclasses.dataclass(frozen=True)
class AdaGrad(Rule):
    """``n += g * g; w -= lr * g / (sqrt(n) + epsilon)``.

    Source: Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 2011.
    """

    _states = ("n",)

    lr: float
    epsilon: float = 1e-10


@dataclasses.dataclass(frozen=True)
class FTRL(Rule):
    """FTRL-proximal with L1 and L2 regularisation, for sparse linear models.

    Source: McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1,
    whose names the arguments have.
    """

    _states = ("z", "n")

    alpha: float
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0


def states_of(rule: Rule | UpdateFunction) -> tuple[str, ...]:
    """Return the names of the numbers that the servers keep for each value besides it."""
    return rule._states if isinstance(rule, Rule) else ()
