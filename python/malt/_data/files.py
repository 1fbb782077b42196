"""Finding the files that a user names, their formats, and how they are opened."""

from __future__ import annotations

import contextlib
import glob
import importlib
import io
import math
import os
import re
import select
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from malt._distribution import pip_install
from malt._errors import ConfigError, DamagedError, Error

Url = str | os.PathLike[str]

SUFFIXES = {
    "svmlight": (".svm", ".svmlight", ".libsvm", ".txt", ".dat"),
    "csv": (".csv",),
    "npy": (".npy",),
    "npz": (".npz",),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather"),
}
TEXTS = ("svmlight", "csv")
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstd"}
_MOST_MILLISECONDS = 2**31 - 1  # that poll() waits
_URL_IS = "it is a path, a URL or a list of these"
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class File(NamedTuple):
    """One file of the data.

    Attributes:
        name: the whole URL, as shown in messages.
        path: the name that its file system knows it by.
        size: as it is stored, in bytes; 0 if a server does not say.
        format: a key of SUFFIXES.
        compression: "gzip", "bz2", "lzma" (Python's modules), "zstd" or None.
        system: an fsspec file system; None: this machine's.
        has_ranges: any part of it can be read without reading the bytes before.
        limit: the seconds in which the next bytes of a pipe or device must come.
    """

    name: str
    path: str
    size: int
    format: str
    compression: str | None
    system: Any
    has_ranges: bool
    limit: float = math.inf

    @property
    def is_read_once(self) -> bool:
        """Whether it is a pipe or a device."""
        return self.system is None and not os.path.isfile(self.path)

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file; it reads as decompressed bytes.

        Any error while it is open is raised as ConfigError or DamagedError with the file's name.
        """
        with reading(self.name), contextlib.ExitStack() as stack:
            raw = stack.enter_context(self._open_stored())
            if self.compression:
                yield stack.enter_context(_decompress(raw, self.compression))
            elif not self.has_ranges and self.format not in TEXTS:
                yield io.BytesIO(raw.read())  # the readers of these formats seek back and forth
            else:
                yield raw

    def _open_stored(self) -> Any:
        if self.is_read_once:
            # Opened so, it does not wait for somebody who writes; its first read does.
            return _Pipe(self, os.open(self.path, os.O_RDONLY | os.O_NONBLOCK))
        if self.system is None:
            return open(self.path, "rb", buffering=0)
        if self.has_ranges:
            return self.system.open(self.path, "rb")
        return self.system.open(self.path, "rb", block_size=0)  # block_size=0: reads it as a stream


class _Pipe(io.RawIOBase):
    """A pipe or a device, whose bytes must come within the limit of the file."""

    def __init__(self, file: File, descriptor: int) -> None:
        os.set_blocking(descriptor, True)
        self._file = file
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._poll.poll(min(self._file.limit * 1000, _MOST_MILLISECONDS)):
            raise ConfigError(
                f"{self._file.name} is a pipe or a device, and nothing has come from it for "
                f"{self._file.limit:g} s: see what writes to it, give a longer limit (timeout=), "
                "or write the data to a file first"
            )
        return os.readv(self._descriptor, [buffer])

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def extra(module: str, what: str) -> Any:
    """Import an optional module.

    Raises:
        ConfigError: the module is not installed; `what` needs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {module.partition('.')[0]}: {pip_install('data')} ({error})"
        ) from error


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn the errors that libraries raise about the file `name` into MALT's errors."""
    try:
        yield
    except Error:
        raise
    except MemoryError as error:
        raise ConfigError(
            f"{name} does not fit into memory ({str(error) or 'it is full'}): read it in chunks, "
            "chunk_rows=, or with ranks on more hosts"
        ) from error
    except (EOFError, zlib.error) as error:
        raise DamagedError(f"{name} is cut short or damaged: {error}") from error
    except FileNotFoundError as error:
        # fsspec also raises this for a URL where no server answers.
        reached = ", or it cannot be reached" if _REMOTE.match(name) else ""
        raise ConfigError(f"{name}: there is no such file{reached}") from error
    except Exception as error:  # a file system or a format's library may raise anything
        kind = type(error).__name__
        is_arrow = type(error).__module__.partition(".")[0] == "pyarrow"
        what = f"{error}" if is_arrow else f"{kind}: {error}"
        raise ConfigError(f"cannot read {name}: {what}") from error


