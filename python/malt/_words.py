"""Names that other libraries have, and the call of MALT that is meant."""

from __future__ import annotations

from collections.abc import Iterable

_ALL_VALUES = "malt.allreduce(value, list), which gives each rank the list of all ranks' values"
_FOLD = "malt.allreduce(value) of a number or a short array, or v.allreduce() of a vector"
_FROM_ONE = "malt.broadcast(value, root=0), which returns rank 0's value on every rank"
_ONE_TO_ONE = "malt.messages.Edge(src, dst), and its send() and receive()"
_MODEL = (
    "malt.torch.average(model), or malt.torch.GradientExchange(model); both give all ranks the "
    "lowest rank's weights first"
)
_BACKEND = (
    'torch.distributed.init_process_group("malt"), for programs of torch.distributed as they are; '
    "else malt.init()"
)
_START = "malt run -n 4 train.py in a shell, or pool = malt.Pool(4) and pool.run(function)"
_MEAN = "malt.AVG"

# In lower case without underscores.
_MEANT = {
    "scatter": (
        "v.scatter() of a vector, v = malt.vector(w), which sends all of it to the neighbours; to "
        "cut data into parts, as MPI's scatter does, malt.shard(data)"
    ),
    "gather": (
        "v.gather() of a vector, v = malt.vector(w), which folds what has arrived; to collect a "
        f"value of each rank, as MPI's gather does, {_ALL_VALUES}"
    ),
    **dict.fromkeys(
        ("allgather", "allgatherobject", "gatherobject", "allgatherintotensor", "gatherv"),
        _ALL_VALUES,
    ),
    **dict.fromkeys(("reduce", "groupedallreduce", "pushpull", "aggregate"), _FOLD),
    **dict.fromkeys(
        ("bcast", "broadcastobject", "broadcastobjectlist", "broadcastvariables"),
        _FROM_ONE,
    ),
    **dict.fromkeys(
        (
            "broadcastparameters",
            "broadcastoptimizerstate",
            "ddp",
            "dataparallel",
            "distributeddataparallel",
            "distributedgradienttape",
            "distributedoptimizer",
            "fullyshardeddataparallel",
        ),
        _MODEL,
    ),
    **dict.fromkeys(("send", "recv", "receive", "isend", "irecv", "sendrecv"), _ONE_TO_ONE),
    **dict.fromkeys(("getrank", "rankid", "myrank"), "malt.rank()"),
    **dict.fromkeys(
        ("getworldsize", "worldsize", "getsize", "numranks", "numworkers", "nprocs"), "malt.size()"
    ),
    **dict.fromkeys(
        ("localrank", "getlocalrank", "localsize", "crossrank"),
        'int(os.environ["MALT_LOCAL_RANK"]), the number of the rank on its host under malt run',
    ),
    **dict.fromkeys(
        ("commworld", "comm"), "malt.init(), then malt.rank(), malt.size() and malt.vector(w)"
    ),
    "initprocessgroup": _BACKEND,
    **dict.fromkeys(("destroyprocessgroup", "shutdown", "exit", "close"), "malt.finalize()"),
    **dict.fromkeys(("isinitialized", "initialized"), "malt.init(), which may be called twice"),
    **dict.fromkeys(("run", "spawn", "launch", "remote", "start"), _START),
    **dict.fromkeys(("mean", "average", "averaging"), _MEAN),
    **dict.fromkeys(
        ("max", "min", "op", "reduceop"),
        "malt.allreduce(value, max), of any function of the list of values",
    ),
    **dict.fromkeys(
        ("split", "scatterdataset", "partitiondata", "shards", "distributedsampler"),
        "malt.shard(data), this rank's part",
    ),
    **dict.fromkeys(
        ("reducescatter", "alltoall"), "v.allreduce() of a vector, of which each rank takes a part"
    ),
    **dict.fromkeys(("put", "get", "win", "window"), "v.scatter() and v.gather() of a vector"),
    **dict.fromkeys(("loadcheckpoint", "load"), "malt.restore(path, vectors)"),
    **dict.fromkeys(("savecheckpoint", "checkpoint"), "malt.save(path, vectors)"),
}
_POOL = {
    **dict.fromkeys(
        ("map", "imap", "imapunordered", "starmap", "mapasync", "starmapasync", "mapreduce"),
        "pool.sum(function, theta, pool.share(rows)) adds up a function of all rows; "
        "pool.run(lambda: [f(x) for x in malt.shard(xs)]) returns a list for each rank",
    ),
    **dict.fromkeys(
        ("apply", "applyasync", "submit", "execute", "call"),
        "pool.run(function, *args) runs it on every rank, and returns a list of the results",
    ),
    "reduce": "pool.sum(function, theta, data)",
    **dict.fromkeys(("scatter", "put", "broadcast"), "pool.share(rows)"),
    **dict.fromkeys(("join", "terminate", "shutdown", "stop"), "pool.close()"),
}
_SPARSE = {
    "allreduce": "use v.scatter() and v.gather(), or a dense vector, v = malt.vector(w)",
    "array": "its elements are v.indices and v.values, and v.set(indices, values) replaces them",
}


def no_attribute(name: str, public: Iterable[str]) -> AttributeError:
    """Return the error for ``malt.<name>``, which names the call that is meant."""
    word = _plain(name)
    # MPI's own spelling of a name that MALT has: malt.Barrier, malt.halton.
    names = (f"malt.{each}" for each in public if _plain(each.rpartition(".")[2]) == word)
    meant = next(names, _MEANT.get(word, ""))
    way_out = f"; you may want {meant}" if meant else ""
    return AttributeError(f"module 'malt' has no attribute '{name}'{way_out}")


def no_attribute_of_pool(name: str) -> AttributeError:
    """Return the error for ``pool.<name>``, which names the call that is meant."""
    way_out = _POOL.get(_plain(name), "")
    return AttributeError(f"malt.Pool has no attribute '{name}'{way_out and '; ' + way_out}")


def no_attribute_of_sparse_vector(name: str) -> AttributeError:
    """Return the error for ``v.<name>`` of a sparse vector, which names the call that is meant."""
    way_out = _SPARSE.get(_plain(name), "")
    return AttributeError(f"a sparse vector has no attribute '{name}'{way_out and '; ' + way_out}")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
