"""NumPy's .npy and .npz files, read by rows."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from malt._data.parts import Part
from malt._data.reader import Reading, Rows, csr
from malt._errors import ConfigError, DamagedError


class StoredArray:
    """An array in an open .npy file; read() reads slices along its first axis."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name
        version = np.lib.format.read_magic(file)
        headers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in headers:
            raise ConfigError(f"{name} has version {version} of .npy; versions 1 and 2 are read")
        self.shape, self._is_fortran, self.dtype = headers[version](file)
        if self.dtype.kind not in "biuf" or not self.shape:
            raise ConfigError(
                f"{name} holds {self.dtype} of shape {self.shape}; it must hold rows of numbers"
            )
        self._offset = file.tell()

    def read(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return the rows from `first` to before `last`."""
        row_shape = self.shape[1:]
        if not self._is_fortran or not row_shape:
            row = int(np.prod(row_shape))
            return self._items(first * row, (last - first) * row).reshape(last - first, *row_shape)
        rows = np.empty((last - first, int(np.prod(row_shape))), self.dtype)
        for column in range(rows.shape[1]):  # the file has one column after the other
            rows[:, column] = self._items(column * self.shape[0] + first, last - first)
        return rows.reshape(last - first, *row_shape, order="F")

    def _items(self, first: int, count: int) -> npt.NDArray[Any]:
        items = np.empty(count, self.dtype)
        left = items.view(np.uint8).data
        self._file.seek(self._offset + first * self.dtype.itemsize)
        while left:
            got = self._file.readinto(left)
            if not got:
                raise DamagedError(f"{self._name} is cut short: {len(left)} bytes are missing")
            left = left[got:]
        return items


class _Place:
    """A view of an open file that keeps a position of its own.

    An uncompressed member of a zip archive seeks from where the archive was read last (CPython 3.12
    and 3.13 before python/cpython#127847). So without this, reading one member moves the position
    in another.
    """

    def __init__(self, file: Any) -> None:
        self._file, self._at = file, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset, whence = self._at + offset, io.SEEK_SET
        self._at = self._file.seek(offset, whence)
        return self._at

    def read(self, size: int = -1) -> bytes:
        self._file.seek(self._at)
        data: bytes = self._file.read(size)
        self._at += len(data)
        return data


def read_npy(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the part's rows of a 2-D array; label= is one of its columns."""
    name = part.file.name
    with part.file.open() as file:
        stored = StoredArray(file, name)
        if len(stored.shape) != 2:
            raise ConfigError(f"{name} has shape {stored.shape}; it must have rows and columns")
        label = _column(name, asked.label, stored.shape[1])
        asked.check_width(name, stored.shape[1] - (label is not None))
        for begin, end in _pieces(part.share(stored.shape[0]), asked):
            x = stored.read(begin, end)
            y = None
            if label is not None:
                y = x[:, label].astype(np.float64)
                x = np.delete(x, label, axis=1)
            yield asked.only_finite(Rows(asked.rounded(x), y), name, begin.__add__)


def read_npz(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the part's rows of `x` (or `X`) and `y`, or of a scipy.sparse.save_npz() CSR matrix."""
    name = part.file.name
    with part.file.open() as file:
        names = zipfile.ZipFile(_Place(file)).namelist()
        members = {member.removesuffix(".npy") for member in names}

        def stored(member: str) -> StoredArray:
            archive = zipfile.ZipFile(_Place(file))
            return StoredArray(archive.open(f"{member}.npy"), f"{name}, array {member}")

        labels = stored("y") if "y" in members else None
        read = _read_csr if "indptr" in members else _read_dense
        if read is _read_dense and not members & {"x", "X"}:
            raise ConfigError(
                f"{name} has the arrays {', '.join(sorted(members)) or 'none'}; it needs x and y, "
                "or a CSR matrix as scipy.sparse.save_npz() writes"
            )
        x = read(part, asked, members, stored)
        for begin, end, rows in x:
            y = None
            if labels is not None:
                y = labels.read(begin, end).astype(np.float64)
                if y.shape != (end - begin,):
                    raise ConfigError(f"{name}: y has shape {labels.shape}; it needs one a row")
            yield asked.only_finite(Rows(rows, y), name, begin.__add__)


def _read_dense(part: Part, asked: Reading, members: set[str], stored: Any) -> Iterator[Any]:
    array = stored("x" if "x" in members else "X")
    if len(array.shape) != 2:
        raise ConfigError(f"{part.file.name}: x has shape {array.shape}; it needs rows and columns")
    asked.check_width(part.file.name, array.shape[1])
    for begin, end in _pieces(part.share(array.shape[0]), asked):
        yield begin, end, asked.rounded(array.read(begin, end))


def _read_csr(part: Part, asked: Reading, members: set[str], stored: Any) -> Iterator[Any]:
    name = part.file.name
    missing = {"data", "indices", "shape"} - members
    if missing:
        raise ConfigError(f"{name} has indptr, but not {', '.join(sorted(missing))}: no CSR matrix")
    rows, features = stored("shape").read(0, 2).tolist()
    asked.check_width(name, features)
    starts = stored("indptr").read(0, rows + 1)
    columns, values = stored("indices"), stored("data")
    for begin, end in _pieces(part.share(rows), asked):
        first, last = int(starts[begin]), int(starts[end])
        matrix = csr(
            asked.rounded(values.read(first, last)),
            columns.read(first, last),
            starts[begin : end + 1] - first,
            features,
        )
        try:
            matrix.check_format()
        except ValueError as error:
            raise DamagedError(f"{name} is no CSR matrix: {error}") from error
        matrix.has_canonical_format = False  # SciPy may have stored duplicates
        matrix.sum_duplicates()
        yield begin, end, matrix


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
