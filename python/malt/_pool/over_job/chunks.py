"""Chunks that a rank of a job has: where each lies on rank 0, and its arrays here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from malt._messages import values

# The place of a chunk on rank 0: its block of memory, and its offset there. No two chunks are in
# one place at a time, and blocks' numbers are not used again.
Key = tuple[int, int]


class Chunks(dict[Key, tuple[Any, ...]]):
    """By their keys, the arrays of chunks, which are read-only views."""

    def keep(self, key: Key, parts: Sequence[bytes | memoryview]) -> None:
        self[key] = values.unpack(parts)

    def drop(self, blocks: Collection[int]) -> None:
        """Keep only the chunks of these blocks."""
        for key in [key for key in self if key[0] not in blocks]:
            del self[key]
