"""PyTorch models on many ranks: model averaging, gradient exchange, DiLoCo, or a layer pipeline.

    malt.init()
    average = malt.torch.average(model, every=32)
    for x, y in batches:                 # this rank's
        loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.step()

Needs PyTorch 2.2 or later (`pip install "malt-sgd[torch]"`), which `import malt` alone never
imports. The tensors that are exchanged are in the memory of the CPU or of an
NVIDIA GPU.
"""

from malt._distribution import pip_install as _pip_install
from malt_torch_backend import register as _register

try:
    import torch as _torch  # noqa: F401 - raises the message below if PyTorch is missing
except ImportError as error:
    raise ImportError(
        f"malt.torch needs PyTorch 2.2 or later ({error}): {_pip_install('torch')}"
    ) from error

from malt.torch._average import Average, average
from malt.torch._backend.members import keep_going
from malt.torch._diloco import DiLoCo
from malt.torch._gossip import Gossip, gossip
from malt.torch._gradients import GradientExchange
from malt.torch._loader import Loader
from malt.torch._pipeline.pipeline import Pipeline

__all__ = [
    "Average",
    "DiLoCo",
    "Gossip",
    "GradientExchange",
    "Loader",
    "Pipeline",
    "average",
    "gossip",
    "keep_going",
]

_register()
