"""The time in which a rank leaves several groups, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from malt._core_import import Deadline

PARTING_SECONDS = 1.0  # that leaving may take after the time limit


def shares(limit: float, count: int) -> Iterator[float]:
    """Yield the seconds for each of `count` groups; all may together take the limit and a second.

    One rank that does not answer may use up the limit. That second is for the other ranks, which
    hear in it that this rank leaves the remaining groups.
    """
    deadline = Deadline(limit)
    for _ in range(count):
        yield max(deadline.left, PARTING_SECONDS / count)
