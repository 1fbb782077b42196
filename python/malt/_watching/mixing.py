"""Whether the ranks of a job average over a graph that mixes slowly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._core_import import HALTON, Graph
from malt._errors import ConfigError
from malt._watching.trace import SCATTER, ranks_of

_SLOW_GAP = 0.15
_TIMES_BETTER = 2  # the gap of HALTON, by that of the graph: less is no advice worth giving


def slow_graph(size: int, events: Sequence[npt.NDArray[Any]]) -> list[str]:
    """Return what there is to say about the graph, if each rank sends to the same ranks each time.

    Nothing is said of a graph that varies by round, nor of vectors with different graphs: single
    calls do not tell which of them belong together.

    Args:
        size: of the job.
        events: the newest ones of each rank.
    """
    if len(events) != size or not 2 < size <= 64:
        return []  # other hosts' ranks are not seen here, nor receivers from rank 64 on
    edges = []
    for rank, of_rank in enumerate(events):
        receivers = np.unique(of_rank["ranks"][of_rank["kind"] == SCATTER])
        if len(receivers) != 1:
            return []
        edges += [(rank, receiver) for receiver in ranks_of(int(receivers[0]))]
    try:
        gap = Graph(edges).spectral_gap(size)
    except ConfigError:  # ranks have ended, and the others send to them no more
        return []
    better = HALTON.spectral_gap(size)
    if gap >= _SLOW_GAP or gap <= 0 or better < _TIMES_BETTER * gap:
        return []
    rounds = math.log(0.5) / math.log1p(-gap)
    problem = (
        f"The graph mixes slowly: its spectral gap is {gap:.2f} on {size} ranks, that of "
        f"malt.HALTON is {better:.2f}. The differences of the ranks are halved in {rounds:.0f} "
        f"rounds, with malt.HALTON in {math.log(0.5) / math.log1p(-better):.1f}. Give the vectors "
        "graph=malt.HALTON, or a graph of your own with more links."
    )
    return [problem]
