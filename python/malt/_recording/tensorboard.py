"""Writes what the program reports for TensorBoard, where MALT_TENSORBOARD names a folder."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from malt._arguments import variable
from malt._distribution import pip_install
from malt._errors import ConfigError

_FLUSH_SECONDS = 2  # a rank that is killed loses what it reported in this time

_opened: tuple[int, Any] | None = None  # by which process, and its SummaryWriter


def open_for(rank: int) -> None:
    """Open this process's file if MALT_TENSORBOARD asks for one, so that a mistake shows at once.

    Raises:
        ConfigError: no package that writes such files is installed, or the folder cannot be made.
    """
    global _opened
    directory = variable("MALT_TENSORBOARD")
    if not directory or (_opened is not None and _opened[0] == os.getpid()):
        return
    write = _writer_class()
    path = Path(directory).absolute() / f"rank{rank}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        _opened = (os.getpid(), write(str(path), flush_secs=_FLUSH_SECONDS))
    except OSError as error:
        raise ConfigError(
            f"MALT_TENSORBOARD={directory}: {path} cannot be written: {error.strerror}; give a "
            "folder that is yours"
        ) from error


def add(values: Mapping[str, float], update: int) -> None:
    """Write values that were reported now, if a file is open."""
    if _opened is not None and _opened[0] == os.getpid():
        now = time.time()
        for name, value in values.items():
            _opened[1].add_scalar(name, value, update, now)


def close() -> None:
    """Write out the rest, at the end of the process."""
    global _opened
    if _opened is not None and _opened[0] == os.getpid():
        _opened[1].close()
        _opened = None


def _writer_class() -> Any:
    try:
        return importlib.import_module("tensorboardX").SummaryWriter
    except ImportError:
        pass
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "MALT_TENSORBOARD (--tensorboard) needs tensorboardX, or torch with tensorboard, "
            f"which are not installed: {pip_install('watch')}"
        ) from error
