"""A check whether others can read or write a file that holds a secret."""

from __future__ import annotations

import os
import stat


def exposure(path: str | os.PathLike[str]) -> str | None:
    """Return a warning if others can read or write a file that holds a key; else None."""
    status = os.stat(path)
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or not mode & 0o066:
        return None
    return (
        f"{path} holds a key, and others can read or write it (mode {mode:04o}): chmod 600 {path}"
    )
