"""The memory of a dense vector: the caller's own, malt's, and what DLPack lends."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import run_job

import malt

DTYPES = ["float32", "float64", "int32", "int64"]
# Older NumPy takes all memory from DLPack for read-only (numpy/numpy#28632).
DLPACK_IS_WRITEABLE = np.lib.NumpyVersion(np.__version__) >= "2.2.5"


class Lent:
    """NumPy memory that is offered through DLPack and nothing else."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def address(array: np.ndarray[Any, Any]) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (1,), (3, 5), (2, 3, 4), ()])
def test_vector_is_the_callers_array_itself(alone: None, dtype: str, shape: tuple[int]) -> None:
    w = np.ones(shape, dtype=dtype)
    v = malt.vector(w)
    assert v.array is w
    assert len(v) == w.size
    assert v.dtype == w.dtype


def test_contiguous_part_of_a_larger_array_is_shared_in_place(alone: None) -> None:
    whole = np.arange(20, dtype=np.float64).reshape(5, 4)
    v = malt.vector(whole[1:3])
    v.array[:] = -1
    assert whole[1:3].tolist() == [[-1] * 4] * 2
    assert whole[3].tolist() == [12, 13, 14, 15]


def test_several_arrays_are_one_vector(alone: None) -> None:
    parts = [np.zeros((2, 3), dtype=np.float32), np.zeros(5, dtype=np.float32)]
    v = malt.vector(parts)
    assert len(v) == 11
    assert [address(a) for a in v.array] == [address(a) for a in parts]


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        (lambda w: [w, w], ("data[0]", "data[1]")),
        (lambda w: [np.zeros(3, w.dtype), w[4:], w[:5]], ("data[1]", "data[2]")),
        (lambda w: [w, np.zeros(3, w.dtype), w[3:4]], ("data[0]", "data[2]")),
    ],
)
def test_arrays_that_share_memory_are_refused_by_their_places(
    alone: None, pieces: Any, names: tuple[str, str]
) -> None:
    with pytest.raises(malt.ConfigError, match=r"share memory.*folded twice") as refused:
        malt.vector(pieces(np.ones(8)))
    assert all(name in str(refused.value) for name in names)


def test_arrays_that_follow_one_another_in_memory_share_none(alone: None) -> None:
    w = np.ones(8)
    assert len(malt.vector([w[4:], w[:4]])) == 8


@pytest.mark.parametrize(("shape", "expected"), [((3, 4), (3, 4)), (5, (5,)), ((2, 2), (2, 2))])
def test_shape_gives_zeros_in_memory_of_malts_own(
    alone: None, shape: Any, expected: tuple[int]
) -> None:
    v = malt.vector(shape)
    assert (v.array.shape, v.array.dtype, v.array.any()) == (expected, np.float32, False)
    v.array[...] = 3
    assert v.array.sum() == 3 * len(v)


@pytest.mark.parametrize("dtype", DTYPES)
def test_own_memory_has_the_dtype_asked_for(alone: None, dtype: str) -> None:
    assert malt.vector((2, 2), dtype=dtype).array.dtype == np.dtype(dtype)


def test_own_memory_outlives_vector_and_job() -> None:
    with malt.init():
        array = malt.vector((3, 4)).array
        array[:] = 7
    assert array.tolist() == [[7.0] * 4] * 3
    array += 1
    assert array.sum() == 96


def test_callers_memory_is_kept_as_long_as_the_vector(alone: None) -> None:
    v = malt.vector(np.full(100_000, 3.0))
    np.full(100_000, 9.0)  # would come to lie there, had the array been let go
    assert v.array[0] == v.array[-1] == 3.0


def test_dlpack_memory_is_shared(alone: None) -> None:
    w = np.arange(6, dtype=np.float64).reshape(2, 3)
    if not DLPACK_IS_WRITEABLE:
        with pytest.raises(malt.ConfigError, match=r"a Lent is read-only .*NumPy before 2\.2\.5"):
            malt.vector(Lent(w))
        return
    v = malt.vector(Lent(w))
    assert (address(v.array), v.array.shape) == (address(w), (2, 3))
    v.array[1, 2] = -5
    assert w[1, 2] == -5


def test_dlpack_memory_in_a_list_is_shared(alone: None) -> None:
    parts = [np.zeros(3, dtype=np.float32), np.ones(2, dtype=np.float32)]
    v = malt.vector([Lent(parts[0]) if DLPACK_IS_WRITEABLE else parts[0], parts[1]])
    assert [address(a) for a in v.array] == [address(a) for a in parts]


def test_memory_of_a_torch_tensor_is_shared(alone: None) -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.zeros(3, 4), torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))):
        v = malt.vector(tensor)
        assert address(v.array) == tensor.data_ptr()
        v.array[...] = 2
        assert bool((tensor == 2).all())


def test_folds_write_into_the_callers_memory_of_every_kind(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        f"DLPACK_IS_WRITEABLE = {DLPACK_IS_WRITEABLE}"
        """
class Lent:
    def __init__(self, array): self.array = array
    def __dlpack__(self, **options): return self.array.__dlpack__(**options)
    def __dlpack_device__(self): return self.array.__dlpack_device__()
malt.init()
fill = np.arange(1, 25, dtype=np.float32) * (rank + 1)
flat, cube = fill.copy(), fill.reshape(2, 3, 4).copy()
pair, lent = [fill[:5].copy(), fill[5:].reshape(19, 1).copy()], fill.copy()
own = malt.vector((4, 6))
own.array[:] = fill.reshape(4, 6)
through_dlpack = malt.vector(Lent(lent) if DLPACK_IS_WRITEABLE else lent)
for v in (malt.vector(flat), malt.vector(cube), malt.vector(pair), through_dlpack, own):
    v.scatter()
    v.gather(malt.REPLACE, staleness=0)
tell(got=[flat, cube.ravel(), np.concatenate([p.ravel() for p in pair]), lent, own.array.ravel()])
malt.barrier()
""",
    )
    for rank, arrays in enumerate(result.each("got")):
        for array in arrays:
            np.testing.assert_array_equal(array, np.arange(1, 25) * (2 - rank))


def test_ctypes_pointer_taken_before_stays_the_vectors(tmp_path: Path) -> None:
    """A program in another language may keep the address: gather writes there, and nowhere else."""
    result = run_job(
        tmp_path,
        2,
        """
import ctypes
malt.init()
w = np.zeros(3)
there = ctypes.cast(w.ctypes.data, ctypes.POINTER(ctypes.c_double))
v = malt.vector(w)
for r in range(3): there[r] = rank + 1.0
v.scatter()
v.gather(malt.SUM, staleness=0)
tell(there=there[:3])
malt.barrier()
""",
    )
    assert result.each("there") == [[3.0] * 3] * 2
    assert ctypes.sizeof(ctypes.c_double) == 8
