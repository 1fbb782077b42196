"""The site that `./dev docs` has built in site/: its links, and that every public name is on it."""

from __future__ import annotations

import importlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import malt

SITE = Path(__file__).parents[2] / "site"
MODULES = (
    *("data", "jobs", "learn", "messages", "optimize", "types"),
    *("torch", "jax", "ps", "ray", "dask", "spark"),
)
# Attributes by which a page loads a file; a link may lead anywhere.
LOADED = {("link", "href"), ("script", "src"), ("img", "src")}


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)
                if (tag, name) in LOADED:
                    self.loaded.append(value)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    found = {path: Page(path) for path in SITE.rglob("*.html") if path.name != "404.html"}
    assert len(found) > 20, "run ./dev docs first"
    return found


def public_names() -> list[str]:
    """Every name that users may write: those loaded on first use are in dir(malt) alone."""
    names = {"malt." + name for name in malt.__all__}
    names |= {f"malt.{name}" for name in dir(malt) if not name.startswith("_")}
    for module in MODULES:
        names |= {
            f"malt.{module}.{name}" for name in importlib.import_module(f"malt.{module}").__all__
        }
    return sorted(names - {f"malt.{module}" for module in MODULES})


def test_every_public_name_has_an_entry(pages: dict[Path, Page]) -> None:
    there: set[str] = set()
    for path, page in pages.items():
        if path.parent.name == "reference":
            there |= page.anchors
    missing = [name for name in public_names() if name not in there]
    assert not missing, f"no entry in docs/reference/: {', '.join(missing)}"


def test_every_link_within_the_site_leads_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{path.relative_to(SITE)}: {link}")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.relative_to(SITE)}: {link}: no such anchor")
    assert not broken, "\n".join(broken)


def test_pages_load_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        outside = [each for each in page.loaded if urlsplit(each).netloc]
        assert not outside, (path, outside)


def test_searches_find_the_pages() -> None:
    index = (SITE / "search" / "search_index.json").read_text()
    for words in (
        "Graphs: which ranks send to which",
        "malt.learn.SGDClassifier",
        "malt.load_data",
    ):
        assert words in index


def test_searches_work_on_pages_from_a_disk(pages: dict[Path, Page]) -> None:
    """A browser loads neither a worker nor JSON there: the index and a worker are scripts."""
    assert (SITE / "search" / "search_index.js").read_text().startswith("var __index = {")
    for path, page in pages.items():
        assert any(each.endswith("iframe-worker/shim.js") for each in page.loaded), path
