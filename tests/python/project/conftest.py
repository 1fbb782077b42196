"""The installed C++ library, for what is built against it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where MALT is installed to, from the build folder of the preset `dev`."""
    prefix = tmp_path_factory.mktemp("installed")
    targets = ("dstorm", "vol", "learn", "malt_witness")
    for command in (
        ("cmake", "--preset", "dev"),
        ("cmake", "--build", "--preset", "dev", "--target", *targets),
        ("cmake", "--install", "build/dev", "--prefix", str(prefix)),
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return prefix
