"""Tensors laid out one after the other in the memory of vectors, one vector for each dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from malt._core_import import AVG, SUM, Fold, Vector
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._vectors.averaging import Averaging, start_alike
from malt._vectors.progress import Progress
from malt._vectors.vectors import vector

_MOST_WORK = 10**6  # steps of NumPy's search for an element that two tensors share
_TooHardError = getattr(np, "exceptions", np).TooHardError  # NumPy 1.24 has no np.exceptions
DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class Place(NamedTuple):
    """The position of a tensor in the vector of its dtype."""

    dtype: torch.dtype
    offset: int  # elements
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Flat:
    """One vector for each dtype, with room for tensors by name.

    Making it is collective, unless there are no tensors. With `tied`, tensors over the same memory
    share one place. Without, each has its own: two Parameters have two gradients, though they share
    memory.

    Attributes:
        tensors: the given tensors.
        vectors: by dtype; their memory is MALT's own, or PyTorch's where the tensors are on a GPU.
        memory: by dtype, the same memory as a tensor of one dimension.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        averaging: Averaging,
        policy: str = "latest",
        *,
        tied: bool = True,
    ) -> None:
        self.tensors = dict(tensors)
        self._averaging = averaging
        self._places = places_of(self.tensors, tied=tied)
        counts: dict[torch.dtype, int] = {}
        for place in self._places.values():
            end = place.offset + torch.Size(place.size).numel()
            counts[place.dtype] = max(end, counts.get(place.dtype, 0))
        device = next((tensor.device for tensor in self.tensors.values()), torch.device("cpu"))
        self.vectors: dict[torch.dtype, Vector] = {}
        self.memory: dict[torch.dtype, torch.Tensor] = {}
        for dtype, count in counts.items():
            given: Any = count
            if device.type != "cpu":
                given = torch.zeros(count, dtype=dtype, device=device)
            made = vector(given, dtype=DTYPES[dtype], graph=averaging.graph, policy=policy)
            self.vectors[dtype] = made
            self.memory[dtype] = torch.from_numpy(made.array) if given is count else given

    def views(
        self, memory: Mapping[torch.dtype, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the parts of such memory, each in the shape of its tensor."""
        for name, place in self._places.items():
            part = memory[place.dtype].as_strided(place.size, place.stride, place.offset)
            yield name, part

    def start_alike(self) -> None:
        """Give the tensors the values that they have on the lowest rank. Collective."""
        with torch.no_grad():
            for name, view in self.views(self.memory):
                view.copy_(self.tensors[name])
            for each in self.vectors.values():
                start_alike(each)
            for name, view in self.views(self.memory):
                self.tensors[name].copy_(view)

    def adopt(self) -> None:
        """Make the tensors views of the vectors' memory, with the values that it has."""
        for name, view in self.views(self.memory):
            self.tensors[name].data = view

    def check_adopted(self) -> None:
        """Raise ConfigError if a tensor has been given other memory since."""
        for name, view in self.views(self.memory):
            tensor = self.tensors[name]
            if tensor.data_ptr() != view.data_ptr() or tensor.dtype != view.dtype:
                raise ConfigError(
                    f"{name} no longer lies in the memory that is exchanged: the model was moved "
                    "or converted (.to(), .half(), load_state_dict(assign=True)), or the tensor "
                    "replaced; do so before malt.torch is given the model, and change values in "
                    "place after"
                )

    def exchange(self, progress: Progress, fold: Fold = AVG) -> None:
        """Fold the other ranks' values into the vectors, as a part of a step."""
        for each in self.vectors.values():
            progress.exchange(self._averaging, each, fold)

    def allreduce(self, progress: Progress) -> None:
        """Average the vectors of all live ranks exactly, after the loop. Collective."""
        for each in self.vectors.values():
            progress.allreduce(each, AVG, last=True)

    def give(self, rank: int) -> None:
        """Give the tensors the values that they have on rank `rank`. Collective."""
        is_mine = jobs.rank() == rank
        with torch.no_grad():
            for name, view in self.views(self.memory):
                view.copy_(self.tensors[name]) if is_mine else view.zero_()
            for each in self.vectors.values():
                each.allreduce(SUM, last=True)
            for name, view in self.views(self.memory):
                self.tensors[name].copy_(view)

    def close(self) -> None:
        """Close the vectors; their memory stays as long as tensors lie in it."""
        for each in self.vectors.values():
            each.close()


def places_of(tensors: Mapping[str, torch.Tensor], *, tied: bool = True) -> dict[str, Place]:
    """Place tensors one after the other; with `tied`, tensors over the same memory share a place.

    Raises:
        ConfigError: a tensor cannot lie in a vector, or two share a part of their memory.
    """
    _check_apart(tensors)
    _check_one_device(tensors)
    places: dict[str, Place] = {}
    ends: dict[torch.dtype, int] = {}
    named: dict[int, str] = {}  # by address
    for name, tensor in tensors.items():
        offset = ends.get(tensor.dtype, 0)
        place = Place(tensor.dtype, offset, tuple(tensor.shape), _dense_stride(tensor))
        first = named.setdefault(tensor.data_ptr(), name)
        if first == name or not tied:
            ends[tensor.dtype] = offset + tensor.numel()
        else:
            place = places[first]
        places[name] = place
    return places


def _check_one_device(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise ConfigError if the tensors are on several devices."""
    first: dict[torch.device, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(tensor.device, name)
    if len(first) > 1:
        listed = ", ".join(f"{name} on {device}" for device, name in first.items())
        raise ConfigError(
            f"the model is on several devices ({listed}): exchange the part on each device by "
            "itself, or move the model to one"
        )


def _check_apart(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise ConfigError if two tensors share memory without being the same throughout."""
    for name, tensor in tensors.items():
        _check(name, tensor)
    order = sorted(tensors, key=lambda name: tensors[name].data_ptr())
    for at, first in enumerate(order):
        one = tensors[first]
        for second in order[at + 1 :]:
            other = tensors[second]
            if other.data_ptr() >= one.data_ptr() + _span(one) * one.element_size():
                break
            if _is_same(one, other) or not _shares(one, other):
                continue
            names = sorted((first, second), key=list(tensors).index)
            raise ConfigError(
                f"{names[1]} shares memory with {names[0]}, but has another shape or order, or "
                "another part of it; tie weights by using one Parameter in both places, and take "
                "parts of it or transpose it in forward()"
            )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether both tensors have the same elements in the same memory."""
    return bool(
        one.data_ptr() == other.data_ptr()
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        most: Any = _MOST_WORK  # Any: NumPy's stub allows only 0 and -1
        return bool(np.shares_memory(_numpy(one), _numpy(other), max_work=most))
    except _TooHardError:  # after so many steps they almost certainly share an element
        return True


class _Addresses:
    """A tensor's elements as NumPy describes an array. Nothing reads them: they may be on a GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        item = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(step * item for step in tensor.stride()),
            "typestr": np.dtype(DTYPES[tensor.dtype]).str,
            "data": (tensor.data_ptr(), True),
        }


def _numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    return np.asarray(_Addresses(tensor))


def _span(tensor: torch.Tensor) -> int:
    """Return the number of elements from the tensor's first to its last in memory."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + int(sum((extent - 1) * step for extent, step in steps))


def _check(name: str, tensor: torch.Tensor) -> None:
    """Raise ConfigError unless the tensor can lie in a vector."""
    if is_lazy(tensor):
        raise ConfigError(f"{name} has no shape yet: run the model on one batch first")
    if tensor.device.type not in ("cpu", "cuda") or torch.version.hip is not None:
        raise ConfigError(
            f"{name} is on device {tensor.device}; MALT exchanges memory of the CPU and of "
            "NVIDIA's GPUs: call model.cpu() first"
        )
    if tensor.layout != torch.strided:
        raise ConfigError(f"{name} is {tensor.layout}; make it dense with .to_dense() first")
    if tensor.numel() == 0:
        raise ConfigError(f"{name} of shape {tuple(tensor.shape)} has no elements; leave it out")
    if tensor.dtype not in DTYPES:
        raise ConfigError(
            f"{name} is {tensor.dtype}; float32 and float64 can be averaged: keep what is trained "
            "in float32, and compute in less under torch.autocast"
        )


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the tensor's own stride (it may be channels_last), unless it has gaps or overlaps."""
    if _span(tensor) == tensor.numel():
        return tuple(tensor.stride())
    return tuple(torch.empty(tensor.shape, device="meta").stride())
