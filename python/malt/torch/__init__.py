"""PyTorch models on many ranks: averaged, by their gradients, or by DiLoCo.

    malt.init()
    average = malt.torch.average(model, every=32)
    for x, y in batches:                 # this rank's
        loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.step()

Needs PyTorch 2.2 or later (`pip install "malt[torch]"`), which `import malt` alone never imports.
What is exchanged lies in the memory of the CPU.
"""

try:
    import torch as _torch  # noqa: F401 - for the message, should it be missing
except ImportError as error:
    raise ImportError(
        f'malt.torch needs PyTorch 2.2 or later ({error}): pip install "malt[torch]"'
    ) from error

from malt.torch._average import Average, average
from malt.torch._diloco import DiLoCo
from malt.torch._gradients import GradientExchange

__all__ = ["Average", "DiLoCo", "GradientExchange", "average"]
