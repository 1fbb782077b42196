"""CUDA tensors in the calls of a process group: their streams, and copies in the host's memory.

Tensors whose memory lacks their conjugation or their sign, which torch makes when it reads them,
are copied too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec

import torch

Parameters = ParamSpec("Parameters")


class OnStream:
    """Runs a call on the stream that was current where the call was made, as NCCL's calls do.

    The call reads what the stream has written before, and what it writes is there for what the
    stream gets next. A `with` block is the call.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._event: torch.cuda.Event | None = None
        self._block: contextlib.AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        self._block = torch.cuda.stream(self._stream)
        self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._event = self._stream.record_event()
        assert self._block is not None
        self._block.__exit__(kind, error, trace)

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Make it the present stream in a `with` block."""
        block: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return block

    def join(self) -> None:
        """Let the stream that is current now wait for what the call has begun."""
        current = torch.cuda.current_stream(self._stream.device)
        if self._event is not None and current != self._stream:
            current.wait_event(self._event)


def on_stream_of(*given: Any) -> OnStream | None:
    """Return the present stream of the first CUDA tensor among these, or in lists of them."""
    tensor = _first_on_gpu(given)
    return None if tensor is None else OnStream(tensor.device)


def _first_on_gpu(given: Any) -> torch.Tensor | None:
    for each in given:
        if isinstance(each, torch.Tensor):
            if each.is_cuda:
                return each
        elif isinstance(each, (list, tuple)) and (found := _first_on_gpu(each)) is not None:
            return found
    return None


def staged(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Make a call that takes plain CPU tensors take others too, by copies in the host's memory.

    The call's arguments are the members, its output (a tensor or a list of them), and others.
    """

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        if all(map(is_plain, arguments)):
            return function(*arguments, **options)
        here = [_on_host(each) for each in arguments]
        function(*here, **options)
        _copy_back(arguments[1], here[1])
        return None

    return call


def is_plain(given: Any) -> bool:
    """Return whether a tensor's memory, or that of all in a list, is the host's with its values."""
    if isinstance(given, torch.Tensor):
        return not (given.is_cuda or given.is_conj() or given.is_neg())
    return not isinstance(given, (list, tuple)) or all(map(is_plain, given))


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a copy, whose memory is the host's and has its values."""
    return tensor.cpu().resolve_conj().resolve_neg()


def _on_host(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return on_host(given)
    if isinstance(given, (list, tuple)):
        return [_on_host(each) for each in given]
    return given


def _copy_back(to: Any, values: Any) -> None:
    if isinstance(to, torch.Tensor):
        if to is not values:
            to.copy_(values)
    else:
        for each, value in zip(to, values, strict=True):
            _copy_back(each, value)
