"""The site's search in a browser, on pages that it reads from a disk."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from browser import CHROMIUM, Tab, browse

SITE = Path(__file__).parents[2] / "site"
LINKS = "[...document.querySelectorAll('.md-search-result__link')].map((one) => one.href)"


@pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("tornado") is None,
    reason="needs chromium and tornado",
)
def test_the_search_finds_pages_on_a_disk(tmp_path: Path) -> None:
    page = SITE / "graphs.html"
    assert page.is_file(), "run ./dev docs first"

    async def use(tab: Tab) -> None:
        await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        await tab.wait_for("document.readyState === 'complete'")
        for words, where in (
            ("spectral gap", "graphs.html"),
            ("SGDClassifier", "reference/estimators.html"),
        ):
            await tab.value("document.querySelector('.md-search__input').select()")
            await tab.call("Input.insertText", text=words)
            await tab.call("Input.dispatchKeyEvent", type="keyUp")  # the page listens to keys
            is_where = f"(one) => one.includes({json.dumps(where)})"
            await tab.wait_for(f"{LINKS}.some({is_where})")
            found = urlsplit(await tab.value(f"{LINKS}.find({is_where})"))
            assert found.scheme == "file"
            text = Path(url2pathname(found.path)).read_text().lower()
            assert words.split()[0].lower() in text

    browse(tmp_path, page.as_uri(), use)
