"""The needs of a recorder before the compiled core is there: memory, and a file for the trace.

The memory is a memory file a rank, which other processes find in /proc/<pid>/fd.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from malt._errors import ConfigError
from malt._system_limits import make_memory_file, reason

NAME = "malt-recorder"
# 16,384 events of a rank, 512 values of each name that it reports, and its totals. A loop of 20 us
# a round fills the first in 80 ms.
_EVENT_BYTES = 1 << 20
_REPORTS_BYTES = 1 << 20
_TOTALS_BYTES = 1 << 16
_PEER_BYTES = 32


def bytes_for(size: int) -> int:
    """Return how large the memory is for one rank of a job of `size`."""
    return _EVENT_BYTES + _REPORTS_BYTES + _TOTALS_BYTES + size * _PEER_BYTES


def make(size: int) -> int:
    """Make memory for one rank of a job of `size`; return its descriptor.

    Raises:
        ConfigError: the system has none left.
    """
    needed = bytes_for(size)
    try:
        descriptor = make_memory_file(NAME, os.MFD_ALLOW_SEALING)
    except ConfigError as error:
        raise ConfigError(f"a rank cannot be recorded: {error}") from error
    try:
        os.posix_fallocate(descriptor, 0, needed)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"a rank cannot be recorded: its {needed:,} bytes of memory are not to be had "
            f"({reason(error)}); run without --record and what implies it, or raise the limit"
        ) from error
    return descriptor


def check_writable(path: Path, asked: str) -> None:
    """Check before anything runs that a file can be written at the end.

    Raises:
        ConfigError: it cannot.
    """
    try:
        target = path.resolve()  # the file is drafted beside it
        is_new = not target.exists()
        with target.open("a"):
            pass
        if is_new:
            target.unlink(missing_ok=True)
        elif target.is_file() and not os.access(target.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "its folder is read-only")
    except OSError as error:
        raise ConfigError(
            f"{asked} {path} cannot be written: {error.strerror}; give a file in a folder that is "
            "there and yours"
        ) from error
