"""The tensors of a model that are exchanged, and checks that all ranks have the same model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch.nn.parameter import is_lazy

from malt import _alike as alike
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job.agreement import Report, Together
from malt.torch._flat import DTYPES, places_of


def trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters that require gradients, by name."""
    _check_is_module(model)
    found = {f"parameter {name}": p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ConfigError(
            "no parameter of the model requires gradients, so there is nothing to exchange"
        )
    return found


def kept(model: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the other parameters, which are not trained."""
    every = {f"parameter {name}": p for name, p in model.named_parameters()}
    return {name: p for name, p in every.items() if name not in parameters}


def optimized(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's parameters, by their names in the model."""
    _check_is_module(model)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"the optimizer is a {type(optimizer).__name__}; it is one of torch.optim, made over "
            "the model's parameters"
        )
    names = {parameter: f"parameter {name}" for name, parameter in model.named_parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, parameter in enumerate(given):
        if parameter not in names:
            raise ConfigError(
                f"parameter {place} of the optimizer, of shape {tuple(parameter.shape)}, is not of "
                "the model: give malt.torch the model that the optimizer was made for"
            )
    return {names[parameter]: parameter for parameter in given}


def statistics(model: torch.nn.Module, wanted: bool) -> dict[str, torch.Tensor]:
    """Return the buffers that can be averaged, such as BatchNorm's statistics, if `wanted`.

    Buffers of other dtypes than float32 and float64, num_batches_tracked among them, stay each
    rank's own.
    """
    if not wanted:
        return {}
    return {
        f"buffer {name}": buffer
        for name, buffer in model.named_buffers()
        if is_lazy(buffer) or (buffer.dtype in DTYPES and buffer.numel())
    }


def check_same(model: torch.nn.Module, exchanged: Mapping[str, torch.Tensor]) -> None:
    """Raise ConfigError if one of these tensors is no longer the model's own."""
    own: dict[str, torch.Tensor] = {f"parameter {name}": p for name, p in model.named_parameters()}
    own |= {f"buffer {name}": buffer for name, buffer in model.named_buffers()}
    for name, tensor in exchanged.items():
        if own.get(name) is not tensor:
            instead = "another tensor instead" if name in own else "none of that name"
            raise ConfigError(
                f"the model has replaced {name}, and has {instead} "
                "(load_state_dict(assign=True), or a new layer): what is exchanged would not be "
                "what it trains; do so before malt.torch is given the model, and change values in "
                "place after"
            )


def check_alike(
    call: str,
    exchanged: Mapping[str, torch.Tensor],
    untouched: Mapping[str, torch.Tensor],
    settings: str,
) -> None:
    """Check that all ranks exchange the same tensors, with the same settings. Collective.

    The `untouched` tensors must have the same values, too.

    Raises:
        ConfigError: on every rank; it names the ranks that differ from the lowest.
    """
    if jobs.current().makes_due():  # the other ranks made this check before this one rejoined
        return

    values = "parameters that are not trained" if exchanged else "parameters and buffers"

    def describe() -> tuple[None, Report]:
        layout = places_of(exchanged)
        return None, {
            "what it is called with": settings,
            "the number of the model's tensors": len(layout),
            "the number of their elements": sum(tensor.numel() for tensor in exchanged.values()),
            "the model (parameters' names, shapes and dtypes)": alike.brief(repr(layout)),
            f"the digest of {values}": _digest(untouched),
        }

    _, reports = Together(call, None).step("comparing the models", describe)
    alike.check_alike(
        call,
        reports,
        "make one model on all ranks, from one seed or file, and call this alike",
    )


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a digest of names, shapes, dtypes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole = tensor.detach().to("cpu").contiguous().reshape(-1)
        digest.update(whole.view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _check_is_module(model: torch.nn.Module) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"the model is a {type(model).__name__}; it is a torch.nn.Module")
