"""MALT: an existing training loop, data-parallel and peer to peer, with two calls.

    import malt, numpy as np
    malt.init()                           # under `malt run -n 4`, mpirun, srun, or one process
    w = np.zeros(dim, dtype=np.float32)   # the loop's own array
    m = malt.vector(w, graph=malt.HALTON)
    ...
    m.scatter()                           # write it into the other ranks' memory
    m.gather(malt.AVG)                    # fold what has arrived here

After MALT: Distributed Data Parallelism for Existing ML Applications (EuroSys 2015).
"""

from malt._checkpoint import Restored, restore, save
from malt._core_import import (
    ALL,
    AVG,
    EXPONENTIAL,
    HALTON,
    MEDIAN,
    ONE_PEER,
    REPLACE,
    RING,
    STAR,
    SUM,
    WEIGHTED,
    Fold,
    Gathered,
    Graph,
    Route,
    Stats,
    Update,
    Vector,
    __version__,
    random_graph,
    trimmed_mean,
)
from malt._errors import ConfigError, Error, PeerError, TimeoutError  # noqa: A004
from malt._job import Job, alive, barrier, epoch, finalize, init, on_change, rank, size
from malt._shard import Shard, shard
from malt._vectors import sparse_vector, vector


def RANDOM(k: int, seed: int) -> Graph:  # noqa: N802  (a name users know in capitals)
    """The graph in which every rank sends to `k` others, drawn anew in each round from `seed`."""
    return random_graph(k, seed)


def TRIMMED_MEAN(fraction: float) -> Fold:  # noqa: N802
    """The fold that averages what is left, element by element, without the smallest and largest.

    Args:
        fraction: of the values (this rank's own among them) that is cut off at each end, from 0 to
            below 0.5.
    """
    return trimmed_mean(fraction)


__all__ = [
    "ALL",
    "AVG",
    "EXPONENTIAL",
    "HALTON",
    "MEDIAN",
    "ONE_PEER",
    "RANDOM",
    "REPLACE",
    "RING",
    "STAR",
    "SUM",
    "TRIMMED_MEAN",
    "WEIGHTED",
    "ConfigError",
    "Error",
    "Fold",
    "Gathered",
    "Graph",
    "Job",
    "PeerError",
    "Restored",
    "Route",
    "Shard",
    "Stats",
    "TimeoutError",
    "Update",
    "Vector",
    "__version__",
    "alive",
    "barrier",
    "epoch",
    "finalize",
    "init",
    "on_change",
    "rank",
    "restore",
    "save",
    "shard",
    "size",
    "sparse_vector",
    "vector",
]
