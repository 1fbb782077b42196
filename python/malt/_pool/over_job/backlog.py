"""The chunks that a rank of a job is to do in a sum, and has not begun."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence


class Backlog:
    """A rank begins its chunks in order, and gives back later ones.

    A chunk leaves the backlog when it is begun or given back, so it is done once.

    Attributes:
        seconds: that the shortest chunk has taken so far: how long the function takes when nothing
            else keeps the processor.
    """

    def __init__(self) -> None:
        self.seconds = math.inf
        self._chunks: deque[int] = deque()
        self._begun: float | None = None  # when the present chunk was

    def add(self, chunks: Iterable[int]) -> None:
        self._chunks.extend(chunks)

    def begin(self) -> int | None:
        """Return the next chunk, and take the one before for done; None if there is none."""
        now = time.monotonic()
        if self._begun is not None:
            self.seconds = min(self.seconds, now - self._begun)
        self._begun = now if self._chunks else None
        return self._chunks.popleft() if self._chunks else None

    def give_back(self, wanted: Sequence[int]) -> list[int]:
        """Return the first of these that are here, at most half of what is here, rounded up."""
        there = set(self._chunks)
        most = (len(there) + 1) // 2
        back = [chunk for chunk in wanted if chunk in there][:most]
        self._chunks = deque(chunk for chunk in self._chunks if chunk not in back)
        return back

    def __bool__(self) -> bool:
        return bool(self._chunks)
