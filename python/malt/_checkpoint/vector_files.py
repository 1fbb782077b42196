"""Vectors as arrays in a file, and restoring them from one file or from the mean of several."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from malt._checkpoint.safetensors import Array, SafetensorsFile, open_file
from malt._core_import import DeviceVector, Vector
from malt._errors import ConfigError
from malt._npy import Npz, read_array, read_header
from malt._vector_types import SPARSE_VECTORS, SparseVector

SUFFIXES = (".safetensors", ".npz", ".npy")


class Source(Collection[str], Protocol):
    """A file's arrays, by name. Their shapes and dtypes are known before they are read."""

    def __getitem__(self, name: str, /) -> Array: ...
    def shape_of(self, name: str) -> tuple[int, ...]: ...
    def dtype_of(self, name: str) -> np.dtype[Any] | None: ...


def arrays_of(name: str, vector: Any) -> dict[str, Array]:
    """Return a vector's arrays by their names in a file.

    Those of a dense one are its memory, or copies if that is on a GPU.
    """
    if isinstance(vector, DeviceVector):
        return _copies(name, vector)
    if isinstance(vector, SPARSE_VECTORS):
        return {
            f"{name}/indices": vector.indices,
            f"{name}/values": vector.values,
            f"{name}/dim": np.array(vector.dim),
        }
    array = vector.array if isinstance(vector, Vector) else vector
    if isinstance(array, np.ndarray):
        return {name: array}
    if isinstance(vector, Vector):
        return {f"{name}/{i}": part for i, part in enumerate(array)}
    raise ConfigError(
        f"vectors[{name!r}] is a {type(vector).__name__}; it is a vector of malt.vector() or "
        "malt.sparse_vector(), or a NumPy array"
    )


@contextlib.contextmanager
def opened(path: Path, names: Collection[str]) -> Iterator[Source]:
    """Open a file in one of the formats of SUFFIXES; `names` is for .npy, which has no names.

    Raises:
        ConfigError: it is in none of these formats, or would need pickle.
    """
    if path.suffix == ".safetensors":
        yield SafetensorsFile(path)
        return
    with open_file(path) as file:
        if path.suffix == ".npz":
            yield Npz(file, str(path))
        elif len(names) > 1:
            raise ConfigError(
                f"{path} has one array, and is to be put into {len(names)} vectors "
                f"({listed(names)}); put them into an .npz or .safetensors file"
            )
        else:
            yield _Single(path, file, next(iter(names), "array"))


class _Single(Mapping[str, Array]):
    """The array of an .npy file, by a name that the caller gives it."""

    def __init__(self, path: Path, file: BinaryIO, name: str) -> None:
        self._path, self._file, self._name = str(path), file, name
        self._header = read_header(file, self._path, os.fstat(file.fileno()).st_size)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter([self._name])

    def __getitem__(self, name: str) -> Array:
        if name != self._name:
            raise KeyError(name)
        self._file.seek(self._header.offset)
        return read_array(self._file, self._path, self._header)

    def shape_of(self, _: str) -> tuple[int, ...]:
        return self._header.shape

    def dtype_of(self, _: str) -> np.dtype[Any]:
        return self._header.dtype


def prepare(
    vectors: Mapping[str, Any], sources: Sequence[Source], origin: Path
) -> list[Callable[[], None]]:
    """Read the mean of the sources; calling the returned functions puts it into the vectors.

    Raises:
        ConfigError: an array is missing, or has another dtype or shape; nothing is changed.
    """
    puts: list[Callable[[], None]] = []
    for name, vector in vectors.items():
        if isinstance(vector, SPARSE_VECTORS):
            puts.append(_prepare_sparse(name, vector, sources, origin))
            continue
        parts = arrays_of(name, vector)
        for part, target in parts.items():
            puts.append(_prepare_dense(part, target, sources, origin))
        if isinstance(vector, DeviceVector):
            puts.append(functools.partial(_write, vector, list(parts.values())))
    return puts


def _copies(name: str, vector: DeviceVector) -> dict[str, Array]:
    several = isinstance(vector.array, Sequence)
    shapes = [tuple(each.shape) for each in (vector.array if several else [vector.array])]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(vector.read(), ends[:-1])
    shaped = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return {f"{name}/{i}": part for i, part in enumerate(shaped)} if several else {name: shaped[0]}


def _write(vector: DeviceVector, parts: Sequence[Array]) -> None:
    vector.write(np.concatenate([part.reshape(-1) for part in parts]))


