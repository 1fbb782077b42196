"""GPU arrays for tests, over the CUDA driver alone: the real one or tests/fake_cuda."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray


class DeviceArray:
    """An array in contiguous memory of a device, freed when the object is deleted.

    Its memory belongs to the device's primary context. The values are undefined at first.
    `address` is where it begins, an integer. Any thread may use it.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: DTypeLike, device: int = 0) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.device = device
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.address = 0  # of an empty array
        if self.nbytes:
            address = ctypes.c_uint64()
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.nbytes))
            self.address = address.value

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
        # No stream: set() and get() have ended when they return.
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def set(self, values: ArrayLike) -> DeviceArray:
        """Copies values of this shape, or one for all elements, to the device. Returns self."""
        host = np.empty(self.shape, self.dtype)
        host[...] = values
        if self.nbytes:
            size = ctypes.c_size_t(self.nbytes)
            address = ctypes.c_uint64(self.address)
            self._call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(host.ctypes.data), size)
            # A copy from pageable memory may return before it has arrived.
            self._call("cuCtxSynchronize")
        return self

    def get(self) -> NDArray[Any]:
        """The values, copied to the host. Waits for what all streams have been given so far."""
        host = np.empty(self.shape, self.dtype)
        if self.nbytes:
            size = ctypes.c_size_t(self.nbytes)
            address = ctypes.c_uint64(self.address)
            self._call("cuCtxSynchronize")
            self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(host.ctypes.data), address, size)
        return host

    def fill(self, byte: int) -> DeviceArray:
        """Set each byte, on the default stream, behind what it has. Does not wait. Returns self."""
        size = ctypes.c_size_t(self.nbytes)
        address = ctypes.c_uint64(self.address)
        self._call("cuMemsetD8Async", address, ctypes.c_ubyte(byte), size, ctypes.c_void_p())
        return self

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            address, self.address = ctypes.c_uint64(self.address), 0
            # It fails if the driver has shut down or the context is lost: the memory is gone too.
            with contextlib.suppress(RuntimeError):
                self._call("cuMemFree_v2", address)

    def _call(self, function: str, *arguments: Any) -> None:
        _in_context(self.device, function, *arguments)


class Part:
    """`count` elements of a flat DeviceArray from the one at `begin` on, in the same memory."""

    def __init__(self, whole: DeviceArray, begin: int, count: int) -> None:
        self.whole, self.begin, self.shape = whole, begin, (count,)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        whole = self.whole.__cuda_array_interface__
        address = self.whole.address + self.begin * self.whole.dtype.itemsize
        return {**whole, "shape": self.shape, "data": (address, False)}


def on_gpu(values: ArrayLike, device: int = 0) -> DeviceArray:
    """An array with these values."""
    host = np.asarray(values)
    return DeviceArray(host.shape, host.dtype, device).set(host)


def free_bytes(device: int = 0) -> int:
    """How much memory of a GPU is free."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _in_context(device, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def fake() -> ctypes.CDLL:
    """The driver, for the functions of fake_cuda.hpp, which only the fake one has."""
    driver = _driver()
    for function in (driver.fake_cuda_calls, driver.fake_cuda_registered):
        function.restype = ctypes.c_uint64
    return driver


@functools.cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    result = driver.cuInit(ctypes.c_uint(0))
    if result:
        raise RuntimeError(f"cuInit failed with {result}")
    return driver


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    """The device's primary context, which is retained until the process ends."""
    context = ctypes.c_void_p()
    _check("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
    return context


def _in_context(device: int, function: str, *arguments: Any) -> None:
    _check("cuCtxPushCurrent_v2", _context(device))
    try:
        _check(function, *arguments)
    finally:
        _check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _check(function: str, *arguments: Any) -> None:
    result = getattr(_driver(), function)(*arguments)
    if result:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(ctypes.c_int(result), ctypes.byref(name))
        raise RuntimeError(f"{function} failed with {(name.value or b'').decode()} ({result})")
