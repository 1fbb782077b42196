"""A fixture of several files: two checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import malt


@pytest.fixture
def two(alone: None, tmp_path: Path) -> Path:
    """A directory with two checkpoints, of 1.0 and of 2.0."""
    for value in (1.0, 2.0):
        malt.save(tmp_path / "c", {"w": np.full(3, value)}, {"step": int(value)})
    return tmp_path / "c"
