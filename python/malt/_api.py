"""What `malt` offers by name."""

from malt._checkpoint.checkpoint import Restored, restore, save
from malt._core_import import (
    ALL,
    AVG,
    BFLOAT16,
    EXPONENTIAL,
    FLOAT16,
    HALTON,
    INT8,
    MEDIAN,
    ONE_PEER,
    REPLACE,
    RING,
    STAR,
    SUM,
    WEIGHTED,
    Codec,
    Fold,
    Gathered,
    Graph,
    Route,
    Stats,
    Update,
    Vector,
    __version__,
    random_graph,
    top_k,
    trimmed_mean,
)
from malt._data.shard import Shard, shard
from malt._errors import ConfigError, Error, PeerError, TimeoutError  # noqa: A004
from malt._job.collective import allreduce, broadcast
from malt._job.job import (
    Job,
    alive,
    barrier,
    epoch,
    finalize,
    init,
    leave,
    leaving,
    on_change,
    rank,
    restarts,
    size,
)
from malt._job.vectors import sparse_vector, vector


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


def TOP_K(fraction: float) -> Codec:  # noqa: N802
    """The codec that sends the elements of largest magnitude, and the others later.

    What is not sent is kept and added to what is sent next (error feedback), so nothing of a sum of
    gradients or differences is lost, if the policy is "queue". It is not for models.

    Args:
        fraction: of the elements, above 0 and at most 1.
    """
    return top_k(fraction)


__all__ = [
    "ALL",
    "AVG",
    "BFLOAT16",
    "EXPONENTIAL",
    "FLOAT16",
    "HALTON",
    "INT8",
    "MEDIAN",
    "ONE_PEER",
    "RANDOM",
    "REPLACE",
    "RING",
    "STAR",
    "SUM",
    "TOP_K",
    "TRIMMED_MEAN",
    "WEIGHTED",
    "Codec",
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
    "allreduce",
    "barrier",
    "broadcast",
    "epoch",
    "finalize",
    "init",
    "leave",
    "leaving",
    "on_change",
    "rank",
    "restarts",
    "restore",
    "save",
    "shard",
    "size",
    "sparse_vector",
    "vector",
]
