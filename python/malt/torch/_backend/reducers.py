"""The vectors in which the ranks of a process group sum tensors, kept for later sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from malt._core_import import DeviceReducer, Group, Reducer, look_for_nvrtc_in
from malt._vectors.device_arrays import device_slots
from malt._vectors.nvrtc import nvrtc_folders
from malt.torch._backend.limits import time_left

_LEAST_BYTES = 64 << 10  # of a vector that takes tensors of several lengths
_MOST_KEPT = 32  # vectors between hosts, where each length has its own

_Kept = TypeVar("_Kept", Reducer, DeviceReducer)
_Key = TypeVar("_Key")


class Reducers:
    """Vectors, each made for the first sum that needs it. All ranks choose and make the same."""

    def __init__(self, group: Group, agree: Callable[[str, float], None]) -> None:
        """Keep none yet.

        Args:
            group: the ranks.
            agree: agree(what, deadline) checks that all ranks make a vector for the call `what`, as
                they wait for one another in making it without looking.
        """
        self._group = group
        self._agree = agree
        self._made = 0
        self._on_host: dict[tuple[torch.dtype, int], Reducer] = {}
        self._on_gpu: dict[tuple[torch.dtype, torch.device, int], DeviceReducer] = {}

    def on_host(self, dtype: torch.dtype, count: int, deadline: float, what: str = "") -> Reducer:
        """Return a vector that takes `count` elements.

        Args:
            dtype: of the elements.
            count: how many there are.
            deadline: the time.monotonic() until which to wait for other ranks.
            what: says which call this is, unless all ranks are known to be here.
        """
        capacity = _capacity(count, dtype) if self._group.is_one_host else count

        def make() -> Reducer:
            if what:
                self._agree(what, deadline)
            name = self._next_name()
            return Reducer(self._group, _name(dtype), capacity, name, time_left(deadline))

        return _keep(self._on_host, (dtype, capacity), make)

    def on_gpu(self, part: torch.Tensor, deadline: float, what: str) -> DeviceReducer:
        """Return a vector that takes the part, a tensor on a GPU; the rest as for on_host()."""
        capacity = _capacity(part.numel(), part.dtype)

        def make() -> DeviceReducer:
            self._agree(what, deadline)
            look_for_nvrtc_in(nvrtc_folders())
            return DeviceReducer(
                self._group,
                _name(part.dtype),
                capacity,
                self._next_name(),
                part.data_ptr(),
                device_slots(),
                time_left(deadline),
            )

        return _keep(self._on_gpu, (part.dtype, part.device, capacity), make)

    def shut(self) -> None:
        """Leave all sums, so that no rank waits for this one in them."""
        for on_host in list(self._on_host.values()):
            on_host.shut()
        for on_gpu in list(self._on_gpu.values()):  # a thread may be adding one
            on_gpu.shut()

    def drop(self) -> None:
        """Leave all sums; a later one makes its vector anew, on all ranks."""
        self.shut()
        self._on_host.clear()
        self._on_gpu.clear()

    def _next_name(self) -> str:
        self._made += 1
        return f"reducer-{self._made}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _capacity(count: int, dtype: torch.dtype) -> int:
    least: int = _LEAST_BYTES // dtype.itemsize
    return max(least, 1 << (count - 1).bit_length())


def _keep(kept: dict[_Key, _Kept], key: _Key, make: Callable[[], _Kept]) -> _Kept:
    found = kept.pop(key, None) or make()
    kept[key] = found  # the last used is the last
    if len(kept) > _MOST_KEPT:
        kept.pop(next(iter(kept))).shut()
    return found
