"""The code map of CONTRIBUTING.md names files that are there, and names that are in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_code_map_is_true() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (.+) \| (`.+`) \| (`.+`) \|$", text, flags=re.MULTILINE)
    assert len(rows) >= 20
    for _, named_files, named_symbols in rows:
        files = [ROOT / name for name in re.findall(r"`([^`]+)`", named_files)]
        for file in files:
            assert file.is_file(), file
        for symbol in re.findall(r"`([^`]+)`", named_symbols):
            texts = [file.read_text() for file in files]
            assert any(re.search(rf"\b{symbol}\b", text) for text in texts), (symbol, named_files)
