"""The names in a checkpoint's folder and its files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from malt._errors import ConfigError

VERSION = 1  # of the note, and of the arrays' names
NOTE = "malt"  # the note's name in a file's metadata
EXTRA = "extra/"  # the prefix of the names of the extras' arrays
CHECKPOINT = re.compile(r"checkpoint-(\d{6,})")
_FILE = re.compile(r"rank-\d{5,}\.safetensors")
# Bytes/s that all ranks together write at least; by default ranks wait for one another that long.
SLOW_DISK = 20e6


def checkpoint_name(number: int) -> str:
    return f"checkpoint-{number:06d}"


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def path_of(given: str | os.PathLike[str]) -> Path:
    try:
        return Path(given)
    except TypeError as error:
        raise ConfigError(f"path is {given!r}; it must be a text or a pathlib.Path") from error


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of all entries that are named as checkpoints."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is neither a directory of checkpoints nor a file of arrays (.safetensors, "
            ".npz or .npy)"
        )
    matches = (CHECKPOINT.fullmatch(entry.name) for entry in folder.iterdir())
    numbers = {match[0]: int(match[1]) for match in matches if match}
    return [number for name, number in numbers.items() if name == checkpoint_name(number)]


def is_checkpoint(path: Path) -> bool:
    """Whether it is a directory with a rank's file; a checkpoint may still be damaged."""
    return path.is_dir() and any(_FILE.fullmatch(e.name) and e.is_file() for e in path.iterdir())


def check_named(what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{what} is a {type(given).__name__}; it is a dict by name: {{'w': vector}}"
        )
