"""Picks parameters whose updates hardly disturb one another, for a round of a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from malt._arguments import number, whole
from malt._errors import ConfigError

Array = npt.NDArray[Any]


def independent(
    priorities: npt.ArrayLike, correlations: npt.ArrayLike, *, bound: float, most: int
) -> Array:
    """Pick parameters that may be updated at the same time, those of highest priority first.

    A parameter is left out if it is correlated above the bound with one that was picked before.
    Updates of the picked ones then hardly disturb one another.

    Args:
        priorities: (candidates,), say the size of each one's last change.
        correlations: (candidates, candidates), of which the sizes count.
        bound: the largest size of a correlation between two that are picked; from 0 to 1.
        most: how many to pick at most.

    Returns:
        The picked candidates' places, in the order in which they were picked.

    Raises:
        ConfigError: an argument is out of range, or the shapes do not fit.
    """
    order = np.asarray(priorities, np.float64)
    sizes = np.abs(np.asarray(correlations, np.float64))
    if order.ndim != 1 or sizes.shape != (len(order), len(order)):
        raise ConfigError(
            f"priorities have the shape {order.shape} and correlations {sizes.shape}; they must be "
            "(candidates,) and (candidates, candidates)"
        )
    number("bound", bound, 0, most=1)
    whole("most", most, 0)
    if not (np.isfinite(order).all() and np.isfinite(sizes).all()):
        raise ConfigError("a priority or a correlation is not finite; give constant columns 0")
    picked: list[int] = []
    is_free = np.ones(len(order), bool)
    for each in np.argsort(-order, kind="stable"):
        if len(picked) == most:
            break
        if is_free[each]:
            picked.append(int(each))
            is_free &= sizes[each] <= bound
    return np.array(picked, np.intp)
