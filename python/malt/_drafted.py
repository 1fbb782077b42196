"""Files that are written under another name first, so that nobody finds a part of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def drafted(path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
    """Yield a file to write; it replaces the file at `path` once all of it is written.

    Text is UTF-8. If it cannot all be written, as on a full disk, the file at `path` stays as it
    was.

    Raises:
        OSError: the file cannot be written.
    """
    encoding = None if "b" in mode else "utf-8"
    if Path(path).exists() and not Path(path).is_file():  # a device or a pipe stays what it is
        with open(path, mode, encoding=encoding) as file:
            yield file
        return
    target = Path(path).resolve()
    # A name at which nobody can have put a link; besides, mode "x" follows no link.
    draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}.draft")
    try:
        with draft.open(mode.replace("w", "x"), encoding=encoding) as file:
            yield file
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)
