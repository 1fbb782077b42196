"""A pool of two ranks, for the tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import malt


@pytest.fixture(scope="module")
def pool() -> Iterator[malt.Pool]:
    with malt.Pool(2) as pool:
        yield pool
