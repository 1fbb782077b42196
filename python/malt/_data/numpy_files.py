"""NumPy's .npy and .npz files, read by rows."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._data.files import extra
from malt._data.parts import Part
from malt._data.reader import Contents, Reading, Rows, csr
from malt._errors import ConfigError, DamagedError
from malt._npy import Npz, check_compressed, check_room, read_header, read_into

_BY_CHUNKS = "read it in chunks, chunk_rows=, or with ranks on more hosts"
_MOST_FORMAT_BYTES = 1024  # of the array with the name of a matrix's format
_MOST_DIMENSIONS = 64  # NumPy's limit


class StoredArray:
    """An array in an open .npy file; read() reads slices along its first axis."""

    def __init__(self, file: Any, name: str, size: int) -> None:
        """`size` is how many bytes the file has."""
        self._file, self._name = file, name
        header = read_header(file, name, size)
        self.shape, self._is_fortran, self.dtype, self._offset = header
        if self.dtype.kind not in "biuf" or not self.shape:
            raise ConfigError(
                f"{name} holds {self.dtype} of shape {self.shape}; it must hold rows of numbers: "
                "save array.astype(float)"
            )

    def read(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return the rows from `first` to before `last`."""
        row_shape = self.shape[1:]
        needed = (last - first) * math.prod(row_shape) * self.dtype.itemsize
        check_room(self._name, needed, _BY_CHUNKS)
        if not self._is_fortran or not row_shape:
            row = int(np.prod(row_shape))
            return self._items(first * row, (last - first) * row).reshape(last - first, *row_shape)
        rows = np.empty((last - first, int(np.prod(row_shape))), self.dtype)
        for column in range(rows.shape[1]):  # the file has one column after the other
            rows[:, column] = self._items(column * self.shape[0] + first, last - first)
        return rows.reshape(last - first, *row_shape, order="F")

    def _items(self, first: int, count: int) -> npt.NDArray[Any]:
        items = np.empty(count, self.dtype)
        self._file.seek(self._offset + first * self.dtype.itemsize)
        read_into(self._file, self._name, items.view(np.uint8))
        return items


