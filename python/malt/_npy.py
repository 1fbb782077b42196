"""NumPy's .npy and .npz files: what they claim is checked before memory is taken for it.

Nothing is unpickled. An array is as large as its header says, so the header is checked against the
bytes that are there, and against the memory that is free. A member of an .npz file is stored, or
compressed by deflate, as NumPy writes it: zipfile decompresses bzip2 and LZMA without a limit.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._core_import import available_bytes
from malt._errors import ConfigError, DamagedError, Error

Array = npt.NDArray[Any]

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LENGTHS = {(1, 0): struct.Struct("<H"), (2, 0): struct.Struct("<I")}  # of a header, by version
_MOST_HEADER_BYTES = 10_000  # NumPy's own limit; it applies that after it has read the header
_PIECE_BYTES = 1 << 20  # zipfile makes a copy of each piece
_CHECKED_BYTES = 1 << 24  # less than that is there


class Header(NamedTuple):
    """The header of a .npy file, whose array begins at `offset`."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: Any, name: str, size: int) -> Header:
    """Read the header at the beginning of a file of `size` bytes; `name` is for messages.

    Raises:
        DamagedError: it is no .npy file, or its array is cut short.
        ConfigError: the array has Python objects, or the file another version of the format.
    """
    try:
        version = np.lib.format.read_magic(file)
    except ValueError as error:
        raise DamagedError(f"{name} is no array of NumPy: {error}") from error
    if version not in _LENGTHS:
        raise ConfigError(f"{name} has version {version} of .npy; versions 1 and 2 are read")
    length = file.read(_LENGTHS[version].size)
    text = b""
    if len(length) == _LENGTHS[version].size:
        (header_bytes,) = _LENGTHS[version].unpack(length)
        if header_bytes > _MOST_HEADER_BYTES:
            raise DamagedError(
                f"{name} has a header of {header_bytes:,} bytes; it may have "
                f"{_MOST_HEADER_BYTES:,}: save the array once more"
            )
        text = file.read(header_bytes)
    is_old = version == (1, 0)
    parse = np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
    try:
        shape, is_fortran, dtype = parse(io.BytesIO(length + text))
    except Exception as error:  # the parser of Python's literals raises several kinds
        raise DamagedError(f"{name} has a damaged header: {error}") from error
    if dtype.hasobject:
        raise ConfigError(f"{name} has Python objects, which are never unpickled: save numbers")
    header = Header(shape, is_fortran, dtype, 8 + len(length) + len(text))
    missing = header.offset + header.nbytes - size
    if missing > 0 or min(shape, default=0) < 0:
        raise DamagedError(f"{name} is cut short: {missing} bytes are missing")
    return header


def read_array(file: Any, name: str, header: Header) -> Array:
    """Read the whole array that follows the header.

    Raises:
        DamagedError: the file ends before.
        ConfigError: the array does not fit into the memory that is free.
    """
    check_room(name, header.nbytes)
    memory = np.empty(header.nbytes, np.uint8)
    read_into(file, name, memory)
    order: Literal["F", "C"] = "F" if header.is_fortran else "C"
    array: Array = np.ndarray(header.shape, header.dtype, memory.data, order=order)
    return array


def read_into(file: Any, name: str, memory: npt.NDArray[np.uint8]) -> None:
    """Fill the memory.

    Raises:
        DamagedError: the file ends before.
    """
    left = memory.data
    while left:
        got = file.readinto(left[:_PIECE_BYTES])
        if not got:
            raise DamagedError(f"{name} is cut short: {len(left)} bytes are missing")
        left = left[got:]


def check_room(name: str, needed: int, way_out: str = "read it on a host that has more") -> None:
    """Raise ConfigError if so many bytes are not free."""
    if needed > _CHECKED_BYTES and needed > (free := available_bytes()):
        raise ConfigError(
            f"{name} does not fit into memory: it takes {needed >> 20:,} MiB, and "
            f"{free >> 20:,} MiB are free; {way_out}"
        )


class Npz(Mapping[str, Array]):
    """The arrays of an open .npz file; each is read when it is requested."""

    def __init__(self, file: Any, name: str) -> None:
        """`name` is for messages.

        Raises:
            DamagedError: it is no .npz file.
            ConfigError: a member is compressed by a method that NumPy does not use.
        """
        self.name = name
        self._file = file
        with _checked(name):
            infos = zipfile.ZipFile(_Place(file)).infolist()
        for info in infos:
            if info.compress_type not in _METHODS:
                raise ConfigError(
                    f"{name}: {info.filename} is compressed by method {info.compress_type}; it may "
                    f"be stored ({_METHODS[0]}) or deflated ({_METHODS[1]}), as np.savez and "
                    "np.savez_compressed write it"
                )
        self._infos = {info.filename.removesuffix(".npy"): info for info in infos}

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __getitem__(self, name: str) -> Array:
        with self.open(name) as file, _checked(self.label(name)):
            header = read_header(file, self.label(name), self.size_of(name))
            return read_array(file, self.label(name), header)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def label(self, name: str) -> str:
        """Return how messages name an array."""
        return f"{self.name}, array {name}"

    def open(self, name: str) -> Any:
        """Open a member. It has a position of its own.

        Raises:
            KeyError: there is none.
        """
        info = self._infos[name]
        with _checked(self.label(name)):
            return zipfile.ZipFile(_Place(self._file)).open(info)

    def size_of(self, name: str) -> int:
        """Return how many bytes a member has, decompressed."""
        return self._infos[name].file_size

    def is_compressed(self, name: str) -> bool:
        return self._infos[name].compress_type != zipfile.ZIP_STORED

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._header_of(name).shape

    def dtype_of(self, name: str) -> np.dtype[Any]:
        return self._header_of(name).dtype

    def _header_of(self, name: str) -> Header:
        with self.open(name) as file, _checked(self.label(name)):
            return read_header(file, self.label(name), self.size_of(name))


@contextlib.contextmanager
def _checked(name: str) -> Iterator[None]:
    """Turn what zipfile and its libraries raise about a damaged file into DamagedError."""
    try:
        yield
    except (Error, MemoryError):
        raise
    except Exception as error:  # they raise almost any kind
        why = str(error) or type(error).__name__
        raise DamagedError(f"{name} cannot be read: {why}") from error


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


def check_compressed(matrix: Any) -> None:
    """Raise ValueError unless the indices of a CSR, CSC or BSR matrix lie within it.

    SciPy reads where they say. Its own check looks at none if the last pointer is 0 or less, and
    takes differences of pointers, which may overflow.
    """
    matrix.check_format(full_check=True)
    rows, columns = matrix.shape
    if matrix.format == "bsr":
        rows, columns = rows // matrix.blocksize[0], columns // matrix.blocksize[1]
    major, minor = (columns, rows) if matrix.format == "csc" else (rows, columns)
    pointers, indices = matrix.indptr, matrix.indices
    if pointers.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise ValueError("its indices are no whole numbers")
    if pointers.shape != (major + 1,) or pointers[0] != 0:
        raise ValueError(f"it has {len(pointers)} pointers for {major} rows, or begins elsewhere")
    if (pointers[1:] < pointers[:-1]).any() or pointers[-1] > min(len(indices), len(matrix.data)):
        raise ValueError("its pointers decrease, or end behind its values")
    used = indices[: pointers[-1]]
    if len(used) and (used.min() < 0 or used.max() >= minor):
        raise ValueError(f"it has an index that is not from 0 to {minor - 1}")
