"""The public names of `malt`."""

from malt._arguments import number
from malt._checkpoint.checkpoint import save
from malt._checkpoint.restoring import restore
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
    Graph,
    Vector,
    __version__,
    random_graph,
    top_k,
    trimmed_mean,
)
from malt._data.shard import shard
from malt._errors import ConfigError, Error, PeerError, TimeoutError  # noqa: A004
from malt._job.job import (
    alive,
    epoch,
    finalize,
    rank,
    size,
)
from malt._job.joining import init
from malt._job.reporting import report
from malt._messages.collective import allreduce, barrier, broadcast
from malt._vectors.vectors import sparse_vector, vector


def RANDOM(k: int, seed: int) -> Graph:  # noqa: N802  (a name users know in capitals)
    """The graph in which every rank sends to `k` other ranks, drawn anew from `seed` each round."""
    try:
        return random_graph(k, seed)
    except TypeError as error:  # gather(malt.RANDOM) calls it as a fold
        raise ConfigError(
            f"malt.RANDOM({k!r:.50}, {seed!r:.50}): k is a whole number from 1 to {2**31 - 1}, and "
            f"seed one from 0 to {2**64 - 1}; give the graph to a vector, "
            "malt.vector(w, graph=malt.RANDOM(k, seed)); gather() takes a fold, such as malt.AVG"
        ) from error


def TRIMMED_MEAN(fraction: float) -> Fold:  # noqa: N802
    """The fold that averages each element after cutting off its smallest and largest values.

    Args:
        fraction: the share of the values that is cut off at each end, from 0 to below 0.5. This
            rank's own value counts among them.
    """
    try:
        return trimmed_mean(fraction)
    except TypeError:
        raise ConfigError(
            f"TRIMMED_MEAN({fraction!r}): the fraction must be a number at least 0 and below 0.5"
        ) from None


def TOP_K(fraction: float) -> Codec:  # noqa: N802
    """The codec that sends the elements of largest magnitude first, and the others later.

    The codec keeps the elements that it does not send and adds them to the next update (error
    feedback). With the policy "queue", a sum of gradients or differences therefore loses nothing.
    Do not use it for the values of a model.

    Args:
        fraction: the share of the elements that each update sends, above 0 and at most 1.
    """
    return top_k(number("fraction", fraction, 0, above=True, most=1))


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
    "ConfigError",
    "Error",
    "Graph",
    "PeerError",
    "TimeoutError",
    "Vector",
    "__version__",
    "alive",
    "allreduce",
    "barrier",
    "broadcast",
    "epoch",
    "finalize",
    "init",
    "rank",
    "report",
    "restore",
    "save",
    "shard",
    "size",
    "sparse_vector",
    "vector",
]
