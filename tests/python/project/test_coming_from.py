"""docs/coming_from.md names calls that exist, of MALT and of the libraries that are installed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "coming_from.md").read_text()
OBJECTS = {
    "comm": "mpi4py.MPI:COMM_WORLD",
    "dist": "torch.distributed",
    "client": "dask.distributed:Client",
    "ray": "ray",
    "pool": "malt:Pool",
    "v": "malt:Vector",
    "m": "malt:Vector",
    "edge": "malt.messages:Edge",
    "malt": "malt",
}
# Each `name.name(` between backquotes.
CALLS = sorted(
    {
        (name, path)
        for code in re.findall(r"`([^`\n]+)`", PAGE)
        for name, path in re.findall(r"\b([a-z]+)\.((?:\w+\.)*\w+)\(", code)
        if name in OBJECTS
    }
)


@pytest.mark.parametrize(("name", "path"), CALLS, ids=lambda part: part)
def test_a_call_of_the_page_exists(name: str, path: str) -> None:
    module, _, attribute = OBJECTS[name].partition(":")
    found = pytest.importorskip(module)
    found = getattr(found, attribute) if attribute else found
    *modules, call = path.split(".")
    for part in modules:
        found = importlib.import_module(f"{found.__name__}.{part}")
    assert callable(getattr(found, call))


def test_the_page_names_calls_of_each_library() -> None:
    assert {name for name, _ in CALLS} == {*OBJECTS}
