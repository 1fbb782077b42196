"""Making vectors: the arguments are checked here, with messages in Python's terms."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from malt._arguments import MOST_DEPTH, choose, number, text, whole
from malt._core_import import (
    ALL,
    Codec,
    DeviceVector,
    Graph,
    Group,
    RowVector,
    SparseVectorFloat32,
    SparseVectorFloat64,
    SparseVectorInt32,
    SparseVectorInt64,
    Vector,
    look_for_nvrtc_in,
)
from malt._errors import ConfigError
from malt._job import calls
from malt._job import job as jobs
from malt._mistakes import copied, missed, rebinding
from malt._mistakes.assigning import Arrays
from malt._mistakes.matching import Site, digest_of, place
from malt._partition import Partition, check_partition
from malt._vector_types import AnyVector, SparseVector
from malt._vectors.arrays import as_array, as_dtype, as_shape, check_apart
from malt._vectors.averaging import check_graph
from malt._vectors.device_arrays import DeviceArrays, device_slots, is_on_gpu
from malt._vectors.nvrtc import nvrtc_folders
from malt._words import no_attribute_of_sparse_vector

Made = TypeVar("Made", bound=AnyVector)

_MOST_DIM = 2**31 - 1  # of a sparse vector, as vol/sparse.cpp has it
_SPARSE: dict[str, type[SparseVector]] = {
    "float32": SparseVectorFloat32,
    "float64": SparseVectorFloat64,
    "int32": SparseVectorInt32,
    "int64": SparseVectorInt64,
}


def _no_attribute(_: SparseVector, name: str) -> Any:
    raise no_attribute_of_sparse_vector(name)


for _kind in _SPARSE.values():  # here, and not in the core, whose stub would then allow any name
    _kind.__getattr__ = _no_attribute  # type: ignore[union-attr]


def _options(
    name: str | None,
    graph: Graph,
    policy: str,
    depth: int,
    reject_nonfinite: bool,
    max_norm: float | None,
) -> dict[str, Any]:
    check_graph(graph)
    if name is not None:
        text("name", name)
    choose("policy", policy, ("latest", "queue"))
    whole("depth", depth, 1, MOST_DEPTH)
    if max_norm is not None:
        max_norm = number("max_norm", max_norm, 0, above=True)
    return {
        "name": name if name is not None else f"vector-{jobs.current().vectors + 1}",
        "graph": graph,
        "policy": policy,
        "depth": depth,
        "reject_nonfinite": reject_nonfinite,
        "max_norm": max_norm,
    }


def _describe(kind: str, options: dict[str, Any]) -> str:
    """Describe a vector such that a rejoining rank must make one with the same description."""
    shown = ", ".join(f"{key}={options[key]}" for key in ("policy", "depth"))
    if options.get("codec"):
        shown += f", codec={options['codec']}"
    return f"{kind} vector {options['name']!r} over {options['graph']!r}, {shown}"


def vector(
    data: Any,
    *,
    dtype: npt.DTypeLike | None = None,
    name: str | None = None,
    graph: Graph = ALL,
    policy: str = "latest",
    depth: int = 2,
    reject_nonfinite: bool = False,
    max_norm: float | None = None,
    codec: Codec | None = None,
) -> Vector:
    """Make a dense vector that can be scattered and gathered. Collective.

    Threads: any thread may call, but the calls of a job (those of its vectors, barrier(), save(),
    making a vector, ...) run one at a time. A call waits while another thread's call works. It
    raises ConfigError, which names the other thread, while that thread's call waits for other ranks
    or runs a fold of yours: make all calls in one thread, or hold a lock of your own around each. A
    call inside a fold of yours raises ConfigError too. rank(), size(), alive(), epoch(), stats()
    and the arrays are free at any time; during a gather an array has some elements from before the
    gather and some from after it.

    Args:
        data: an array (NumPy; PyTorch on the CPU; with NumPy 2.2.5 anything on the CPU with
            DLPack; a PyTorch or CuPy array on an NVIDIA GPU), whose memory is shared, not copied; a
            list of arrays of one dtype, which make one vector and may not share memory; or a shape,
            for zeros in memory of MALT's own on the CPU, with which allreduce() copies less. Two
            vectors may be over one array (say, with different graphs): each folds into it by
            itself. All ranks give memory of the same kind, on the CPU or on GPUs.
        dtype: float32, float64, int32 or int64. An array has its own; for a shape, float32 if None.
        name: for error messages; each open vector has a name of its own.
        graph: which ranks send to which.
        policy: "latest" (a newer update replaces one that its receiver has not folded; scatter
            never waits) or "queue" (no update is lost; scatter waits for a free slot).
        depth: slots per sender; "queue" with depth 1 is NOTIFY-ACK.
        reject_nonfinite: refuse updates that contain NaN or infinity, and count them.
        max_norm: before an update is folded, scale it down to this L2 norm if its own is larger,
            and count it; an update with NaN or infinity is refused. For float32 and float64; each
            rank may have its own. Neither this nor reject_nonfinite concerns allreduce().
        codec: how scatter() encodes float32 or float64 elements in fewer bytes: FLOAT16 or
            BFLOAT16, INT8 (256 elements share a scale), or TOP_K(fraction) for gradients. The
            receivers fold the decoded values; this rank's own values stay as they are, and
            allreduce() is exact.

    Raises:
        ConfigError: the data cannot be shared; two arrays share memory; max_norm is not above 0;
            the elements are integers and there is a max_norm or a codec; or, on every rank, the
            ranks disagree, the graph does not connect them, or there is no room.
        TimeoutError: the ranks that the error names did not make the vector.

    If an exception of a signal handler (Ctrl-C) ends the call, the others may have the vector. They
    then wait for this rank in it, until their time limit; make another one on all ranks.
    """
    counted = sys.getrefcount(data)  # by itself: an argument of another call would be one more
    kept = rebinding.references_kept(data, counted)
    with jobs.current().turns.hold("making a vector"):
        options = _options(name, graph, policy, depth, reject_nonfinite, max_norm)
        return _dense(data, dtype, codec, kept, name, options)


def _dense(
    data: Any,
    dtype: npt.DTypeLike | None,
    codec: Codec | None,
    kept: list[int],
    name: str | None,
    options: dict[str, Any],
) -> Vector:
    if codec is not None and not isinstance(codec, Codec):
        raise ConfigError(f"codec is {codec!r}; it is malt.FLOAT16, BFLOAT16, INT8 or TOP_K(f)")
    options["codec"] = codec
    shape = as_shape(data)
    if shape is not None:
        kind = as_dtype(np.float32 if dtype is None else dtype)
        made = _make(kind, [], math.prod(shape), None, options, name)
        made.show(made.array.reshape(shape))
        return made
    several = isinstance(data, Sequence) and not isinstance(data, (str, bytes))
    given = data if several else [data]
    on_gpu = [is_on_gpu(part) for part in given]
    if any(on_gpu):
        if not all(on_gpu):
            raise ConfigError(
                "some arrays are on a GPU and some are not; make a vector for each kind of memory"
            )
        # It has the calls of a Vector, and users should see it as one.
        return cast(Vector, _make_on_gpu(DeviceArrays(given), dtype, data, options, name))
    arrays = [as_array(part) for part in given]
    check_apart(arrays)
    kinds = sorted({array.dtype.name for array in arrays})
    if len(kinds) != 1:
        raise ConfigError(
            f"the arrays of one vector have one dtype, not {', '.join(kinds) or 'none'}"
        )
    if dtype is not None and (kind := as_dtype(dtype)).name != kinds[0]:
        raise ConfigError(
            f"dtype is {kind}, but the array has {kinds[0]}; its memory is shared, so "
            "it cannot be converted: leave dtype out, or convert the array first (w = "
            "w.astype(...)), then use that w in the loop"
        )
    options["watch"] = rebinding.watch(options["name"], given, kept, several) or copied.watch(
        options["name"], arrays, kept
    )
    shown = data if isinstance(data, np.ndarray) else Arrays(arrays) if several else arrays[0]
    return _make(arrays[0].dtype, arrays, 0, shown, options, name)


def own_rows(rows: npt.NDArray[np.int64], name: str, depth: int, description: str) -> RowVector:
    """Make a vector over this rank's row of `rows`; each other rank's row arrives in its own row.

    A rejoining rank does not receive this row as the values of its own.
    """

    def build(group: Group, rejoins: bool) -> RowVector:
        return RowVector(group=group, rows=rows, name=name, depth=depth, rejoins=rejoins)

    return calls.make(build, description, has_shared_values=False, is_of_loop=False)


def _make(
    dtype: np.dtype[Any],
    arrays: list[npt.NDArray[Any]],
    own_count: int,
    shown: Any,
    options: dict[str, Any],
    name: str | None,
) -> Vector:
    site = Site(name, place(), digest_of(arrays) if arrays else 0, is_on_gpu=False)

    def build(group: Group, rejoins: bool) -> Vector:
        _compare(group, rejoins, site, options)
        return Vector(
            group=group,
            dtype=dtype,
            arrays=arrays,
            own_count=own_count,
            shown=shown,
            rejoins=rejoins,
            **options,
        )

    count = own_count + sum(array.size for array in arrays)
    owner = "of its own memory" if own_count else "over arrays"
    return _screened(calls.make(build, _describe(f"{dtype} x {count} {owner}", options)), options)


def _screened(made: Made, options: dict[str, Any]) -> Made:
    """Have a warning logged when the vector refuses updates that are not finite."""
    if (options["reject_nonfinite"] or options["max_norm"] is not None) and jobs.size() > 1:
        missed.note_screen(made, options["graph"], jobs.current().group)
    return made


def _compare(group: Group, rejoins: bool, site: Site, options: dict[str, Any]) -> None:
    """Tell the other ranks of a vector that all make now."""
    if not rejoins and group.size > 1:
        jobs.current().matching.compare(group, options["name"], site)


def _make_on_gpu(
    arrays: DeviceArrays,
    dtype: npt.DTypeLike | None,
    shown: Any,
    options: dict[str, Any],
    name: str | None,
) -> DeviceVector:
    if dtype is not None and (kind := as_dtype(dtype)) != arrays.dtype:
        raise ConfigError(
            f"dtype is {kind}, but the array has {arrays.dtype}; its memory is shared, "
            "so it cannot be converted: leave dtype out, or convert the array first"
        )
    look_for_nvrtc_in(nvrtc_folders())
    site = Site(name, place(), 0, is_on_gpu=True)

    def build(group: Group, rejoins: bool) -> DeviceVector:
        _compare(group, rejoins, site, options)
        return DeviceVector(
            group=group,
            dtype=arrays.dtype,
            places=arrays.places,
            shown=shown,
            stream=arrays.stream,
            slots=device_slots(),
            rejoins=rejoins,
            **options,
        )

    count = sum(count for _, count in arrays.places)
    made = _screened(
        calls.make(build, _describe(f"{arrays.dtype} x {count} on GPUs", options)), options
    )
    jobs.current().companions.add(made)  # the GPU may still be sending when the program ends
    return made


def sparse_vector(
    dim: int,
    *,
    capacity: int,
    dtype: npt.DTypeLike = np.float32,
    name: str | None = None,
    graph: Graph = ALL,
    policy: str = "latest",
    depth: int = 2,
    reject_nonfinite: bool = False,
    max_norm: float | None = None,
    partition: Partition | None = None,
) -> SparseVector:
    """Make a sparse vector that can be scattered and gathered. Collective.

    Args:
        dim: its length, below 2**31.
        capacity: the most elements it stores.
        dtype: of the values: float32, float64, int32 or int64.
        name: this and the following as in vector(): a name for error messages.
        graph: which ranks send to which.
        policy: "latest" or "queue".
        depth: slots per sender.
        reject_nonfinite: refuse updates that contain NaN or infinity, and count them.
        max_norm: an update with a larger L2 norm is scaled down to this one.
        partition: of data whose columns are the elements, each rank having the rows of its part.
            Updates then leave out the elements that only one rank's rows have. Give all ranks the
            same.

    Raises:
        ConfigError: as vector() does; or the partition has another number of columns than `dim`, or
            parts for more ranks than there are.
        TimeoutError: as vector() does.
    """
    with jobs.current().turns.hold("making a vector"):
        whole("dim", dim, 1, _MOST_DIM, "; split a longer vector")
        whole("capacity", capacity, 1, int(dim), ", the dim")
        kind = as_dtype(dtype)
        if kind.name not in _SPARSE:
            raise ConfigError(f"dtype is {kind}; a sparse vector has {', '.join(_SPARSE)}")
        options = _options(name, graph, policy, depth, reject_nonfinite, max_norm)
        shared = np.zeros(0, np.uint8)
        shown = f"sparse {kind} x {dim}, capacity {capacity},"
        if partition is not None:
            check_partition(partition, parts=jobs.size(), exactly=False)
            if len(partition.columns) != dim:
                raise ConfigError(
                    f"partition has {len(partition.columns)} columns, but dim is {dim}; make it of "
                    "data with as many columns as the vector has elements"
                )
            shared = partition.shared.astype(np.uint8)
            shown += f" partition {partition.checksum:08x},"

        site = Site(name, place(), 0, is_on_gpu=False)

        def build(group: Group, rejoins: bool) -> SparseVector:
            _compare(group, rejoins, site, options)
            return _SPARSE[kind.name](
                group=group, dim=dim, capacity=capacity, rejoins=rejoins, shared=shared, **options
            )

        return _screened(calls.make(build, _describe(shown, options)), options)
