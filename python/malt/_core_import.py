"""The compiled core's names, or a message that helps."""

try:
    from malt._core import (
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
        Group,
        Route,
        SparseVectorFloat32,
        SparseVectorFloat64,
        SparseVectorInt32,
        SparseVectorInt64,
        Stats,
        Update,
        Vector,
        __version__,
        announce_faults,
        announce_no_faults,
        random_graph,
        trimmed_mean,
    )
except ImportError as error:
    raise ImportError(
        f"MALT's compiled core (malt._core) cannot be loaded: {error}. Install MALT with "
        "`pip install malt`, or in a checkout with `./dev build`; if it is installed, the Python "
        "that runs here is not the one it was installed for."
    ) from error

__all__ = [
    "ALL",
    "AVG",
    "EXPONENTIAL",
    "HALTON",
    "MEDIAN",
    "ONE_PEER",
    "REPLACE",
    "RING",
    "STAR",
    "SUM",
    "WEIGHTED",
    "Fold",
    "Gathered",
    "Graph",
    "Group",
    "Route",
    "SparseVectorFloat32",
    "SparseVectorFloat64",
    "SparseVectorInt32",
    "SparseVectorInt64",
    "Stats",
    "Update",
    "Vector",
    "__version__",
    "announce_faults",
    "announce_no_faults",
    "random_graph",
    "trimmed_mean",
]
