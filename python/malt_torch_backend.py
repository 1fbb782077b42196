"""Makes `malt` the name of a backend of torch.distributed, without importing what makes its groups.

`import torch` calls register() at its end, by the entry point in the group "torch.backends", and
`import malt.torch` does. So a program need only name the backend.

The module is outside of the package: a program may have a `malt.py` of its own, and its
`import torch` would end with an error if it then looked for a module of that.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any


def register() -> None:
    """Add the name, unless it is there or this PyTorch takes none. Idempotent.

    It raises nothing: an exception would end the user's `import torch`.
    """
    with contextlib.suppress(Exception):
        import torch.distributed as dist

        if dist.is_available() and "MALT" not in dist.Backend._plugins:
            devices = ["cpu", "cuda"]
            dist.Backend.register_backend("malt", _create, extended_api=True, devices=devices)


def _create(options: Any, _: Any = None) -> Any:
    """Make a process group. torch calls this. Collective."""
    # torch tells a plug-in nothing of the other devices' backends: its function has a variable.
    config = sys._getframe(1).f_locals.get("backend_config")
    return importlib.import_module("malt.torch._backend.process_group").create(options, config)
