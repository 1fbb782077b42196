"""Values that go to other hosts without pickle."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from malt._errors import ConfigError, DamagedError
from malt._messages import values

Pair = namedtuple("Pair", "one two")


def again(value: object) -> Any:
    return values.unpack([memoryview(bytes(part)) for part in values.pack(value, "it")])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2**200,
        0.1,
        -0.0,
        float("inf"),
        1 + 2j,
        "text \ud800",
        b"\x00\xff",
        (),
        [1, (2, [None])],
        {"a": 1, (1, "b"): [2], None: {}},
    ],
)
def test_plain_values_arrive_as_they_are(value: object) -> None:
    found = again(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(20)[::-3],
        np.zeros((0, 4), np.float32),
        np.array(7, np.int16),
        np.array([True, False]),
        np.array(["a", "bc"]),
        np.array([b"a", b"bc"]),
        np.array([], "U"),
        np.array([1 + 2j], np.complex64),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.arange(3, dtype=">i4"),
    ],
)
def test_arrays_arrive_as_they_are_and_cannot_be_written_to(array: Any) -> None:
    found = again([array])[0]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)
    if array.ndim > 1:
        assert found.flags.f_contiguous == array.flags.f_contiguous
    if array.size:
        with pytest.raises(ValueError, match="read-only"):
            found[...] = 0


def test_scalars_keep_their_dtype() -> None:
    found = again((np.float32(0.1), np.int8(-1), np.bool_(True), np.str_("a")))
    assert [type(each) for each in found] == [np.float32, np.int8, np.bool_, np.str_]
    assert found == (np.float32(0.1), np.int8(-1), np.True_, np.str_("a"))


def test_sparse_matrices_and_tensors_arrive() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.random(20, 30, 0.1, format="csr", random_state=0)
    assert (again(matrix) != matrix).nnz == 0
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(again(tensor), tensor)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        Pair(1, 2),
        {1, 2},
        np.array([object()]),
        np.zeros(2, [("a", int)]),
        np.arange(2).view(np.recarray),
        np.ma.masked_array([1], [True]),
        [{"a": object()}],
    ],
)
def test_other_objects_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="it cannot be sent"):
        values.pack(value, "it")


def test_parameters_are_no_tensors() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="Parameter is no array"):
        values.pack(torch.nn.Parameter(torch.ones(2)), "it")


def test_indices_outside_of_a_matrix_are_damage() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    parts = values.pack(sparse.csr_matrix(np.eye(2)), "it")
    parts[2] = np.array([0, 9], np.int32).tobytes()
    with pytest.raises(DamagedError, match="indices must be < 2"):
        values.unpack(parts)


@pytest.mark.parametrize(
    "pointers",
    [
        [0, 10**9, 0],  # of no elements, as SciPy counts them
        [0, 4, 0],
        [0, 10**9, -1],
        [0, 2**62 + 2**61, -(2**62), 4],  # whose differences overflow
        [0, 1, 3, 9],
        [1, 2, 4],
    ],
)
def test_pointers_outside_of_a_matrix_are_damage(pointers: list[int]) -> None:
    """SciPy's own check lets them pass, and its product with a vector reads there."""
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix((len(pointers) - 1, 4))
    matrix.data, matrix.indices = np.ones(4), np.array([0, 1, 2, 3], np.int32)
    matrix.indptr = np.array(pointers, np.int64)
    parts = values.pack(matrix, "it")
    with pytest.raises(DamagedError):
        values.unpack(parts)


def test_endless_lists_are_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ConfigError, match="deep"):
        values.pack(value, "it")


@pytest.mark.parametrize(
    "parts",
    [
        [b"{"],
        [b"\xff"],
        [b'["no such kind"]'],
        [b'["array"]'],
        [b'["array","<f8",[2],"C",1]', b"1234567"],
        [b'["array","<f8",[2],"C",1]'],
        [b'["array","|O",[1],"C",1]', b"12345678"],
        [b'["array","<f8",[2],"C",0]'],
        [b'["array","<f8",[3],"C",1]', bytes(16)],
        [b'["dict",[["list"],1]]'],
        [b"[" * 100_000],
        [b'["array","<f8",[1000000000000],"C",1]', b""],
        [b'["scalar",", 4",[],"C",1]', bytes(4)],
        [b'["complex",1' + b"0" * 400 + b",0]"],
    ],
)
def test_damaged_values_are_told(parts: list[bytes]) -> None:
    with pytest.raises(DamagedError):
        values.unpack(parts)
