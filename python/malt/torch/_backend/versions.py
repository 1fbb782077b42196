"""Versions of PyTorch before 2.13, as far as the backend needs other code for them."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.distributed import distributed_c10d

IS_OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)
_MOST_KEPT = 256  # as many can be on their way between two waits of DDP
_MOST_FRAMES = 8  # from torch's function to the one that asks

_kept: dict[int, Any] = {}


def keep(work: Any) -> None:
    """Keep a work until drop(); of more than 256 the newest.

    Of a work that Python returns to it, PyTorch's older C++ code keeps the C++ half alone. Without
    the other one wait() waits for ever.
    """
    if not IS_OLD:
        return
    _kept[id(work)] = work
    if len(_kept) > _MOST_KEPT:
        _kept.pop(next(iter(list(_kept))), None)


def drop(work: Any) -> None:
    """Keep a work no longer, as somebody has waited for its end."""
    if IS_OLD:
        _kept.pop(id(work), None)


def asks_async(opts: Any) -> bool:
    """Return whether the caller of a collective goes on before it has ended.

    Args:
        opts: torch's options of the call, which say so in newer versions; or None.
    """
    asks = getattr(opts, "asyncOp", None)
    if asks is None and IS_OLD:
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if frame.f_globals is distributed_c10d.__dict__ and "async_op" in frame.f_locals:
                return bool(frame.f_locals["async_op"])
            frame = frame.f_back
    return asks is None or bool(asks)
