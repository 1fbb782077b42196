"""SendGradient: one step for each mini-batch of all ranks together.

Each rank adds up the gradients of its part of the batch, the ranks add up their sums, and all take
the same step (as Spark MLlib does: Zhang et al., "MLlib*", ICDE 2019, section III.A).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from malt._core_import import add_linear_gradient
from malt._errors import ConfigError

Array = npt.NDArray[Any]


class BatchModel:
    """Takes the place of _core.Linear, with the same options.

    Attributes:
        gradient: the batch's gradient, laid out like the weights, followed by the number of its
            examples. The ranks add it up between train() and take_step().
        steps: the number of batches so far.
    """

    def __init__(
        self,
        weights: Array,
        *,
        average: Array | None,
        squares: Array | None,
        steps: int,
        alpha: float,
        l1_ratio: float,
        learning_rate: str,
        eta0: float,
        power_t: float = 0.0,
        average_from: int = 1,
        **loss: Any,
    ) -> None:
        if learning_rate == "optimal":
            raise ConfigError(
                "learning_rate is 'optimal', which is for a step by each example; with "
                "exchange='gradient' take 'invscaling', 'constant' or 'adagrad', and eta0"
            )
        self._weights = weights
        self._average = average
        self._squares = squares
        self._l1 = alpha * l1_ratio
        self._l2 = alpha - self._l1
        self._rate = learning_rate
        self._eta0 = eta0
        self._power = power_t if learning_rate == "invscaling" else 0.0
        self._average_from = average_from
        self._loss = loss
        self.steps = steps
        self.gradient = np.zeros(weights.size + 1, weights.dtype)

    def train(self, examples: Any, first: int, last: int, *, order: Array) -> float:
        """Add the gradient of rows order[first] to order[last - 1]; return their losses' sum."""
        self.gradient[-1] += last - first
        return add_linear_gradient(
            examples, self._weights, self.gradient[:-1], first, last, order=order, **self._loss
        )

    def take_step(self) -> None:
        """Move the weights by the mean gradient of the batch, and begin another batch."""
        self.steps += 1
        count = self.gradient[-1]
        if count > 0:
            self._move(self.gradient[:-1].reshape(self._weights.shape) / count)
        self.gradient[:] = 0

    def _move(self, slopes: Array) -> None:
        weights, body = self._weights, self._weights[:-1]
        slopes[:-1] += self._l2 * body
        rate: Any = self._eta0 * self.steps**-self._power
        if self._squares is not None:
            self._squares += slopes**2
            rate = np.divide(
                self._eta0,
                np.sqrt(self._squares),
                where=self._squares > 0,
                out=np.zeros_like(weights),
            )
        weights -= rate * slopes
        if self._l1 > 0:  # the proximal step: towards 0, but not beyond
            due = (rate[:-1] if self._squares is not None else rate) * self._l1
            body[:] = np.sign(body) * np.maximum(np.abs(body) - due, 0)
        if self._average is not None and self.steps >= self._average_from:
            averaged = self.steps - self._average_from + 1
            self._average += (weights - self._average) / averaged

    def finish(self) -> bool:
        """Return whether all weights are finite."""
        return bool(np.isfinite(self._weights).all())