def _prepare_dense(
    name: str, target: Array, sources: Sequence[Source], origin: Path
) -> Callable[[], None]:
    if not target.flags.writeable:
        raise ConfigError(f"vectors[{name!r}] is read-only; give an array that can be written")
    fresh = _fetch(name, sources[0], origin, target.dtype, target.shape)
    if len(sources) > 1:
        sums = [np.asarray(each, _wide(each)) for each in _summands(name, fresh, len(sources))]
        for source in sources[1:]:
            values = _fetch(name, source, origin, target.dtype, target.shape)
            for total, summand in zip(sums, _summands(name, values, len(sources)), strict=True):
                np.add(total, summand, out=total)
        fresh = _mean(sums, len(sources))
    return lambda: np.copyto(target, fresh, casting="same_kind")


def _prepare_sparse(
    name: str, vector: SparseVector, sources: Sequence[Source], origin: Path
) -> Callable[[], None]:
    dtype = vector.values.dtype
    indices, values = [], []
    for source in sources:
        dim = int(_fetch(f"{name}/dim", source, origin, np.dtype(np.int64), ()))
        if dim != vector.dim:
            raise ConfigError(
                f"{origin}: sparse vector {name!r} has dim {dim}, and the one it is for "
                f"{vector.dim}; make that like it"
            )
        _check_named(f"{name}/indices", source, origin)
        elements = math.prod(source.shape_of(f"{name}/indices"))
        _check_capacity(name, vector, elements, "", origin)
        indices.append(_fetch(f"{name}/indices", source, origin, np.dtype(np.int32), None))
        values.append(_fetch(f"{name}/values", source, origin, dtype, indices[-1].shape))
        if indices[-1].ndim != 1 or np.any((indices[-1] < 0) | (indices[-1] >= dim)):
            raise ConfigError(
                f"{origin}: {name}/indices is not one row of numbers from 0 to below {dim}"
            )
    union, places = np.unique(np.concatenate(indices), return_inverse=True)
    together = f" (of {len(sources)} ranks together)"
    _check_capacity(name, vector, len(union), together, origin)
    sums = []
    for summand in _summands(name, np.concatenate(values), len(sources)):
        sums.append(np.zeros(len(union), _wide(summand)))
        np.add.at(sums[-1], places, summand)
    fresh = _mean(sums, len(sources)).astype(dtype)
    return lambda: vector.set(union, fresh)


def _check_capacity(
    name: str, vector: SparseVector, elements: int, together: str, origin: Path
) -> None:
    if elements > vector.capacity:
        raise ConfigError(
            f"{origin}: sparse vector {name!r} has {elements} elements{together}, and the one it "
            f"is for a capacity of {vector.capacity}; make that larger"
        )


def _fetch(
    name: str,
    source: Source,
    origin: Path,
    dtype: np.dtype[Any],
    shape: tuple[int, ...] | None,
) -> Array:
    """Return an array of this dtype, and of this shape unless that is None."""
    _check_named(name, source, origin)
    said, said_shape = source.dtype_of(name), source.shape_of(name)
    if said is not None and (said.newbyteorder("=") != dtype or shape not in (None, said_shape)):
        need = f"{dtype}" if shape is None else f"{dtype} of shape {shape}"
        raise ConfigError(
            f"{origin}: array {name!r} is {said} of shape {said_shape}, and the vector "
            f"takes {need}; make the vector like it, or convert the array in the file"
        )
    return source[name]


def _check_named(name: str, source: Source, origin: Path) -> None:
    if name not in source:
        raise ConfigError(
            f"{origin} has no array {name!r}; it has {listed(source)}: name the vectors so"
        )


def _wide(summand: Array) -> type[np.number[Any]]:
    """Return the type in which a mean is summed."""
    return {"f": np.float64, "i": np.int64, "u": np.uint64}[summand.dtype.kind]


def _summands(name: str, values: Array, count: int) -> tuple[Array, ...]:
    """Return the arrays whose sums over `count` ranks _mean() needs.

    Those of integers are quotients and remainders: a sum of the integers may not fit into 64 bits.
    """
    if values.dtype.kind not in "fiu":
        raise ConfigError(
            f"vectors[{name!r}] is {values.dtype}, which has no mean, and another number of ranks "
            "saved it; restore with resized='wrap'"
        )
    if values.dtype.kind == "f":
        return (values,)
    return np.divmod(values.astype(_wide(values), copy=False), count)


def _mean(sums: Sequence[Array], count: int) -> Array:
    """Return the mean as malt.AVG does: integers are rounded toward zero."""
    if len(sums) == 1:
        return np.asarray(sums[0] / count)
    quotients, remainders = sums
    carried, rest = np.divmod(remainders, count)
    floor = quotients + carried
    return np.asarray(floor + ((floor < 0) & (rest > 0)))


def listed(names: Collection[str], most: int = 10) -> str:
    shown = ", ".join(repr(name) for name in sorted(names)[:most])
    return f"{shown}, … ({len(names)} in all)" if len(names) > most else shown or "none"
