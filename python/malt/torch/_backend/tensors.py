"""The memory of the tensors that calls read and write."""

from __future__ import annotations

import torch

from malt.torch._backend.errors import ConfigError


def bytes_of(tensor: torch.Tensor) -> int:
    """Return how many bytes the values of a tensor have.

    Raises:
        ConfigError: it has no memory for them.
    """
    size = int(tensor.numel() * tensor.element_size())
    if size:
        check_memory(tensor)
    return size


def check_memory(tensor: torch.Tensor) -> None:
    """Check that a tensor, which has elements, has memory for them.

    Raises:
        ConfigError: it has none.
    """
    if not tensor.data_ptr():
        raise ConfigError(
            "the tensor has no memory: it is a meta tensor, one of FakeTensorMode, or torch's "
            "efficient zeros"
        )


def check_writable(tensor: torch.Tensor) -> None:
    """Check that torch can copy values into a tensor.

    Raises:
        ConfigError: it cannot. The call fails on all ranks then, as this comes before its exchange.
    """
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise ConfigError(
            "the tensor to write to has several elements in one place, as expand() makes them; "
            "give its contiguous() copy"
        )
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise ConfigError(
            "the tensor to write to was made in inference_mode; make the call there, or give its "
            "clone()"
        )
