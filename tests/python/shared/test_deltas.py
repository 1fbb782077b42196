"""malt/_shared/deltas.py and wire.py: differences of arrays as bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from malt._errors import ConfigError, DamagedError
from malt._shared import deltas, wire
from malt._shared.streams import Part, Streams

DTYPES = ["int32", "int64", "float32", "float64"]
LENGTHS = [1, 7, deltas.BLOCK, deltas.BLOCK + 1, 3 * deltas.BLOCK - 5]


def exchanged(array: npt.NDArray[Any], copy: npt.NDArray[Any]) -> int:
    """Add array - copy to the copy; return how many bytes that takes."""
    parts = deltas.difference(array, copy)
    assert all(len(part) <= deltas.part_bytes(array) for part in parts)
    deltas.add(deltas.changes(parts, copy), copy)
    return sum(map(len, parts))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_difference_added_to_the_copy_gives_the_array(dtype: str, length: int) -> None:
    rng = np.random.default_rng(length)
    copy = rng.integers(-9, 9, length).astype(dtype)
    for share in (0.001, 0.3, 1.0):
        array = copy + (rng.random(length) < share) * rng.integers(-9, 9, length).astype(dtype)
        exchanged(array, copy)
        assert np.array_equal(array, copy)
    assert exchanged(array, copy) == 0


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_differences_of_integers_wrap_around(dtype: str) -> None:
    limits = np.iinfo(dtype)
    array, copy = (np.array([value], dtype) for value in (limits.max, limits.min))
    exchanged(array, copy)
    assert copy[0] == limits.max


def test_few_changes_take_few_bytes_and_many_no_more_than_the_array() -> None:
    array = np.zeros(10 * deltas.BLOCK, np.int32)
    copy = array.copy()
    array[:: deltas.BLOCK] = 1
    assert exchanged(array, copy) == 10 * (16 + 8 + 8)
    array += 1
    assert exchanged(array, copy) == array.nbytes + 10 * 16


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_change_that_is_not_finite_is_refused(value: float) -> None:
    array, copy = np.zeros(40000, np.float32), np.full(40000, -3e38, np.float32)
    copy[:-1] = 0
    array[-1] = value
    with pytest.raises(ConfigError, match="element 39999 .* must be a finite number"):
        deltas.difference(array, copy)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_deltas_are_refused_and_change_nothing(seed: int) -> None:
    draw = random.Random(seed)
    array = np.zeros(40000, np.int32)
    array[[draw.randrange(40000) for _ in range(5)]] = 1
    (part,) = deltas.difference(array, np.zeros_like(array))
    heads = draw.sample(range(16), 3)
    wrong = bytes(draw.randrange(256) if at in heads else byte for at, byte in enumerate(part))
    copy = np.zeros_like(array)
    try:
        changes = deltas.changes([wrong[: draw.randrange(len(wrong) + 1)]], copy)
    except DamagedError:
        assert not copy.any()
    else:
        deltas.add(changes, copy)  # within the array: IndexError would fail the test


def test_a_message_comes_through_as_it_was_sent() -> None:
    part = Part(2, 2**40, 2**41, 6, 7, b"payload")
    message = wire.Message(wire.DELTA, np.array([1, 2**50, 3]), part)
    kind, held, arrived = wire.unpack(wire.pack(message), 3)
    assert (kind, held.tolist(), arrived) == (wire.DELTA, [1, 2**50, 3], part)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\0" * 55,
        wire.pack(wire.Message(9, np.zeros(3, np.int64), Part(0, 1, 1, 0, 1, b""))),
        wire.pack(wire.Message(wire.DELTA, np.zeros(3, np.int64), Part(0, 1, 2**63, 0, 1, b""))),
    ],
)
def test_bytes_that_are_no_message_are_refused(wrong: bytes) -> None:
    with pytest.raises(DamagedError):
        wire.unpack(wrong, 3)


def test_a_part_far_from_its_delta_is_refused_at_once() -> None:
    streams = Streams(0, 2)
    with pytest.raises(DamagedError, match="part 4,?294,?967,?294"):
        streams.arrive(1, Part(1, 1, 1, 2**32 - 2, 2**32 - 1, b""))


def test_no_delta_has_more_parts_than_it_can() -> None:
    rng = np.random.default_rng(0)
    for size in (1, deltas.BLOCK, deltas.BLOCK + 1, 5 * deltas.BLOCK):
        array = rng.random(size)
        assert len(deltas.difference(array, np.zeros(size))) <= deltas.most_parts(array)
