"""docs/coming_from names calls that exist, of MALT and of the libraries that are installed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import malt

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "coming_from.md", *sorted((DOCS / "coming_from").iterdir())]
OBJECTS = {
    "comm": "mpi4py.MPI:COMM_WORLD",
    "dist": "torch.distributed",
    "client": "dask.distributed:Client",
    "ray": "ray",
    "pool": "malt:Pool",
    "v": "malt:Vector",
    "m": "malt:Vector",
    "edge": "malt.messages:Edge",
    "graph": "malt:Graph",
    "table": "malt.ps:Table",
    "rpc": "torch.distributed.rpc",
    "malt": "malt",
}
# Each `name.name(` between backquotes.
CALLS = sorted(
    {
        (name, path)
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", page.read_text())
        for name, path in re.findall(r"\b([a-z]+)\.((?:\w+\.)*\w+)\(", code)
        if name in OBJECTS
    }
)


@pytest.mark.parametrize(("name", "path"), CALLS, ids=lambda part: part)
def test_a_call_of_the_pages_exists(name: str, path: str) -> None:
    module, _, attribute = OBJECTS[name].partition(":")
    found = pytest.importorskip(module)
    found = getattr(found, attribute) if attribute else found
    *modules, call = path.split(".")
    for part in modules:
        found = importlib.import_module(f"{found.__name__}.{part}")
    assert callable(getattr(found, call))


def test_the_pages_name_calls_of_each_library() -> None:
    assert {name for name, _ in CALLS} == {*OBJECTS}


def test_the_graphs_folds_and_codecs_of_the_pages_exist() -> None:
    names = {
        name
        for page in PAGES
        for name in re.findall(r"\bmalt\.([A-Z_0-9]{2,})\b", page.read_text())
    }
    assert len(names) > 8
    assert [name for name in names if not hasattr(malt, name)] == []
