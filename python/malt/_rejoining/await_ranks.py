"""Waiting for other ranks outside the core, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable

from malt._errors import TimeoutError, describe_ranks  # noqa: A004

_NAP_SECONDS = 0.001


def await_ranks(missing: Callable[[], set[int]], what: str, limit: float) -> None:
    """Wait until `missing()` is empty: it returns the ranks that have yet to do `what`.

    Raises:
        malt.TimeoutError: the ranks that the error names did not within `limit` seconds.
    """
    deadline = time.monotonic() + limit
    while ranks := sorted(missing()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{describe_ranks(ranks)} did not {what} within {limit:g} s", ranks)
        time.sleep(_NAP_SECONDS)
