"""The names in a checkpoint's folder and its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from malt._errors import ConfigError

VERSION = 1  # of the note, and of the arrays' names
NOTE = "malt"  # the note's name in a file's metadata
EXTRA = "extra/"  # the prefix of the names of the extras' arrays
CHECKPOINT = re.compile(r"checkpoint-(\d{6,})")
# Bytes/s that all ranks together write at least; by default ranks wait for one another that long.
SLOW_DISK = 20e6


def checkpoint_name(number: int) -> str:
    return f"checkpoint-{number:06d}"


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def numbers_in(folder: Path) -> list[int]:
    if not folder.exists():
        return []
    matches = (CHECKPOINT.fullmatch(entry.name) for entry in folder.iterdir())
    return [int(match[1]) for match in matches if match]


def newest_in(folder: Path, below: int | None = None) -> int:
    """Return the highest number of a checkpoint, below `below`; 0 if there is none."""
    return max((n for n in numbers_in(folder) if below is None or n < below), default=0)


def check_named(what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{what} is a {type(given).__name__}; it is a dict by name: {{'w': vector}}"
        )
