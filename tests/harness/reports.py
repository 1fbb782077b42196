"""Reads the pages of `malt run --report` and `malt train --report`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


class Report:
    """What a page shows.

    Attributes:
        title: of the page.
        parts: by heading, those that have one.
    """

    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        assert len(self.text) < 3_000_000
        assert not re.search(r"""(src|href)=["'](?!data:)|url\(""", self.text)  # it loads nothing
        (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', self.text)

        def no_constant(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        page = json.loads(data, parse_constant=no_constant)
        self.title: str = page["title"]
        self.all: list[dict[str, Any]] = page["parts"]
        self.parts = {one["heading"]: one for one in self.all if "heading" in one}

    def rows(self, heading: str) -> list[list[str]]:
        """The rows of a table, its head first."""
        table = self.parts[heading]["table"]
        return [table["head"], *table["rows"]]

    def bars(self, rank: int, kind: str) -> list[list[Any]]:
        """The bars of a rank in the picture of each call."""
        (times,) = (one["times"] for one in self.all if "times" in one and one["times"]["bars"])
        row = times["ranks"].index(rank)
        return [one for one in times["bars"] if one[:2] == [row, kind]]

    @property
    def omissions(self) -> str:
        return "\n".join(self.parts["What this page leaves out"]["list"])
