"""The fuzz targets in Python that have many decoders, once on their seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[3] / "fuzz"


@pytest.mark.parametrize("target", ["job_messages", "rendezvous", "watching"])
def test_each_seed_is_taken_or_refused_in_words(target: str, tmp_path: Path) -> None:
    for package in ("torch", "scipy") if target == "job_messages" else ():
        pytest.importorskip(package)
    command = [sys.executable, FUZZ / f"{target}.py", "-runs=0", FUZZ / "corpus" / target]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
