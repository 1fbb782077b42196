"""Programs that torch.compile has compiled, from which torch calls the backend."""

from __future__ import annotations

from types import FunctionType

import torch


def keep_uncompiled(*classes: type) -> None:
    """Have torch.compile run the methods of these classes, and all that they call, as they are.

    It would otherwise compile the backend itself, which takes time and may fail.
    """
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "_FrameExecStrategy"):  # older versions of PyTorch
        return
    skip = frames._FrameAction.SKIP
    for each in classes:
        for function in vars(each).values():
            if isinstance(function, FunctionType):
                frames.set_code_exec_strategy(
                    function.__code__, frames._FrameExecStrategy(skip, skip)
                )