def read_npy(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the part's rows of a 2-D array; label= is one of its columns."""
    name = part.file.name
    with part.file.open() as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        stored = StoredArray(file, name, size)
        rows, columns = _shape(name, "the array", stored.shape)
        label = _column(name, asked.label, columns)
        asked.check_contents(Contents(name, columns - (label is not None), None, None))
        for begin, end in _pieces(part.share(rows), asked):
            x = stored.read(begin, end)
            y = None
            if label is not None:
                y = x[:, label].astype(np.float64)
                x = np.delete(x, label, axis=1)
            place = partial(_place, name, label, begin, x, y)
            yield asked.only_finite(Rows(asked.rounded(x), y), place)


def read_npz(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the part's rows of `x` and `y`, or of a scipy.sparse.save_npz() matrix."""
    name = part.file.name
    if asked.label is not None:
        raise ConfigError(
            f"{name}: label is {asked.label!r}; an .npz file has labels of its own, the array y"
        )
    with part.file.open() as file:
        members = _Members(file, name)
        rows, features, read = _rows_of(members)
        labels = members.stored("y") or members.stored("Y")
        asked.check_contents(Contents(name, features, None, None if labels is None else "y"))
        if labels is not None and labels.shape != (rows,):
            raise ConfigError(
                f"{name}: y has shape {labels.shape} and x has {rows} rows; save one label a row "
                "(y.ravel() of a column)"
            )
        for begin, end in _pieces(part.share(rows), asked):
            y = None if labels is None else labels.read(begin, end).astype(np.float64)
            x = read(begin, end)
            place = partial(_place, name, None, begin, x, y)
            yield asked.only_finite(Rows(asked.rounded(x), y), place)


def _place(
    name: str, label: int | None, begin: int, x: Any, y: Any, row: int, feature: int | None
) -> tuple[str, object]:
    """Return the place and the value of a feature, or of the label, in rows from `begin` on."""
    if feature is None:
        column, value = "y" if label is None else label, y[row]
    else:
        column = feature + (label is not None and feature >= label)
        value = x[row, feature]
    return f"{name}, row {begin + row} (from 0), column {column}", value.item()


class _Members:
    """The arrays of an .npz file."""

    def __init__(self, file: Any, name: str) -> None:
        self.name = name
        self._file = file
        self._npz = Npz(file, name)
        self.names = set(self._npz)

    def stored(self, member: str) -> StoredArray | None:
        if member not in self._npz:
            return None
        return StoredArray(
            self._npz.open(member), self._npz.label(member), self._npz.size_of(member)
        )

    def matrix_format(self) -> str:
        """Return the format of a saved matrix; "" if there is none."""
        if "format" not in self._npz:
            return "csr" if "indptr" in self.names else ""
        if (size := self._npz.size_of("format")) > _MOST_FORMAT_BYTES:
            raise DamagedError(
                f"{self.name} holds no sparse matrix: the name of its format takes {size:,} bytes, "
                f"of at most {_MOST_FORMAT_BYTES}"
            )
        text = self._npz["format"].item()
        return text.decode() if isinstance(text, bytes) else str(text)

    def matrix(self) -> Any:
        """Return the saved matrix."""
        sparse = extra("scipy.sparse", "a sparse matrix")
        needed = sum(self._npz.size_of(name) for name in self._npz)
        check_room(self.name, needed, "save it as a CSR matrix, which can be read in chunks")
        try:
            self._file.seek(0)
            matrix = sparse.load_npz(self._file)
            if hasattr(matrix, "indptr"):
                check_compressed(matrix)
        except (ValueError, LookupError, NotImplementedError) as error:
            raise DamagedError(f"{self.name} holds no sparse matrix: {error}") from error
        _shape(self.name, "the matrix", matrix.shape)
        if matrix.dtype.kind not in "biuf":
            raise ConfigError(f"{self.name} holds a matrix of {matrix.dtype}; it must hold numbers")
        return _no_half(matrix)


def _no_half(values: Any) -> Any:
    """Return half floats, which SciPy's matrices do not compute with, as float32."""
    return values.astype(np.float32) if values.dtype == np.float16 else values


Read = Callable[[int, int], Any]


def _rows_of(members: _Members) -> tuple[int, int, Read]:
    """Return how many rows and features the file has, and what reads some of the rows."""
    if (kind := members.matrix_format()) == "csr":
        return _csr_rows(members)
    if kind:
        matrix = members.matrix().tocsr()  # whole: its rows do not lie one after the other
        matrix.sum_duplicates()
        return *matrix.shape, lambda begin, end: matrix[begin:end]
    array = members.stored("x") or members.stored("X")
    if array is None:
        raise ConfigError(
            f"{members.name} has the arrays {', '.join(sorted(members.names)) or 'none'}; it needs "
            "x and y, or a matrix as scipy.sparse.save_npz() writes"
        )
    return *_shape(members.name, "x", array.shape), array.read


def _csr_rows(members: _Members) -> tuple[int, int, Read]:
    name = members.name
    arrays = [members.stored(one) for one in ("shape", "indptr", "indices", "data")]
    if (shape := arrays[0]) is None or any(one is None for one in arrays):
        raise ConfigError(f"{name} has no shape, indptr, indices or data: no CSR matrix")
    if len(shape.shape) != 1 or shape.shape[0] > _MOST_DIMENSIONS:
        raise DamagedError(f"{name} is no CSR matrix: its shape has the shape {shape.shape}")
    rows, features = _shape(name, "the matrix", tuple(shape.read(0, shape.shape[0]).tolist()))
    indptr, columns, values = (one for one in arrays[1:] if one is not None)
    if indptr.shape != (rows + 1,) or columns.shape != values.shape or len(values.shape) != 1:
        raise DamagedError(
            f"{name} is no CSR matrix of {rows} rows: indptr has shape {indptr.shape}, indices "
            f"{columns.shape} and data {values.shape}"
        )
    starts = indptr.read(0, rows + 1)
    if starts.dtype.kind not in "iu" or columns.dtype.kind not in "iu" or starts[0] < 0:
        raise DamagedError(f"{name} is no CSR matrix: its indices are no whole numbers from 0 on")
    if np.any(starts[1:] < starts[:-1]) or starts[-1] > values.shape[0]:
        raise DamagedError(f"{name} is no CSR matrix: indptr decreases, or ends behind data")

    def read(begin: int, end: int) -> Any:
        first, last = int(starts[begin]), int(starts[end])
        matrix = csr(
            _no_half(values.read(first, last)),
            columns.read(first, last),
            starts[begin : end + 1] - starts[begin],
            features,
        )
        try:
            check_compressed(matrix)
        except ValueError as error:
            raise DamagedError(f"{name} is no CSR matrix: {error}") from error
        # SciPy may have stored duplicates, and indices in any order.
        matrix.has_sorted_indices = matrix.has_canonical_format = False
        matrix.sum_duplicates()
        return matrix

    return rows, features, read


def _shape(name: str, what: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise ConfigError(
            f"{name}: {what} has shape {shape}; it must have rows and columns, as of "
            "x.reshape(-1, 1)"
        )
    return shape[0], shape[1]


def _pieces(rows: tuple[int, int], asked: Reading) -> Iterator[tuple[int, int]]:
    first, last = rows
    step = asked.chunk_rows or max(last - first, 1)
    for begin in range(first, last, step):
        yield begin, min(begin + step, last)


def _column(name: str, label: str | int | None, columns: int) -> int | None:
    if label is None:
        return None
    if not isinstance(label, int) or not -columns <= label < columns:
        raise ConfigError(f"{name}: label is {label!r}; it is a column from 0 to {columns - 1}")
    return label % columns