def find_files(url: Url | Sequence[Url], format_: str | None) -> list[File]:
    """List the files that paths, URLs or patterns name, in their order.

    Raises:
        ConfigError: no file matches, one cannot be reached, or they have no or several formats.
    """
    urls: list[object]
    if isinstance(url, (str, os.PathLike)):
        urls = [url]
    elif isinstance(url, Iterable):
        urls = list(url)
    else:
        raise ConfigError(f"url is {url!r}; {_URL_IS}")
    if format_ is not None and format_ not in SUFFIXES:
        raise ConfigError(f"format is {format_!r}; it is one of {', '.join(SUFFIXES)}")
    files: list[File] = []
    for one in urls:
        if not isinstance(one, (str, os.PathLike)):
            raise ConfigError(f"url has {one!r}; {_URL_IS}")
        one = os.fspath(one)
        with reading(one):
            found = _find_remote(one, format_) if _REMOTE.match(one) else _find_here(one, format_)
        if not found:
            raise ConfigError(f"{one}: no file matches")
        files += found
    if not files:
        raise ConfigError("url is an empty list; it names at least one file")
    formats = sorted({file.format for file in files})
    if len(formats) > 1:
        raise ConfigError(f"the files are of several formats, {', '.join(formats)}; give one")
    return files


def _find_here(url: str, format_: str | None) -> list[File]:
    path = os.path.expanduser(url)
    has_pattern = glob.has_magic(path) and not os.path.exists(path)
    files = []
    for found in sorted(glob.glob(path, recursive=True)) if has_pattern else [path]:
        if os.path.isdir(found):
            if has_pattern:
                continue
            raise ConfigError(
                f"{url} is a directory; name its files, as in {url.rstrip('/')}/*.svm"
            )
        size = os.stat(found).st_size  # 0 of a pipe or a device, which are read to their ends
        files.append(_file(found, found, size, format_, system=None, has_ranges=size > 0))
    return files


def _find_remote(url: str, format_: str | None) -> list[File]:
    core = extra("fsspec.core", "reading from a URL")
    system, path = core.url_to_fs(url)
    is_web = url.startswith(("http:", "https:"))
    # '?' in the URL of a web page begins its arguments; it is no pattern.
    has_pattern = glob.has_magic(url.replace("?", "") if is_web else url)
    files = []
    for found in sorted(system.glob(path)) if has_pattern else [path]:
        info = system.info(found)
        has_ranges = _sends_parts(system, found) if is_web else True
        name = str(system.unstrip_protocol(found))
        size = info.get("size") or 0
        files.append(_file(name, found, size, format_, system=system, has_ranges=has_ranges))
    return files


def _sends_parts(system: Any, path: str) -> bool:
    """Return whether a web server sends a part of a file when asked; some always send all."""
    try:
        with system.open(path, "rb", cache_type="none") as file:
            file.seek(1)
            file.read(1)
    except ValueError:
        return False
    return True


def _file(
    name: str, path: str, size: int, format_: str | None, *, system: Any, has_ranges: bool
) -> File:
    plain, suffix = os.path.splitext(name.partition("?")[0] if system else name)
    compression = _COMPRESSIONS.get(suffix.lower())
    if compression:
        suffix = os.path.splitext(plain)[1]
    if format_ is None:
        known = [known for known, suffixes in SUFFIXES.items() if suffix.lower() in suffixes]
        if not known:
            raise ConfigError(
                f"{name}: its suffix {suffix!r} does not tell its format; give format=, one of "
                f"{', '.join(SUFFIXES)}"
            )
        format_ = known[0]
    if compression and format_ not in TEXTS:
        raise ConfigError(f"{name}: {format_} is not read compressed as a whole; decompress it")
    ranges = has_ranges and not compression
    return File(name, path, size, format_, compression, system, ranges)


def _decompress(raw: Any, compression: str) -> Any:
    if compression == "zstd":
        arrow = extra("pyarrow", "reading .zst")
        return arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")
    return importlib.import_module(compression).open(raw, "rb")
