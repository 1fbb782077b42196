"""Arrays in the memory of a GPU: where they are, and on which stream their program works."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from malt._arguments import variable
from malt._errors import ConfigError

DTYPES = ("float32", "float64", "int32", "int64")


def device_slots() -> str:
    """Return where the slots of vectors on GPUs are to be: "auto", "ipc", "host", or "" as auto."""
    return variable("MALT_DEVICE_SLOTS")


def is_on_gpu(data: Any) -> bool:
    """Return whether `data` is an array in the memory of a GPU."""
    if _is_torch(data):
        return bool(data.is_cuda)  # a tensor that requires gradients refuses the interface
    return hasattr(data, "__cuda_array_interface__")


class DeviceArrays:
    """The arrays that make one vector.

    Attributes:
        dtype: theirs.
        places: the address and the number of elements of each.

    Raises:
        ConfigError: an array cannot be shared, or they differ in dtype.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self._given = list(given)
        faces = [_interface(array) for array in self._given]
        for array, face in zip(self._given, faces, strict=True):
            _check(array, face)
        kinds = sorted({np.dtype(face["typestr"]).name for face in faces})
        if len(kinds) != 1:
            raise ConfigError(f"the arrays of one vector have one dtype, not {', '.join(kinds)}")
        self.dtype = np.dtype(kinds[0])
        self.places = [(face["data"][0], _count(face)) for face in faces]

    def stream(self) -> int:
        """Return the handle of the stream on which the calling thread works.

        Raises:
            ConfigError: an array is no longer where it was.
        """
        for index, (array, place) in enumerate(zip(self._given, self.places, strict=True)):
            address = array.data_ptr() if _is_torch(array) else _interface(array)["data"][0]
            if address != place[0]:
                raise ConfigError(
                    f"array {index} (counted from 0) of the vector has moved to other memory "
                    "(resize_(), .data = ..., .to()), so what is gathered would not reach it: "
                    "change it in place, or make the vector anew"
                )
        return _stream_of(self._given[0])


def _is_torch(data: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def _stream_of(array: Any) -> int:
    if _is_torch(array):
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(cupy.cuda.get_current_stream().ptr)
    return int(_interface(array).get("stream") or 0)  # the legacy default stream


def _interface(array: Any) -> dict[str, Any]:
    """Return the array's __cuda_array_interface__ (Numba's documentation describes it)."""
    if _is_torch(array):
        if array.dtype.is_floating_point and array.element_size() == 2:
            raise ConfigError(
                f"dtype is {array.dtype}; a vector has {', '.join(DTYPES)}: keep the weights in "
                "float32, compute under torch.autocast, and send fewer bytes by codec=malt.FLOAT16"
            )
        array = array.detach()
    if type(array).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise ConfigError(
            "JAX's arrays cannot be changed in place, so nothing could be gathered into one: use "
            "malt.jax.average(tree)"
        )
    face: dict[str, Any] = array.__cuda_array_interface__
    return face


def _check(array: Any, face: dict[str, Any]) -> None:
    kind = np.dtype(face["typestr"])
    if kind.name not in DTYPES:
        raise ConfigError(
            f"dtype is {kind}; a vector has {', '.join(DTYPES)}: convert the array first, then use "
            "that one in the loop"
        )
    if not kind.isnative:
        raise ConfigError(
            f"dtype {kind} has foreign byte order; convert the array first, then use that one in "
            "the loop"
        )
    if face["data"][1]:
        raise ConfigError(
            f"the memory of the {type(array).__name__} is read-only, so nothing could be gathered "
            "into it"
        )
    if _count(face) == 0:
        raise ConfigError(f"the array of shape {face['shape']} has no element")
    strides = face.get("strides")
    if strides is not None and tuple(strides) != _dense_strides(face["shape"], kind.itemsize):
        raise ConfigError(
            f"an array of shape {face['shape']} is not contiguous (strides {tuple(strides)}): make "
            "the vector over a contiguous one (.contiguous()), and use that in the loop"
        )


def _count(face: dict[str, Any]) -> int:
    return int(np.prod(face["shape"], dtype=np.int64))


def _dense_strides(shape: Sequence[int], item: int) -> tuple[int, ...]:
    strides = []
    for extent in reversed(shape):
        strides.append(item)
        item *= extent
    return tuple(reversed(strides))
