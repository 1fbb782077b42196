"""The factors while they are trained: one block of memory, alone or the same on all ranks."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt

from malt import _vectors
from malt._core_import import SUM, RatingBlocks, Vector

Floats = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]

_LINE_FLOATS = 16  # a cache line


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
        """Of the memory that it takes."""
        return sum(shape) * (_stride(rank) + biased)

    def wake(self, seen: tuple[npt.NDArray[np.bool_], ...], spread: float, seed: list[int]) -> None:
        """Draw those of the rows seen that are zero, which would stay so."""
        random = np.random.default_rng(seed)
        for rows, is_seen in zip(self.rows, seen, strict=True):
            new = is_seen & ~rows.any(axis=1)
            rows[new] = random.normal(0, spread, (int(new.sum()), rows.shape[1]))

    def train(self, blocks: RatingBlocks, **how: Any) -> float:
        """What RatingBlocks.train() does with these arrays, and returns."""
        return blocks.train(*self._padded, *self.biases, **how)


def _stride(rank: int) -> int:
    return -(-rank // _LINE_FLOATS) * _LINE_FLOATS


def aligned_zeros(elements: int) -> Floats:
    """They begin at a cache line."""
    raw = np.zeros(elements + _LINE_FLOATS, np.float32)
    skip = -raw.ctypes.data // 4 % _LINE_FLOATS
    return raw[skip : skip + elements]


class Exchange:
    """Makes one model of those that the ranks trained on different ratings. Collective.

    Since the last exchange rank r has moved a row by d_r, over n_r ratings. To average rows would
    throw away most of what a rank has learnt about a user whom it alone knows; to sum the
    differences (Petuum, Yahoo LDA) overshoots where a row has so many ratings that each rank alone
    goes all the way to where they pull it. Both are ends of one rule: if n steps leave exp(-h n) of
    a row's error, with h = rate * (curvature + l2), then all ranks' steps one after the other would
    leave exp(-h sum n_r), so the row moves by

        sum d_r * (1 - exp(-h sum n_r)) / sum (1 - exp(-h n_r))

    which is the sum where ratings are few, a rank's own move where no other has any, and the mean
    where they are many.

    Args:
        factors: what is trained, in the vector's memory and the same on all ranks.
        vector: over that memory.
        scales: by which users' and items' differences are multiplied; see scales_of().
    """

    def __init__(self, factors: Factors, vector: Vector, scales: tuple[Floats, ...]) -> None:
        self._factors = factors
        self._vector = vector
        self._scales = scales
        self._base = factors.memory.copy()  # what all ranks have had since the last exchange

    def __call__(self) -> None:
        """Bring all ranks' differences together; what is no longer finite stays so."""
        factors = self._factors
        with np.errstate(over="ignore", invalid="ignore"):
            factors.memory -= self._base
            for rows, biases, scale in zip(factors.rows, factors.biases, self._scales, strict=True):
                rows *= scale[:, None]
                biases *= scale[: len(biases)]
            self._vector.allreduce(SUM)
            factors.memory += self._base
        self._base[:] = factors.memory


def scales_of(steps: tuple[Sums, Sums]) -> tuple[tuple[Floats, ...], tuple[Any, ...]]:
    """What Exchange multiplies rows by, and which rows any rank has ratings of. Collective.

    Args:
        steps: h * n_r of this rank's users and items, from one exchange to the next.
    """
    mine = np.concatenate(steps)
    with contextlib.closing(sums(2 * len(mine))) as vector:
        together, parts = np.split(summed(vector, np.concatenate([mine, -np.expm1(-mine)])), 2)
    seen = together > 0
    scales = np.ones(len(mine), np.float32)
    scales[seen] = -np.expm1(-together[seen]) / parts[seen]
    users = len(steps[0])
    return (scales[:users], scales[users:]), (seen[:users], seen[users:])


def sums(elements: int) -> Vector:
    """For summed(). Collective."""
    return _vectors.vector((elements,), dtype=np.float64)


def summed(vector: Vector, values: Sums) -> Sums:
    """The sums of the ranks' values. Collective."""
    vector.array[:] = values
    vector.allreduce(SUM)
    total: Sums = vector.array.copy()
    return total
