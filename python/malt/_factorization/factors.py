"""The factors while they are trained: one block of memory, alone or the same on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from malt._core_import import SUM, RatingBlocks, Vector
from malt._training.company import check_company
from malt._vectors import vectors

Floats = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]

_LINE_FLOATS = 16  # in a cache line


class Factors:
    """User rows, item rows, user biases and item biases, one after the other in `memory`.

    Rows are padded to whole cache lines with zeros, which training leaves zero.
    """

    def __init__(self, memory: Floats, shape: tuple[int, int], rank: int, biased: bool) -> None:
        self.memory = memory
        stride = _stride(rank)
        lengths = [n * stride for n in shape] + [n * biased for n in shape]
        users, items, *biases = np.split(memory, np.cumsum(lengths)[:-1])
        self._padded = users.reshape(-1, stride), items.reshape(-1, stride)
        self.rows = self._padded[0][:, :rank], self._padded[1][:, :rank]
        self.biases = biases[0], biases[1]

    @staticmethod
    def elements(shape: tuple[int, int], rank: int, biased: bool) -> int:
        """Return how many elements the memory needs."""
        return sum(shape) * (_stride(rank) + biased)

    def per_element(self, by: tuple[npt.NDArray[Any], ...]) -> npt.NDArray[Any]:
        """Return, for each element of the memory, the number of its user or item."""
        rows = [np.repeat(each, self._padded[0].shape[1]) for each in by]
        biases = [each[: len(own)] for each, own in zip(by, self.biases, strict=True)]
        return np.concatenate([*rows, *biases])

    def wake(
        self, seen: tuple[npt.NDArray[np.bool_], ...], deviation: float, seed: list[int]
    ) -> None:
        """Draw random values for seen rows that are zero; training would leave them zero."""
        random = np.random.default_rng(seed)
        for rows, is_seen in zip(self.rows, seen, strict=True):
            new = is_seen & ~rows.any(axis=1)
            rows[new] = random.normal(0, deviation, (int(new.sum()), rows.shape[1]))

    def multiply(self, by: tuple[Floats, ...]) -> None:
        """Multiply each user's row and bias by the user's number, and each item's by the item's."""
        for rows, biases, numbers in zip(self._padded, self.biases, by, strict=True):
            rows *= numbers[:, None]
            biases *= numbers[: len(biases)]

    def train(self, blocks: RatingBlocks, **how: Any) -> float:
        """Call RatingBlocks.train() with these arrays, and return its result."""
        return blocks.train(*self._padded, *self.biases, **how)


def _stride(rank: int) -> int:
    return -(-rank // _LINE_FLOATS) * _LINE_FLOATS


def aligned_zeros(elements: int) -> Floats:
    """Return zeros that begin at a cache line."""
    raw = np.zeros(elements + _LINE_FLOATS, np.float32)
    skip = -raw.ctypes.data // 4 % _LINE_FLOATS
    return raw[skip : skip + elements]


def sums(elements: int) -> Vector:
    """Make the vector for summed(). Collective."""
    return vectors.vector((elements,), dtype=np.float64)


def summed(vector: Vector, values: Sums) -> Sums:
    """Return the sums of the ranks' values. Collective."""
    vector.array[:] = values
    check_company(vector.allreduce(SUM).ranks)
    total: Sums = vector.array.copy()
    return total
