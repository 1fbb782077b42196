"""Objects as bytes and buffers without pickle, for ranks on other hosts: arrays, and plain values.

The first part is JSON, in which a number, a text, a truth value or None stands for itself, and
anything else for a list whose first item names its kind. The other parts are the memory of arrays.
To read such parts runs no code that the sender chooses.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from malt._errors import ConfigError, DamagedError
from malt._npy import check_compressed

_KINDS = "biufcSUmM"  # of dtypes: all but objects and records
_DTYPE = re.compile(rf"[<>|][{_KINDS}][0-9]{{1,9}}(\[\w+\])?")  # as dtype.str has them
_MATRICES = ("csr_matrix", "csr_array")
_MOST_DEPTH = 100

Parts = list[bytes | memoryview]

# By the kind of a dtype: the least dtype of a sum. Those of integers are numpy.sum's.
_OF_SUM: dict[str, np.dtype[Any]] = {
    "b": np.dtype(np.int64),
    "i": np.dtype(np.int64),
    "u": np.dtype(np.uint64),
    "f": np.dtype(np.float32),
}


def dtype_of_sum(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values of this one are added up, so that few are too large."""
    wide = _OF_SUM.get(dtype.kind, dtype)
    return wide if dtype.itemsize < wide.itemsize else dtype


def pack(value: object, what: str) -> Parts:
    """Return the parts of an object; `what` names it in the error.

    Raises:
        malt.ConfigError: something in it is of another kind.
    """
    buffers: Parts = []
    try:
        head = json.dumps(_describe(value, buffers, 0), separators=(",", ":"))
    except (TypeError, ValueError) as error:  # an int of more digits than Python writes
        raise ConfigError(f"{what} cannot be sent to the ranks of a job: {error}") from error
    return [head.encode(), *buffers]


def unpack(parts: Sequence[bytes | memoryview]) -> Any:
    """Return the object; its arrays are views of the parts.

    Raises:
        DamagedError: the parts are of no object.
    """
    try:
        return _build(json.loads(bytes(parts[0])), parts)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise DamagedError(f"a message of another rank is damaged: {error!r}") from error


def _describe(value: object, buffers: Parts, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if depth > _MOST_DEPTH:
        raise TypeError(f"it is nested more than {_MOST_DEPTH} deep")
    if isinstance(value, tuple | list) and kind in (tuple, list):
        return [kind.__name__, *(_describe(each, buffers, depth + 1) for each in value)]
    if isinstance(value, dict) and kind is dict:
        items = value.items()
        return ["dict", *([_describe(each, buffers, depth + 1) for each in item] for item in items)]
    if isinstance(value, complex) and kind is complex:
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes) and kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, np.ndarray) and kind is np.ndarray:
        return ["array", *_describe_array(value, buffers)]
    if isinstance(value, np.generic):
        return ["scalar", *_describe_array(np.asarray(value), buffers)]
    package = kind.__module__.partition(".")[0]
    if package == "torch" and (array := _array_of(value)) is not None:
        return ["tensor", *_describe_array(array, buffers)]
    if package == "scipy" and kind.__name__ in _MATRICES:
        csr: Any = value
        arrays = [_describe_array(each, buffers) for each in (csr.data, csr.indices, csr.indptr)]
        return [kind.__name__, list(map(int, csr.shape)), *arrays]
    raise TypeError(
        f"{kind.__module__}.{kind.__qualname__} is no array, number or text, nor a tuple, list or "
        "dictionary of these; numpy.asarray(), tuple(), dict() or .tocsr() make one of it"
    )


def _describe_array(array: Any, buffers: Parts) -> list[Any]:
    if array.dtype.kind not in _KINDS or array.dtype.hasobject:
        raise TypeError(
            f"an array of dtype {array.dtype} is not one of numbers or text; .astype(float) "
            "makes numbers of it"
        )
    columns = array.flags.f_contiguous and not array.flags.c_contiguous
    flat = array.reshape(-1, order="F" if columns else "C")
    buffers.append(np.ascontiguousarray(flat).view(np.uint8).data if flat.nbytes else b"")
    return [array.dtype.str, list(array.shape), "F" if columns else "C", len(buffers)]


def _array_of(tensor: Any) -> Any:
    """Return a CPU tensor's array; None if NumPy has none for it, or it is a Parameter."""
    if type(tensor).__name__ != "Tensor":
        return None
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError, AttributeError):
        return None


def _build(told: Any, parts: Sequence[bytes | memoryview]) -> Any:
    if not isinstance(told, list):
        return told
    kind, *items = told
    if kind == "tuple":
        return tuple(_build(item, parts) for item in items)
    if kind == "list":
        return [_build(item, parts) for item in items]
    if kind == "dict":
        return {_build(key, parts): _build(value, parts) for key, value in items}
    if kind == "complex":
        return complex(*items)
    if kind == "bytes":
        return base64.b64decode(items[0])
    if kind == "array":
        return _build_array(items, parts)
    if kind == "scalar":
        return _build_array(items, parts)[()]
    if kind == "tensor":
        import torch

        return torch.from_numpy(_build_array(items, parts).copy())  # which has no read-only ones
    if kind in _MATRICES:
        from scipy import sparse

        shape, *arrays = items
        data, indices, pointers = (_build_array(each, parts) for each in arrays)
        matrix = getattr(sparse, kind)((data, indices, pointers), shape=tuple(shape))
        check_compressed(matrix)
        return matrix
    raise ValueError(f"an object of kind {kind!r}")


def _build_array(told: Any, parts: Sequence[bytes | memoryview]) -> Any:
    name, shape, order, part = told
    if not _DTYPE.fullmatch(name) or (dtype := np.dtype(name)).itemsize == 0:
        raise ValueError(f"an array of dtype {name!r}")
    if not part > 0:
        raise ValueError(f"part {part}")
    if len(parts[part]) == 0:  # which frombuffer() does not take
        return np.empty(0, dtype).reshape(shape, order=order)
    return np.frombuffer(parts[part], dtype).reshape(shape, order=order)
