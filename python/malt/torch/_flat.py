"""Tensors that lie one after the other in the memory of a vector, one vector a dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch.nn.parameter import is_lazy

from malt._averaging import Averaging, start_alike
from malt._core_import import AVG, Fold, Vector
from malt._errors import ConfigError
from malt._vectors import vector

DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class Place(NamedTuple):
    """Where a tensor lies in the vector of its dtype."""

    dtype: torch.dtype
    offset: int  # elements
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Flat:
    """One vector a dtype, with room for tensors by name. Collective to make, if there are any.

    Attributes:
        tensors: as given.
        vectors: by dtype; with memory of MALT's own.
        memory: by dtype, the same memory as a tensor of one dimension.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], averaging: Averaging, policy: str = "latest"
    ) -> None:
        self.tensors = dict(tensors)
        self._averaging = averaging
        self._places = places_of(self.tensors)
        counts: dict[torch.dtype, int] = {}
        for place in self._places.values():
            end = place.offset + torch.Size(place.size).numel()
            counts[place.dtype] = max(end, counts.get(place.dtype, 0))
        self.vectors: dict[torch.dtype, Vector] = {
            dtype: vector(count, dtype=DTYPES[dtype], graph=averaging.graph, policy=policy)
            for dtype, count in counts.items()
        }
        self.memory = {dtype: torch.from_numpy(v.array) for dtype, v in self.vectors.items()}

    def views(
        self, memory: Mapping[torch.dtype, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The parts of such memory, each in the shape of its tensor."""
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
        """Make the tensors views of the vectors' memory, with what is there."""
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

    def exchange(self, fold: Fold = AVG) -> None:
        """Fold the other ranks' values into the vectors."""
        for each in self.vectors.values():
            self._averaging.exchange(each, fold)

    def allreduce(self) -> None:
        """Exactly average the vectors of all live ranks. Collective."""
        for each in self.vectors.values():
            each.allreduce(AVG)

    def close(self) -> None:
        """Close the vectors; their memory stays as long as tensors lie in it."""
        for each in self.vectors.values():
            each.close()


def places_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Place]:
    """One after the other; tensors over the same memory (tied weights) have the same place.

    Raises:
        ConfigError: one cannot lie in a vector.
    """
    places: dict[str, Place] = {}
    ends: dict[torch.dtype, int] = {}
    named: dict[int, str] = {}  # by address
    for name, tensor in tensors.items():
        _check(name, tensor)
        offset = ends.get(tensor.dtype, 0)
        place = Place(tensor.dtype, offset, tuple(tensor.shape), _dense_stride(tensor))
        first = named.setdefault(tensor.data_ptr(), name)
        if first == name:
            ends[tensor.dtype] = offset + tensor.numel()
        elif place._replace(offset=0) != places[first]._replace(offset=0):
            raise ConfigError(
                f"{name} shares memory with {first}, but has another shape or order; tie weights "
                "by using one Parameter in both places, and transpose it in forward()"
            )
        else:
            place = places[first]
        places[name] = place
    return places


def _check(name: str, tensor: torch.Tensor) -> None:
    """Raise ConfigError unless the tensor can lie in a vector."""
    if is_lazy(tensor):
        raise ConfigError(f"{name} has no shape yet: run the model on one batch first")
    if tensor.device.type != "cpu":
        raise ConfigError(
            f"{name} is on device {tensor.device}; MALT exchanges memory of the CPU: call "
            "model.cpu() first"
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
    """Its own, which may be that of channels_last, unless there are gaps or overlaps."""
    strides = tensor.stride()
    last = sum((extent - 1) * step for extent, step in zip(tensor.shape, strides, strict=True))
    if last + 1 == tensor.numel():
        return tuple(strides)
    return tuple(torch.empty(tensor.shape, device="meta").stride())
