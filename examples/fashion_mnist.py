"""Fashion-MNIST: 70,000 pictures of 28 x 28 pixels, of clothes of 10 kinds.

    python examples/fashion_mnist.py      # fetch it, show what it is

It comes in Debian's package dataset-fashion-mnist. If that is installed (apt install
dataset-fashion-mnist), it is read from there; else the package is fetched once, without installing
it, checked against a SHA-256, and kept in $MALT_DATA (or ~/.cache/malt). Any number of processes
may call `load()` at the same time: one fetches, the others wait for it.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pypi_data import DataError, cache_folder, locked

PACKAGE = "dataset-fashion-mnist"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")
FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
# The hash of the four files' contents, one after the other.
SHA256 = "14410854cf7a289477dcfc7df3f8ec24741e281cdcc425ede0d9a748ca630214"
CACHE_NAME = "fashion-mnist-1.npz"


@dataclass(frozen=True)
class FashionMnist:
    """Rows are pictures of 784 pixels from 0 to 1, row by row; labels from 0 to 9."""

    x_train: np.ndarray  # float32, 60,000 x 784
    y_train: np.ndarray  # int64
    x_test: np.ndarray  # float32, 10,000 x 784
    y_test: np.ndarray  # int64


def load(folder: Path | None = None) -> FashionMnist:
    """The data, from the cache, the installed package, or a mirror of Debian. Raises DataError."""
    folder = folder or cache_folder()
    cached = folder / CACHE_NAME
    if not cached.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if not cached.exists():  # another process may have made it while this one waited
                make_cache(folder, cached)
    with np.load(cached) as z:
        pictures = {name: z[name].astype(np.float32) / 255 for name in ("x_train", "x_test")}
        labels = {name: z[name].astype(np.int64) for name in ("y_train", "y_test")}
        return FashionMnist(**pictures, **labels)


def make_cache(folder: Path, cached: Path) -> None:
    work = folder / "fashion-mnist.partial"  # a process that died may have left it
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        source = INSTALLED if INSTALLED.exists() else download(work)
        contents = [gzip.decompress((source / f"{name}-ubyte.gz").read_bytes()) for name in FILES]
        found = hashlib.sha256(b"".join(contents)).hexdigest()
        if found != SHA256:
            raise DataError(
                f"the pictures in {source} have SHA-256 {found}, expected {SHA256}: they are not "
                "those the examples were written for, so they were not used."
            )
        x_train, y_train, x_test, y_test = (np.frombuffer(each, np.uint8) for each in contents)
        partial = work / CACHE_NAME
        np.savez_compressed(
            partial,
            x_train=x_train[16:].reshape(-1, 784),  # IDX: 16 bytes of header for three dimensions,
            y_train=y_train[8:],  # 8 for one
            x_test=x_test[16:].reshape(-1, 784),
            y_test=y_test[8:],
        )
        partial.replace(cached)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def download(into: Path) -> Path:
    """Fetch the package and unpack it; returns the folder with the files."""
    print(f"fetching {PACKAGE} (31 MB) into {into.parent} ...", flush=True)
    try:
        fetch = ["apt-get", "download", PACKAGE]
        subprocess.run(fetch, cwd=into, capture_output=True, text=True, check=True)
        (package,) = into.glob("*.deb")
        unpack = ["dpkg-deb", "--extract", package.name, "."]
        subprocess.run(unpack, cwd=into, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DataError(
            f"could not fetch {PACKAGE}: {error}\n{getattr(error, 'stderr', '') or ''}"
            f"Install it (apt install {PACKAGE}), or copy {CACHE_NAME} from a machine that has\n"
            "run this example into a folder and set MALT_DATA to that folder."
        ) from error
    return into / INSTALLED.relative_to("/")


def main() -> None:
    try:
        data = load()
    except DataError as error:
        sys.exit(str(error))
    for name, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        kinds = np.bincount(y)
        print(f"{name}: {len(x):,} pictures of {x.shape[1]} pixels, {kinds.min():,} of each kind")


if __name__ == "__main__":
    main()
