"""Possible places of NVRTC, the compiler of a GPU's kernels."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def nvrtc_folders() -> list[str]:
    """Return folders in which libnvrtc may be: of packages, of PyTorch, and CUDA's own."""
    folders: list[Path] = []
    nvidia = importlib.util.find_spec("nvidia")
    for root in (nvidia.submodule_search_locations or ()) if nvidia is not None else ():
        folders += sorted(Path(root).glob("*/lib"))
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        folders.append(Path(torch.__file__).parent / "lib")
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            folders.append(Path(home) / "lib64")
    return [str(folder) for folder in folders]
