"""Objects as bytes and buffers, by pickle's protocol 5: arrays are buffers, and are not pickled.

Only processes of one pool exchange these, over sockets and memory that have no name.
"""

from __future__ import annotations

import io
import marshal
import pickle
import types
import warnings
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np

_SCALARS = frozenset({int, float, complex, str, bytes, bool, type(None)})
_MOST_ITEMS = 64  # of a container that is looked through
_MOST_DEPTH = 4
_REPEATABLE = 2  # marshal's version without references, which depend on what else refers to a thing

_clones_tensors = False


def pack(value: object) -> list[bytes | memoryview]:
    """Return the pickle of an object, then the buffers that it refers to."""
    return pack_known(value, is_plain(value))


def pack_known(value: object, plain: bool) -> list[bytes | memoryview]:
    """`pack` an object of which is_plain() has said whether it is plain."""
    buffers: list[pickle.PickleBuffer] = []
    if plain:  # several times as fast as cloudpickle
        head = pickle.dumps(value, 5, buffer_callback=buffers.append)
    else:
        file = io.BytesIO()
        _Pickler(file, 5, buffer_callback=buffers.append).dump(value)
        head = file.getvalue()
    return [head, *(buffer.raw() for buffer in buffers)]


def unpack(parts: Sequence[bytes | memoryview], *, clones_tensors: bool = True) -> Any:
    """Return the object; its arrays are views of the buffers.

    NumPy does not let anybody write to such an array. PyTorch has no such thing, so tensors are
    copies, unless `clones_tensors` is False: then the buffers must be memory that may be written.
    """
    global _clones_tensors
    _clones_tensors = clones_tensors
    return pickle.loads(parts[0], buffers=parts[1:])


def is_plain(value: object, depth: int = 0) -> bool:
    """Return whether pickle does with an object what cloudpickle would."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is np.ndarray or issubclass(kind, np.generic):
        return not value.dtype.hasobject  # type: ignore[attr-defined]
    if kind in (tuple, list, dict) and depth < _MOST_DEPTH and len(value) <= _MOST_ITEMS:  # type: ignore[arg-type]
        items = (*value, *value.values()) if isinstance(value, dict) else value
        return all(is_plain(item, depth + 1) for item in items)  # type: ignore[attr-defined]
    return False


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Also knows tensors and Arrow's columns, which by themselves are pickled byte by byte."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is types.CodeType:  # with its file's name, which cloudpickle leaves out
            return marshal.loads, (marshal.dumps(value, _REPEATABLE),)
        package = kind.__module__.partition(".")[0]
        if package == "torch" and _is_simple_tensor(value):
            import torch

            if value.dtype == torch.bfloat16:  # NumPy does not know it
                return _tensor, (value.contiguous().view(torch.int16).numpy(), value.dtype)
            return _tensor, (value.contiguous().numpy(), value.dtype)
        if package == "pyarrow" and (reduced := _reduce_arrow(value)) is not None:
            return reduced
        return super().reducer_override(value)


def _is_simple_tensor(value: Any) -> bool:
    import torch

    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.requires_grad
        and not value.is_quantized
        and not value.is_conj()
        and not value.is_neg()
    )


def _tensor(array: Any, dtype: Any) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    if tensor.dtype != dtype:
        tensor = tensor.view(dtype)
    return tensor.clone() if _clones_tensors else tensor


def _reduce_arrow(value: Any) -> Any:
    """Reduce Arrow's columns to its own stream of bytes, which has of a slice just its rows."""
    import pyarrow

    if isinstance(value, pyarrow.Table):
        return _arrow_table, (_arrow_stream(value),)
    if isinstance(value, pyarrow.Array | pyarrow.ChunkedArray):
        table = pyarrow.table({"": value})
        return _arrow_column, (_arrow_stream(table), isinstance(value, pyarrow.Array))
    return None


def _arrow_stream(table: Any) -> pickle.PickleBuffer:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pickle.PickleBuffer(sink.getvalue())


def _arrow_table(stream: Any) -> Any:
    import pyarrow

    return pyarrow.ipc.open_stream(pyarrow.py_buffer(stream)).read_all()


def _arrow_column(stream: Any, is_array: bool) -> Any:
    column = _arrow_table(stream).column(0)
    if not is_array:
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
