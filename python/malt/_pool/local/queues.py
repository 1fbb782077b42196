"""Queues of chunk numbers: pipes, from which several processes read, each number once.

The kernel takes four bytes from a pipe as one piece, because all that is in it is written and read
in pieces of four.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

MOST_CHUNKS = 1024  # of them the least pipe, of one page, has room for all


class Queue:
    """The pool's end of a queue.

    Attributes:
        source: the descriptor to `take` from.
    """

    def __init__(self) -> None:
        self.source, self._sink = os.pipe()
        for end in (self.source, self._sink):
            os.set_blocking(end, False)

    def put(self, chunks: Sequence[int]) -> None:
        if chunks:
            os.write(self._sink, struct.pack(f"<{len(chunks)}i", *chunks))

    def clear(self) -> None:
        while take(self.source) is not None:
            pass

    def close(self) -> None:
        os.close(self.source)
        os.close(self._sink)


def take(source: int) -> int | None:
    """Take the next chunk's number; None if there is none."""
    try:
        chunk = os.read(source, 4)
    except BlockingIOError:
        return None
    return int.from_bytes(chunk, "little") if chunk else None  # the pool's process has ended
