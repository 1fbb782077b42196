"""What a checkpoint's folder holds."""

from __future__ import annotations

from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def only_file(checkpoint: Path) -> Path:
    (file,) = checkpoint.iterdir()
    return file
