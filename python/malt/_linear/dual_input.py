"""The input of the dual solver (dual.py): a rank's rows, and where an ascent begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._core_import import dealt_list_length
from malt._linear.problems import Look
from malt._pool import forked

Array = npt.NDArray[Any]


class Dealt(NamedTuple):
    """Memory that the ranks of one host share, to deal the rows out anew in each sweep."""

    rows: Array
    lists: Array

    @staticmethod
    def of(rows: int, ranks: int, dtype: Any) -> Dealt:
        length = ranks * dealt_list_length(rows, ranks)
        return Dealt(
            forked.shared_zeros((4 * rows,), dtype), forked.shared_zeros((length,), np.uint32)
        )


class Rows(NamedTuple):
    """This rank's rows; or all rows, if the ranks share them, and some are dealt to each."""

    examples: Any
    targets: Array
    weights: Array | None = None
    dealt: Dealt | None = None
    matrix: Any = None  # of the examples


class Start(NamedTuple):
    """The beginning of an ascent: an alpha for each row, and the intercept."""

    alphas: Array
    intercept: float


class Output(NamedTuple):
    """One of a model's outputs: a problem of its own over the same examples."""

    rows: Rows
    start: Start | None = None
    watch: Callable[[Look], object] = lambda _: None


def part_of(rows: int, rank: int, ranks: int) -> slice:
    """Return the rows of which a rank has the alphas, where ranks share them."""
    return slice(rows * rank // ranks, rows * (rank + 1) // ranks)
