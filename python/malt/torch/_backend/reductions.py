"""How the values of all ranks become one: the operations of torch.distributed on a row each."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.distributed import ReduceOp

from malt.torch._backend.errors import ConfigError

WIDE = {torch.bool: torch.int64} | {
    each: torch.int64 if not each.is_floating_point else torch.float32
    for each in (torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16)
}


def _sum(rows: torch.Tensor) -> torch.Tensor:
    return rows.sum(0, dtype=WIDE.get(rows.dtype))  # rounded once


def _mean(rows: torch.Tensor) -> torch.Tensor:
    total = _sum(rows)
    if total.dtype.is_floating_point or total.dtype.is_complex:
        return total / len(rows)
    return torch.div(total, len(rows), rounding_mode="trunc")


def _bitwise(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda rows: functools.reduce(function, rows.unbind(0))


_REDUCTIONS: dict[ReduceOp.RedOpType, Callable[[torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: _sum,
    ReduceOp.AVG: _mean,
    ReduceOp.PRODUCT: lambda rows: rows.prod(0, dtype=WIDE.get(rows.dtype)),
    ReduceOp.MIN: lambda rows: rows.amin(0),
    ReduceOp.MAX: lambda rows: rows.amax(0),
    ReduceOp.BAND: _bitwise(torch.bitwise_and),
    ReduceOp.BOR: _bitwise(torch.bitwise_or),
    ReduceOp.BXOR: _bitwise(torch.bitwise_xor),
}


def _plain(op: ReduceOp) -> ReduceOp.RedOpType:
    return getattr(op, "op", op)  # isinstance() takes torch's constants for a ReduceOp too


def name_of(op: ReduceOp) -> str:
    return str(_plain(op).name)


def reduction(op: ReduceOp, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what reduces tensors of this dtype over their first dimension, that of the ranks.

    Raises:
        ConfigError: there is no such operation, or torch has none for the dtype.
    """
    kind = _plain(op)
    if kind not in _REDUCTIONS:
        raise ConfigError(
            f"the operation is {kind}; it is one of {', '.join(map(str, _REDUCTIONS))}"
        )
    if (kind, dtype) not in _tried:
        try:
            _REDUCTIONS[kind](torch.zeros((2, 1), dtype=dtype))
        except (RuntimeError, NotImplementedError) as error:
            raise ConfigError(f"{kind} of {dtype}: {error}") from error
        _tried.add((kind, dtype))
    return _REDUCTIONS[kind]


_tried: set[tuple[ReduceOp.RedOpType, torch.dtype]] = set()  # those that torch has
