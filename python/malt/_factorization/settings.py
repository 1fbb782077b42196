"""The settings of training a matrix factorisation, checked."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from malt._arguments import whole
from malt._errors import ConfigError


class FactorizationSettings(NamedTuple):
    """The parameters of MatrixFactorization that must be the same on all ranks."""

    n_factors: int
    passes: int
    lr: float
    reg: float
    decay: float
    biased: bool
    implicit: bool
    alpha: float
    negatives: int
    every: int | None

    def check(self) -> None:
        """Raise ConfigError for values that are not allowed."""
        for name in ("n_factors", "passes"):
            whole(name, getattr(self, name), 1)
        whole("negatives", self.negatives, 0)
        if self.every is not None:
            whole("every", self.every, 1)
        for name in ("lr", "reg", "decay", "alpha"):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value!r}; it is a finite number of at least 0")
        for name in ("biased", "implicit"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it is True or False")
        if self.lr == 0:
            raise ConfigError("lr is 0, with which nothing is learnt; it is above 0")
