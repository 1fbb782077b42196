"""Chooses the nodes where ranks of an elastic job start or leave, to keep nodes equally full."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping


def starts(running: Mapping[int, Collection[int]], ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Choose a node for each of these ranks to start on: the one with the fewest by then.

    Args:
        running: each node's ranks; one node at least.
        ranks: the ranks to start.

    Returns:
        Pairs of node and rank. Of nodes with equally many, the lowest comes first.
    """
    nodes = [(len(of_node), node) for node, of_node in running.items()]
    heapq.heapify(nodes)
    chosen = []
    for rank in ranks:
        count, node = nodes[0]
        heapq.heapreplace(nodes, (count + 1, node))
        chosen.append((node, rank))
    return chosen


def leaves(running: Mapping[int, Collection[int]], count: int) -> list[tuple[int, int]]:
    """Choose the ranks that leave: `count` times the highest rank of the node with the most.

    Args:
        running: each node's ranks.
        count: how many leave, fewer than there are.

    Returns:
        Pairs of node and rank. Of nodes with equally many, the one with the highest rank comes
        first, so the lowest rank of all stays.
    """
    left = {node: sorted(of_node) for node, of_node in running.items() if of_node}
    nodes = [(-len(ranks), -ranks[-1], node) for node, ranks in left.items()]
    heapq.heapify(nodes)
    chosen = []
    for _ in range(count):
        _, highest, node = heapq.heappop(nodes)
        chosen.append((node, -highest))
        ranks = left[node]
        ranks.pop()
        if ranks:
            heapq.heappush(nodes, (-len(ranks), -ranks[-1], node))
    return chosen
