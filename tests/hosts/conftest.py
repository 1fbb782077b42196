"""Hosts for the tests. With MALT_HOSTS=required (`./dev test` sets it) they must be to be had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Hosts, why_not


@pytest.fixture(scope="session")
def _hosts_can_be_made() -> None:
    if reason := why_not():
        if os.environ.get("MALT_HOSTS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def hosts(tmp_path: Path, _hosts_can_be_made: None) -> Iterator[Hosts]:
    """Three hosts, new ones for each test."""
    with Hosts(tmp_path) as made:
        yield made
