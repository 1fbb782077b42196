"""Files that malt.restore() is given: of the input the first byte is which, the rest what is in it.

Python's part of the fuzz targets: Atheris is libFuzzer for it, and takes its options.

usage: checkpoint.py [OPTION]... [FOLDER OR FILE]...
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import atheris
from target import instrument

with atheris.instrument_imports(include=["malt", "numpy.lib", "json", "zipfile"]):
    import numpy as np

    import malt
    from malt._checkpoint import (
        checkpoint,  # noqa: F401 # to be instrumented
        restoring,  # noqa: F401 # to be instrumented
        safetensors,  # noqa: F401 # to be instrumented
        spread,  # noqa: F401 # to be instrumented
        vector_files,  # noqa: F401 # to be instrumented
    )

SEAL = b'{"__metadata__":{"malt_crc32":"%08x",'


def sealed(rest: bytes) -> bytes:
    """A header with the right checksum, so that what is behind it is read, and 16 bytes."""
    header = SEAL % zlib.crc32(rest) + rest
    return struct.pack("<Q", len(header)) + header + bytes(16)


def run(given: bytes, folder: Path, *vectors: dict[str, Any]) -> None:
    """Restore it as whatever there is, and into vectors: it is taken, or refused in words."""
    kind, content = given[0] % 4 if given else 0, given[1:]
    names = ("x.safetensors", "x.npz", "x.npy", "checkpoint-000001/rank-00000.safetensors")
    path = folder / names[kind]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(sealed(content) if kind == 3 else content)
    source = path.parent if kind == 3 else path
    for targets in (None, *vectors):
        try:
            malt.restore(source, targets)
        except malt.Error as error:
            # What is not meant for it is an internal error, though a rank tells the others of it.
            if not isinstance(error.__cause__, malt.Error):
                raise


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, malt.init():
        vectors = {"w": np.zeros(2), "s": malt.sparse_vector(4, capacity=4)}
        instrument("malt._checkpoint", "malt._npy")
        tables = {"t": malt.ps.Table(2, update=malt.ps.Momentum(0.1))}
        atheris.Setup(sys.argv, lambda given: run(given, Path(folder), vectors, tables))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
