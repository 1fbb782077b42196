"""Pytrees of JAX arrays on many ranks: their mean, or another fold.

    malt.init()
    for batch in batches:                                # this rank's
        params, state = step(params, state, batch)       # jitted, with Optax or without
        params = malt.jax.average(params)

The calls work between jitted functions, and inside them:

    @jax.jit
    def step(params, batch):
        gradients = malt.jax.allreduce(jax.grad(loss)(params, batch))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

Needs JAX 0.4.30 or later (`pip install "malt-sgd[jax]"`), which `import malt` alone never imports.
Arrays on a GPU are copied to the host's memory for the exchange, and back. Several processes on
one machine each have a copy of JAX, which takes all cores: set
`XLA_FLAGS=--xla_cpu_multi_thread_eigen=false` if ranks share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from malt._distribution import pip_install as _pip_install

try:
    import jax
    from jax.experimental import io_callback
except ImportError as error:
    raise ImportError(
        f"malt.jax needs JAX 0.4.30 or later ({error}): {_pip_install('jax')}"
    ) from error

from malt._core_import import ALL, AVG, Fold, Graph, Vector
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job.job import Job
from malt._vectors.averaging import Averaging
from malt._vectors.progress import Progress
from malt._vectors.vectors import vector

__all__ = ["allreduce", "average"]

Array = npt.NDArray[Any]
_EXCHANGED_AS = {"float16": "float32", "bfloat16": "float32"}  # the others as they are
_KINDS = ("float32", "float64", "int32", "int64")


def average(
    tree: Any, *, graph: Graph | None = None, staleness: int | None = 0, name: str = ""
) -> Any:
    """Return the mean of the ranks' trees. Collective.

    Call it after each step, or after every few (local SGD: Stich, 2019). Leaves that are not
    floating-point, such as Optax's step counts, are returned as they are. float16 and bfloat16 are
    averaged in float32.

    Args:
        tree: a pytree of arrays, or inside `jax.jit` of its values; of one structure, with the same
            shapes and dtypes, on all ranks. Each structure has memory of its own
            until malt.finalize().
        graph: which ranks send to which; None: every rank to every rank.
        staleness: how many calls an in-neighbour may be behind; 0: a call waits for theirs of the
            same number (BSP); None: it waits for none.
        name: tells trees of one structure apart, where several are averaged with a staleness that
            is not 0.

    Returns:
        A tree of the same structure, with JAX arrays for the leaves that were exchanged, each on
        the device of its leaf.

    Raises:
        ConfigError: an argument is wrong, a leaf is not all in this process, or, on every rank, the
            ranks' trees differ.
        TimeoutError: the ranks that the error names did not come to this exchange. Call it again
            with the same tree: it goes on where it has ended, also after Ctrl-C.
    """
    averaging = Averaging(graph, staleness)
    key = (averaging.graph, averaging.staleness, name)

    def run(progress: Progress, held: Vector) -> None:
        progress.exchange(averaging, held)

    return _exchange(tree, averaging.graph, key, run, False)


def allreduce(tree: Any, fold: Fold = AVG) -> Any:
    """Return the fold of the trees of all live ranks, of the same bits on all ranks. Collective.

    Args:
        tree: as for average(), of float32, float64, int32, int64, float16 and bfloat16; these two
            are folded in float32.
        fold: malt.AVG, SUM or another fold of malt.

    Returns:
        A tree of the same structure, with JAX arrays.

    Raises:
        ConfigError: as average(); or a leaf has another dtype.
        TimeoutError: as average().
    """

    def run(progress: Progress, held: Vector) -> None:
        progress.allreduce(held, fold)

    return _exchange(tree, ALL, "allreduce", run, True)


class _Layout(NamedTuple):
    """The leaves of one dtype, one after the other in a vector."""

    dtype: str
    leaves: tuple[int, ...]  # their numbers in the tree
    sizes: tuple[int, ...]  # elements


_vectors: WeakKeyDictionary[Job, dict[Any, Vector]] = WeakKeyDictionary()
# The calls that an exception has ended on this rank.
_unfinished: WeakKeyDictionary[Job, dict[Any, Progress]] = WeakKeyDictionary()


def _exchange(
    tree: Any, graph: Graph, key: Any, run: Callable[[Progress, Vector], None], has_integers: bool
) -> Any:
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [leaf for _, leaf in paths]
    names = [jax.tree_util.keystr(path) or "the array" for path, _ in paths]
    shaped = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves]
    layouts = _layouts(names, shaped, has_integers)
    if jobs.current().size == 1:
        return tree
    exchanged = [k for layout in layouts for k in layout.leaves]

    def on_host(*given: Any) -> list[Array]:
        arrays = dict(zip(exchanged, map(np.asarray, given), strict=True))
        call = key, str(structure), tuple(layouts)
        unfinished = _unfinished.setdefault(jobs.current(), {})
        progress = unfinished.setdefault(call, Progress())
        for layout in layouts:
            held = _vector(key, str(structure), layout, graph)
            if not progress.has_exchanged(held):
                _fill(held.array, [arrays[k] for k in layout.leaves])
            run(progress, held)
            arrays.update(_parts(held.array, layout, arrays))
        result = [arrays[k] for k in exchanged]
        del unfinished[call]
        return result

    given = [shaped[k] for k in exchanged]
    if any(isinstance(leaf, jax.core.Tracer) for leaf in given):
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in given]
        found = io_callback(on_host, shapes, *given, ordered=True)
    else:
        found = [_like(leaf, array) for leaf, array in zip(given, on_host(*given), strict=True)]
    for k, leaf in zip(exchanged, found, strict=True):
        leaves[k] = leaf
    return jax.tree_util.tree_unflatten(structure, leaves)


def _like(leaf: Any, array: Array) -> jax.Array:
    """Return the array where the leaf is."""
    if isinstance(leaf, jax.Array):
        return jax.device_put(array, leaf.sharding)
    return jax.numpy.asarray(array)


def _layouts(names: list[str], leaves: list[Any], has_integers: bool) -> list[_Layout]:
    """Return where each leaf that is exchanged goes; raise ConfigError for one that cannot be."""
    places: dict[str, list[int]] = {}
    for k, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        kind = _EXCHANGED_AS.get(leaf.dtype.name, leaf.dtype.name)
        if kind not in _KINDS or not (has_integers or kind.startswith("float")):
            if has_integers:
                raise ConfigError(
                    f"{name} has dtype {leaf.dtype}; malt.jax.allreduce() takes float16, bfloat16, "
                    "float32, float64, int32 and int64: convert it with .astype()"
                )
            continue
        is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        if is_array and not leaf.is_fully_addressable:
            raise ConfigError(
                f"{name} is spread over other processes by jax.distributed; malt.jax takes arrays "
                "that are all in this one"
            )
        if leaf.size:
            places.setdefault(kind, []).append(k)
    return [
        _Layout(kind, tuple(ks), tuple(int(leaves[k].size) for k in ks))
        for kind, ks in sorted(places.items())
    ]


def _vector(key: Any, structure: str, layout: _Layout, graph: Graph) -> Vector:
    """Return the vector of this call; make it at the first."""
    held = _vectors.setdefault(jobs.current(), {})
    which = (key, structure, layout)
    if which not in held:
        held[which] = vector(sum(layout.sizes), dtype=layout.dtype, graph=graph)
    return held[which]


def _fill(memory: Array, arrays: list[Array]) -> None:
    begin = 0
    for array in arrays:
        memory[begin : begin + array.size] = array.reshape(-1)
        begin += array.size


def _parts(memory: Array, layout: _Layout, given: dict[int, Array]) -> dict[int, Array]:
    """Return copies of the leaves' parts of the memory, in their own shapes and dtypes."""
    ends = np.cumsum(layout.sizes)
    return {
        k: memory[end - size : end].astype(given[k].dtype).reshape(given[k].shape)
        for k, size, end in zip(layout.leaves, layout.sizes, ends, strict=True)
    }
