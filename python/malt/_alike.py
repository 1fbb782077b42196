"""Compares what the ranks gave."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from malt._errors import ConfigError, describe_ranks

_MOST_SHOWN = 200  # characters of a value


def brief(text: str) -> str:
    """Return the text, or its beginning and a digest of all of it, for check_alike()."""
    if len(text) <= _MOST_SHOWN:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[:_MOST_SHOWN]}... (SHA-256 {digest[:16]})"


def check_alike(
    call: str,
    given: Mapping[int, Mapping[str, Any]],
    way_out: str = "give all ranks the same",
) -> None:
    """Raise ConfigError if ranks differ in a value; `given` has each rank's values by name."""
    first, expected = next(iter(given.items()))
    for name, value in expected.items():
        others = {rank: theirs[name] for rank, theirs in given.items() if theirs[name] != value}
        if others:
            other = next(iter(others.values()))
            ranks = describe_ranks(rank for rank, theirs in others.items() if theirs == other)
            raise ConfigError(
                f"{call}: {name} is {value} on rank {first}, and {other} on {ranks}; {way_out}"
            )
