"""The fixtures of programs for `malt run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from launches import PREAMBLE, Script


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.chdir(tmp_path)

    def write(body: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(PREAMBLE + body)
        return path

    return write


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
