"""In-memory training rows and the early-stopping hold-out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from malt._linear.row_sources import canonical

Array = npt.NDArray[Any]


class Given(NamedTuple):
    """One rank's X, y, and the weights of its rows' losses (None: all 1)."""

    X: Any
    y: Array
    weights: Array | None

    def split(self, fraction: float, random_state: Any, *, stratified: bool) -> tuple[Given, Given]:
        """Split the rows into those to train on and the `fraction` that is held out.

        Raises:
            ValueError: there are too few rows for both, or the held-out weights are all zero.
        """
        kept, held = (
            self._part(np.sort(rows))
            for rows in train_test_split(
                np.arange(self.X.shape[0]),
                test_size=fraction,
                random_state=random_state,
                stratify=self.y if stratified else None,
            )
        )
        if held.weights is not None and not held.weights.any():
            raise ValueError(
                f"The sample weights for validation set are all zero, of {held.X.shape[0]} rows; "
                "consider using a different random state, or a larger validation_fraction"
            )
        return kept, held

    def _part(self, rows: Array) -> Given:
        weights = None if self.weights is None else self.weights[rows]
        return Given(canonical(self.X[rows]), self.y[rows], weights)
