"""The record of a rank's work from one exchange to the next, for histories and reports."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Step(NamedTuple):
    """A rank's work from one exchange to the next. Times are seconds since 1970."""

    examples: int  # trained on so far, in all passes
    loss: float  # mean over the examples of this step
    staleness: int  # of the oldest folded update, in exchanges
    bytes_out: int  # to the other ranks, so far
    began: float
    trained: float  # the end of training, and the beginning of the exchange
    ended: float


def history_of(ranks: Sequence[Iterable[Sequence[Any]]]) -> npt.NDArray[Any]:
    """Join all ranks' steps, by their ends: a structured array of `rank` and a step's fields."""
    kinds = {int: np.int64, float: np.float64}
    of_step = typing.get_type_hints(Step)
    fields = [("rank", np.int64), *((name, kinds[kind]) for name, kind in of_step.items())]
    rows = [(rank, *step) for rank, steps in enumerate(ranks) for step in steps]
    return np.sort(np.array(rows, fields), order="ended")
