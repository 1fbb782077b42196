"""`v.array = x` copies x into the memory that is exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import malt


@pytest.mark.parametrize("data", [np.zeros(3, np.float32), 3], ids=["given", "own"])
def test_an_assignment_copies_into_the_vectors_memory(alone: None, data: Any) -> None:
    v = malt.vector(data)
    w = v.array
    v.array = w - np.array([1.0, 2.0, 3.0])  # float64
    assert v.array is w
    np.testing.assert_array_equal(w, [-1, -2, -3])
    v.array += 1
    v.array = v.array * 2
    np.testing.assert_array_equal(w, [0, -2, -4])
    v.array = 7
    np.testing.assert_array_equal(w, [7, 7, 7])


def test_an_assignment_to_one_of_several_arrays_copies(alone: None) -> None:
    w, b = np.zeros(3), np.zeros(2)
    v = malt.vector([w, b])
    for i in range(2):
        v.array[i] = v.array[i] + i + 1
        v.array[i] -= 1
    assert (w.tolist(), b.tolist()) == ([0, 0, 0], [1, 1])
    v.array = [w + 5, [6, 7]]
    assert (w.tolist(), b.tolist()) == ([5, 5, 5], [6, 7])
    assert v.array[0] is w
    assert v.array[1] is b


def test_a_tensor_is_assigned_too(alone: None) -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(2))
    v = malt.vector(parameter)
    v.array = parameter - 1
    assert parameter.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(2), "has shape (3,), and cannot be assigned values of shape (2,)"),
        (np.zeros((1, 3)), "cannot be assigned values of shape (1, 3)"),
        (np.float64(0.5), "has dtype int64, and cannot be assigned values of float64"),
        (None, "cannot be assigned values of object"),
        ([[1], [2, 3]], "cannot be assigned [[1], [2, 3]]"),
    ],
)
def test_values_that_do_not_fit_are_refused(alone: None, values: Any, message: str) -> None:
    v = malt.vector(np.arange(3), name="n")
    with pytest.raises(malt.ConfigError) as info:
        v.array = values
    assert str(info.value).startswith("the array of vector 'n' ")
    assert message in str(info.value)
    assert v.array.tolist() == [0, 1, 2]


def test_several_arrays_need_as_many_values(alone: None) -> None:
    v = malt.vector([np.zeros(3), np.zeros(2)], name="m")
    for values in (np.zeros(3), [np.zeros(3)], 0):
        with pytest.raises(malt.ConfigError, match="vector 'm' has 2 arrays"):
            v.array = values
    with pytest.raises(malt.ConfigError, match="array 1 of vector 'm' has shape"):
        v.array = [np.ones(3), np.ones(3)]
    assert not any(array.any() for array in v.array)
