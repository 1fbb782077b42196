"""Checks of the data over which vectors are made: arrays, tensors, and shapes."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._arguments import unmasked
from malt._errors import ConfigError

DTYPES = ("float32", "float64", "int32", "int64")
_MOST_ELEMENTS = 2**57  # more than any memory holds, and their bytes still fit into 64 bits


def as_array(data: Any) -> npt.NDArray[Any]:
    """Return a NumPy array over the same memory."""
    unmasked(data)
    if isinstance(data, np.ndarray):
        array = data
    elif hasattr(data, "__dlpack__"):
        _check_tensor(data)
        try:
            array = np.from_dlpack(data.detach() if hasattr(data, "detach") else data)
        except (BufferError, RuntimeError, TypeError) as error:
            raise ConfigError(
                f"cannot share the memory of a {type(data).__name__}: {error}; only memory on the "
                "CPU can be shared so: make the vector over a copy there, and copy between it and "
                "the device around each exchange"
            ) from None
        if not array.flags.writeable:  # NumPy before 2.2.5 sees all memory from DLPack as read-only
            if not hasattr(data, "detach"):
                raise ConfigError(
                    f"the memory of a {type(data).__name__} is read-only for NumPy "
                    f"{np.__version__}, so nothing could be gathered into it: copy it into a NumPy "
                    "array (NumPy before 2.2.5 takes all memory from DLPack for read-only)"
                )
            array = data.detach().numpy()
    else:
        raise ConfigError(
            "a vector is made over a NumPy array, anything with DLPack on the CPU, a list of "
            f"those, or a shape; this is {_shown(data)}{_way_out(data)}"
        )
    if array.dtype.name not in DTYPES:
        raise ConfigError(
            f"dtype is {array.dtype}; a vector has float32, float64, int32 or int64: convert the "
            "array first (w = w.astype(np.float32)), then use that w in the loop"
        )
    if not array.dtype.isnative:
        raise ConfigError(
            f"dtype {array.dtype} has foreign byte order; convert the array first (w = "
            "w.astype(w.dtype.newbyteorder('='))), then use that w in the loop"
        )
    if not array.flags.c_contiguous:
        raise ConfigError(
            f"the array of shape {array.shape} is not contiguous (strides {array.strides}), so its "
            "memory cannot be shared; make the vector over its base, or copy it first (w = "
            "np.ascontiguousarray(w)), then use that w in the loop"
        )
    if not array.flags.writeable:
        raise ConfigError("the array is read-only, so nothing could be gathered into it; copy it")
    if array.size == 0:
        raise ConfigError(f"the array of shape {array.shape} is empty; a vector needs an element")
    return array


def _check_tensor(data: Any) -> None:
    """Raise ConfigError, with PyTorch's way out, if this is a tensor whose memory cannot do."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(data, torch.Tensor):
        return
    if data.layout != torch.strided:
        raise ConfigError(
            f"the tensor of shape {tuple(data.shape)} is sparse ({data.layout}); a vector is made "
            "over a dense one: convert it first (w = w.to_dense()), then use that w in the loop, "
            "or exchange changes of few elements by malt.sparse_vector(dim, capacity=n)"
        )
    if str(data.dtype).removeprefix("torch.") not in DTYPES:
        raise ConfigError(
            f"dtype is {data.dtype}; a vector has float32, float64, int32 or int64: convert the "
            "tensor first (w = w.float(), of a whole model model.float()), then use that w in the "
            "loop"
        )
    if not data.is_contiguous():
        raise ConfigError(
            f"the tensor of shape {tuple(data.shape)} is not contiguous (strides "
            f"{data.stride()}), so its memory cannot be shared; make the vector over its base, or "
            "copy it first (w = w.contiguous()), then use that w in the loop"
        )


def _shown(data: Any) -> str:
    text = repr(data)
    is_short = len(text) <= 50 and "\n" not in text
    return text if is_short else f"a {type(data).__name__}"


def _way_out(data: Any) -> str:
    """Say what to give instead of `data`, where that is known."""
    if _are_numbers(data):
        return ": of numbers make an array first (w = np.array(...)), then use that w in the loop"
    if isinstance(data, tuple) and data and all(isinstance(extent, int) for extent in data):
        return (
            ": in a list give arrays, not shapes ([np.zeros(shape, np.float32) for shape in "
            "shapes]), then use those in the loop"
        )
    if isinstance(data, (list, tuple, dict)):
        return ": give one flat list of arrays"
    if hasattr(data, "tocsr"):
        return (
            ": of a sparse matrix exchange its values alone (w = matrix.data, if all ranks store "
            "the same places), a dense copy (matrix.toarray()), or changes of few elements by "
            "malt.sparse_vector(dim, capacity=n)"
        )
    if hasattr(data, "to_numpy"):  # of pandas
        return ": give its values (w = data.to_numpy(np.float32)), then use that w in the loop"
    if isinstance(data, Iterator):
        return ": of a generator make a list first (list(model.parameters()))"
    if hasattr(data, "parameters"):
        return ": use malt.torch.average(model), or give list(model.parameters())"
    return ""


def _are_numbers(data: Any) -> bool:
    """Return whether `data` is a number, or nested lists of numbers."""
    return _are_numbers(data[0]) if isinstance(data, list) and data else isinstance(data, Real)


def check_apart(arrays: Sequence[npt.NDArray[Any]]) -> None:
    """Raise ConfigError if two arrays share memory, which would be folded twice."""
    order = sorted(range(len(arrays)), key=lambda i: arrays[i].ctypes.data)
    last, end = -1, 0  # of the arrays before, the one that ends last
    for i in order:
        begin = arrays[i].ctypes.data
        if end > begin:
            first, second = sorted((last, i))
            raise ConfigError(
                f"data[{first}] of shape {arrays[first].shape} and data[{second}] of shape "
                f"{arrays[second].shape} share memory, which would be folded twice; give each "
                "array once, and of overlapping views the array that has both"
            )
        if begin + arrays[i].nbytes > end:
            last, end = i, begin + arrays[i].nbytes


def as_shape(data: Any) -> tuple[int, ...] | None:
    """Return the shape if `data` is one, else None."""
    if isinstance(data, np.ndarray):
        return None
    try:
        shape = (
            tuple(operator.index(n) for n in data)
            if isinstance(data, tuple)
            else (operator.index(data),)
        )
    except TypeError:
        return None
    if any(n < 1 for n in shape) or not shape:
        raise ConfigError(f"shape is {data!r}; every extent must be at least 1")
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ConfigError(
            f"shape is {data!r}: its {math.prod(shape)} elements are larger than any memory (at "
            f"most {_MOST_ELEMENTS})"
        )
    return shape


def as_dtype(given: npt.DTypeLike) -> np.dtype[Any]:
    try:
        return np.dtype(given)
    except TypeError:
        raise ConfigError(f"dtype is {given!r}; a vector has {', '.join(DTYPES)}") from None
