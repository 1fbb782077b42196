"""The mean of the gradients over the replicas of a stage."""

from __future__ import annotations

import torch

from malt._core_import import Group, Reducer
from malt._errors import ConfigError, PeerError, describe_ranks
from malt.torch._flat import DTYPES


class Replicas:
    """The ranks that have the same stage. Its calls are collective over them.

    Args:
        group: of these ranks.
        module: the stage.
        timeout: seconds to wait for other ranks.
    """

    def __init__(self, group: Group, module: torch.nn.Module, timeout: float) -> None:
        self._group = group
        self._timeout = timeout
        self._members = group.alive()
        self._module = module
        self._trained = [p for p in module.parameters() if p.requires_grad]
        statistics = [b for b in module.buffers() if b.dtype in DTYPES and b.numel()]
        self._parts: dict[torch.dtype, _Part] = {}
        for dtype in DTYPES:
            parameters = [p for p in self._trained if p.dtype == dtype]
            buffers = [b for b in statistics if b.dtype == dtype]
            if parameters or buffers:
                self._parts[dtype] = _Part(group, dtype, parameters, buffers)

    def check(self) -> None:
        """Raise ConfigError if a parameter is trained that was not when the pipeline was made."""
        averaged = set(self._trained)
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad and parameter not in averaged:
                raise ConfigError(
                    f"{name} was frozen when the pipeline was made, or not there, and is trained "
                    "now: make a new pipeline, whose replicas average its gradients too"
                )

    def average(self) -> None:
        """Replace gradients, and buffers such as BatchNorm's statistics, by the replicas' mean.

        Raises:
            PeerError: a replica is dead or has left.
            TimeoutError: a replica did not come.
        """
        for part in self._parts.values():
            with torch.no_grad():
                part.collect()
            others = part.reducer.allreduce(
                part.memory.data_ptr(), part.memory.numel(), True, self._timeout
            )
            if missing := set(self._members) - {self._group.rank, *others}:
                raise PeerError(f"{describe_ranks(missing)} died or left", missing)
            with torch.no_grad():
                part.put_back()

    def close(self, timeout: float) -> None:
        for part in self._parts.values():
            part.reducer.shut()
        self._group.leave(timeout)


class _Part:
    """The gradients and buffers of one dtype, one after the other in `memory`."""

    def __init__(
        self,
        group: Group,
        dtype: torch.dtype,
        parameters: list[torch.nn.Parameter],
        buffers: list[torch.Tensor],
    ) -> None:
        self._parameters = parameters
        self._buffers = buffers
        tensors: list[torch.Tensor] = [*parameters, *buffers]
        self.memory = torch.zeros(sum(each.numel() for each in tensors), dtype=dtype)
        pieces = self.memory.split([each.numel() for each in tensors])
        self._views = [piece.view(each.shape) for piece, each in zip(pieces, tensors, strict=True)]
        name = DTYPES[dtype]
        self.reducer = Reducer(group, name, self.memory.numel(), f"replicas {name}")

    def collect(self) -> None:
        """Copy the values to the memory; a parameter without a gradient counts as zeros."""
        gradients = [parameter.grad for parameter in self._parameters]
        for view, value in zip(self._views, [*gradients, *self._buffers], strict=True):
            view.zero_() if value is None else view.copy_(value)

    def put_back(self) -> None:
        count = len(self._parameters)
        for parameter, view in zip(self._parameters, self._views[:count], strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(view)
            elif view.any():
                parameter.grad = view.clone()
        for buffer, view in zip(self._buffers, self._views[count:], strict=True):
            buffer.copy_(view)
