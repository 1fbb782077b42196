"""The variants of tests that run before a release only: long_variants.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _variants() -> tuple[str, ...]:
    lines = (HERE / "long_variants.txt").read_text().splitlines()
    return tuple(f"tests/python/{line}" for line in lines if not line.startswith("#"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    variants = _variants()
    for item in items:
        if item.nodeid.startswith(variants):
            item.add_marker(pytest.mark.long)
