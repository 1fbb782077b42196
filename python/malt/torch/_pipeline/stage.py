"""This rank's layers: forward and backward passes of micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from malt._errors import ConfigError

LossFunction = Callable[[Any, Any], Any]


class _Arrived:
    """A tensor from the stage before, and its gradient once the backward pass has come there."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.gradient: torch.Tensor | None = None


class _Arrive(torch.autograd.Function):  # type: ignore[misc] # PyTorch is optional
    """Brings a tensor into the graph as the result of a function, and not as a leaf.

    So the first layer may change it in place (nn.ReLU(inplace=True)), as in the undivided network.
    """

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, arrived: _Arrived) -> Any:
        ctx.arrived = arrived
        ctx.set_materialize_grads(False)
        tensor, arrived.tensor = arrived.tensor, None
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        ctx.arrived.gradient = gradient
        return None, None


class _Kept(NamedTuple):
    """Inputs of the backward pass of a micro-batch."""

    result: torch.Tensor  # the activation, or the loss
    arrived: _Arrived | None


class Stage:
    """The layers of one stage, and the graphs of the micro-batches in flight.

    Attributes:
        module: the layers.
        loss: the sum of the losses of this step's micro-batches; on the last stage.
    """

    def __init__(self, module: torch.nn.Sequential) -> None:
        self.module = module
        self.loss: torch.Tensor | None = None
        self._kept: dict[int, _Kept] = {}
        self._anchor = torch.zeros((), requires_grad=True)

    def begin(self) -> None:
        """Begin a step."""
        self.loss = None
        self._kept.clear()

    def forward(self, microbatch: int, given: torch.Tensor, *, has_arrived: bool) -> torch.Tensor:
        """Return the activation. `has_arrived`: `given` needs a gradient for the stage before."""
        arrived = _Arrived(given) if has_arrived else None
        entering = given if arrived is None else _Arrive.apply(self._anchor, arrived)
        result = check_tensor(self.module(entering))
        self._kept[microbatch] = _Kept(result, arrived)
        return result

    def finish(self, microbatch: int, loss_fn: LossFunction, target: Any, share: float) -> None:
        """Compute a micro-batch's loss from its activation; on the last stage.

        Args:
            microbatch: its number.
            loss_fn: loss_fn(activation, target) is a scalar.
            target: of the micro-batch.
            share: the micro-batch's rows as a share of all.
        """
        output, arrived = self._kept[microbatch]
        loss = loss_fn(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shown = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ConfigError(
                f"loss_fn returned {shown}; it returns one number, the mean over the rows, as a "
                "tensor"
            )
        if share != 1:
            loss = loss * share
        self._kept[microbatch] = _Kept(loss, arrived)
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()

    def backward(
        self, microbatch: int, gradient: torch.Tensor | None, *, is_last: bool
    ) -> torch.Tensor | None:
        """Add up this stage's gradients; return that of what the stage before sent, if any."""
        result, arrived = self._kept.pop(microbatch)
        if result.requires_grad and (is_last or gradient is not None):
            torch.autograd.backward(result, gradient)
        return None if arrived is None else arrived.gradient


def check_tensor(output: Any) -> torch.Tensor:
    """Return the output of a stage.

    Raises:
        ConfigError: it is no tensor on the CPU.
    """
    if not isinstance(output, torch.Tensor):
        raise ConfigError(
            f"a stage returned a {type(output).__name__}; a layer takes one tensor and returns one"
        )
    if output.device.type != "cpu" or output.layout != torch.strided:
        raise ConfigError(
            f"a stage returned a tensor on {output.device} ({output.layout}); stages exchange "
            "dense tensors in the memory of the CPU: call .cpu() on the layers first"
        )
    return output
