"""The HTML pages, each with its scripts and styles in it; uPlot (MIT) draws the curves."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parent


def assembled(name: str) -> str:
    """Put a page together from its files, so that it loads nothing else."""

    def text_of(found: re.Match[str]) -> str:
        return (_FOLDER / found[1]).read_text()

    return re.sub(r"<!-- (\S+\.\S+) -->", text_of, (_FOLDER / name).read_text())
