"""Any of a library's sources can be compiled as one, as the builds do with eight.

Which eight changes with each new file. So two sources with one name for two things would fail some
day after they were written.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"


@pytest.mark.long
@pytest.mark.parametrize("library", ["dstorm", "vol", "learn"])
def test_the_sources_of_a_library_compile_as_one(library: str, tmp_path: Path) -> None:
    # Not the programs, and not the kernels, which are compiled with instruction sets of their own.
    files = [
        file
        for file in sorted((SOURCE / library).rglob("*.cpp"))
        if not file.stem.endswith(("_main", "_avx2", "_avx512"))
    ]
    assert len(files) >= 20
    one = tmp_path / "one.cpp"
    one.write_text("".join(f'#include "{file}"\n' for file in files))
    command = [os.environ.get("CXX", "g++"), "-fsyntax-only", "-std=c++20", f"-I{SOURCE}", str(one)]
    subprocess.run(command, check=True, timeout=300)
