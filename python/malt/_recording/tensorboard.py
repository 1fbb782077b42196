"""Writes what the program reports for TensorBoard, where MALT_TENSORBOARD names a folder."""

from __future__ import annotations

import importlib
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from malt._arguments import variable
from malt._distribution import pip_install
from malt._errors import ConfigError
from malt._system_limits import reason

_FLUSH_SECONDS = 2  # a rank that is killed loses what it reported in this time

# So much waits for the disk before it counts as stuck, and for so long at the end of the process.
_MOST_WAITING = 10_000
_END_SECONDS = 5.0

log = logging.getLogger("malt")


class _Curves:
    """A SummaryWriter in a thread of its own, as its calls wait for ever once its disk is full."""

    def __init__(self, path: Path, writer: Any) -> None:
        self._path = path
        self._writer = writer
        self._waiting: queue.Queue[tuple[str, float, int, float] | None]
        self._waiting = queue.Queue(_MOST_WAITING)
        self._is_lost = False
        self._thread = threading.Thread(target=self._write, name="malt tensorboard", daemon=True)
        self._thread.start()

    def add(self, values: Mapping[str, float], update: int) -> None:
        """Have values written that were reported now. Never waits."""
        now = time.time()
        try:
            for name, value in values.items():
                if not self._is_lost:
                    self._waiting.put_nowait((name, value, update, now))
        except queue.Full:
            self._lose("their writer has come to a stand")

    def close(self) -> None:
        """Wait for the rest to be written, at most _END_SECONDS."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            self._lose("their writer has come to a stand")
            return
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            self._lose("their writer has come to a stand")

    def _write(self) -> None:
        try:
            while (point := self._waiting.get()) is not None:
                self._writer.add_scalar(*point)
            self._writer.close()
        except OSError as error:
            self._lose(reason(error))

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            log.warning("malt: the curves for TensorBoard are cut off: %s: %s", self._path, why)


_opened: tuple[int, _Curves] | None = None  # by which process


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
        _opened = (os.getpid(), _Curves(path, write(str(path), flush_secs=_FLUSH_SECONDS)))
    except OSError as error:
        raise ConfigError(
            f"MALT_TENSORBOARD={directory}: {path} cannot be written: {error.strerror}; give a "
            "folder that is yours"
        ) from error


def add(values: Mapping[str, float], update: int) -> None:
    """Write values that were reported now, if a file is open."""
    if _opened is not None and _opened[0] == os.getpid():
        _opened[1].add(values, update)


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
