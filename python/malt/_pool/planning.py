"""A sum over chunks: which rank is given which chunk, and what is in the sum by now.

This module neither communicates nor holds data, so it is the same for the ranks of one machine and
for those of a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

from malt._errors import DamagedError, PeerError
from malt._pool.tree import Node, Tree, counted, leaf

_MOST_DEATHS = 3  # of ranks in the same chunk


class Sum:
    """A sum that is being made."""

    def __init__(self, chunks: int) -> None:
        self._results = Tree(chunks)
        self._deaths: Counter[int | None] = Counter()

    def todo(self) -> Sequence[int]:
        """Return the chunks that are not in the sum."""
        return () if self._results.is_whole else self._results.missing()

    def check(self, nodes: Any, chunks: Set[int], rank: int) -> None:
        """Raise DamagedError unless these are nodes of the tree, and of these chunks alone."""
        left = set(chunks)
        for each in nodes if isinstance(nodes, list) else [None]:
            node = each[0] if isinstance(each, tuple) and len(each) == 2 else None
            leaves = self._results.leaves_of(node)
            if not leaves or not left.issuperset(leaves):
                raise DamagedError(f"the sum that rank {rank} sent for pool.sum() is damaged")
            left.difference_update(leaves)

    def add(self, nodes: Iterable[tuple[Node, Any]]) -> None:
        """Add what a rank has of the tree."""
        for node, value in nodes:
            self._results.add(node, value)

    def count_death(self, chunk: int | None, rank: int, end: str) -> None:
        """Count a rank's end in a chunk, or before its first one.

        Raises:
            malt.PeerError: so many ranks have ended in this chunk that the function must be the
                cause.
        """
        self._deaths[chunk] += 1
        if self._deaths[chunk] >= _MOST_DEATHS:
            where = "before their first chunk" if chunk is None else f"in chunk {chunk}"
            raise PeerError(
                f"pool.sum(): {_MOST_DEATHS} ranks have ended {where}; the last, rank {rank}, "
                f"{end}: the function ends its process there, or needs too much memory",
                [rank],
            )

    def has_ended_ranks(self, chunk: int) -> bool:
        """Return whether a rank has ended that was to do this chunk."""
        return self._deaths[chunk] > 0

    def total(self) -> Any:
        return self._results.total()


def deal(chunks: Iterable[int], total: int, ranks: int) -> list[list[int]]:
    """Return by rank which of `total` chunks it is given: neighbours, and always the same ones."""
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for chunk in chunks:
        dealt[chunk * ranks // total].append(chunk)
    return dealt


def add_up(
    function: Callable[..., Any],
    theta: object,
    chunks: Iterable[tuple[int, tuple[Any, ...]]],
    total: int,
    *,
    keeps: bool = True,
) -> list[tuple[Node, Any]]:
    """Return what a rank has of the tree when it has done these chunks, of `total` ones.

    `keeps`: it is still needed when the function is called again, which may write to what it
    returned.
    """
    results = Tree(total)
    for chunk, arrays in chunks:
        results.own()
        results.add(leaf(chunk), counted(function(theta, *arrays)))
    if keeps:
        results.own()
    return results.nodes()
