"""Examples read from files a few rows at a time, so that they need not fit into memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt._data import numpy_files, tables
from malt._data.columns import agree_on, request, width
from malt._data.files import File
from malt._data.parts import Part, split
from malt._data.reader import Contents, Reading, Rows, rechunked
from malt._data.svmlight import SvmlightReader
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job.agreement import Report, Together

# Of one rank. More labels are probably the targets of a regression, and each costs a weight row.
_MOST_LABELS = 10_000

READERS: dict[str, Callable[[Part, Reading], Iterator[Rows]]] = {
    "csv": tables.read_csv,
    "npy": numpy_files.read_npy,
    "npz": numpy_files.read_npz,
    "parquet": tables.read_parquet,
    "arrow": tables.read_arrow,
}


Labels = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """The examples that malt.load_data() returns.

    Attributes:
        X: (rows, features), a scipy.sparse.csr_matrix of svmlight text and CSR .npz, else an array.
        y: (rows,) float64 labels, or None.
        files: all files of the data, including those that other ranks read, in their order.
        zero_based: whether svmlight's indices were counted from 0; None for other formats.
        bad: how many lines this rank has left out so far.
        bad_lines: the first few of those: file, line, and the error.
        columns: the names of X's columns; None if the files have none.
    """

    X: Any
    y: npt.NDArray[np.float64] | None
    files: tuple[str, ...]
    zero_based: bool | None
    bad: int
    bad_lines: tuple[str, ...]
    columns: tuple[str, ...] | None = None


def to_data(rows: Rows, files: Sequence[File], asked: Reading, zero_based: bool | None) -> Data:
    names = tuple(file.name for file in files)
    columns = None if asked.first is None else asked.first.columns
    return Data(rows.x, rows.y, names, zero_based, asked.bad, tuple(asked.bad_lines), columns)


def contents_of(file: File, asked: Reading) -> Contents | None:
    """Return the columns of a file without its rows; None for svmlight text, and if it is empty.

    Raises:
        ConfigError: the file cannot be read, or has other columns than `asked` needs.
    """
    if file.format == "svmlight":
        return None
    head = replace(asked, on_bad="count", bad=0, bad_lines=[])
    # The part is empty, except of a file that is only read whole.
    next(READERS[file.format](Part(file, 0, 0 if file.has_ranges else file.size), head), None)
    return head.first


class Survey(NamedTuple):
    """The result of a first reading of all files; JSON can express it."""

    rows: int  # of this rank
    features: int
    zero_based: bool | None
    has_targets: bool
    labels: list[float]  # of this rank, sorted; empty if the caller did not ask for them
    bad: int  # how many lines this rank leaves out
    bad_lines: list[str]


class Chunks:
    """Examples in files, a few rows at a time, as malt.load_data(chunk_rows=) returns them.

    Each loop over the object reads the files again and yields malt.data.Data. If the data are
    sharded and the process is in a job by then, the loop reads this rank's part, else all rows.
    Memory holds at most one chunk and one block of a file. An estimator's fit() accepts the object
    as X.

    Attributes:
        zero_based: as in malt.data.Data; None before the first reading of a fit().
        bad: how many lines the first reading of the last fit() has left out, on the ranks of
            `ranks`.
        bad_lines: the first few of those.
    """

    def __init__(
        self, files: Sequence[File], asked: Reading, *, shard: bool, threads: int | None
    ) -> None:
        """`asked` is as in load_data(); `threads` parse, or with None this process's share."""
        self._files = files
        self._asked = asked
        self._shard = shard
        self._threads = threads
        self.zero_based: bool | None = None
        self.bad = 0
        self.bad_lines: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Data]:
        """Yield each chunk. Not collective.

        Raises:
            ConfigError: the files are svmlight text, and features= or zero_based= was not given.
        """
        asked = self._asked
        if self._is_svmlight and (asked.features is None or asked.zero_based == "auto"):
            raise ConfigError(
                "chunks of svmlight text need features=, and zero_based=True or False: what is not "
                "read yet cannot tell; or give them to an estimator's fit(), which looks first"
            )
        zero_based = asked.zero_based is True if self._is_svmlight else None
        return self.read(asked.features, zero_based=zero_based)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of X."""
        return np.dtype(self._asked.dtype)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of X's columns, as in malt.data.Data; reads the beginning of the first file."""
        first = self._first
        return None if first is None else first.columns

    @property
    def files(self) -> tuple[str, ...]:
        """All files of the data, as in malt.data.Data."""
        return tuple(file.name for file in self._files)

    def read(self, features: int | None, *, zero_based: bool | None) -> Iterator[Data]:
        """Yield the same chunks as a loop does, with `features` columns."""
        parts, asked = self._begin(features=features, zero_based=zero_based)
        assert asked.chunk_rows is not None
        for rows in rechunked(pieces(parts, asked), asked.chunk_rows):
            yield to_data(rows, self._files, asked, zero_based)

    def survey(self, call: str, *, labels: bool) -> Survey:
        """Read all of this rank's part once without keeping the rows. Collective in a job.

        Args:
            call: the name of the call, for messages.
            labels: whether to collect the labels.

        Raises:
            ConfigError: on every rank: a rank cannot read a file, a line is bad, a rank has no
                rows, or the ranks see different files; or the targets are no labels.
        """
        asked = self._asked
        found: Labels = np.zeros(0)
        has_targets = False

        def look() -> tuple[None, Report]:
            nonlocal asked, found, has_targets
            parts, asked = self._begin()
            report = request(self._files, self._asked) | {"rows": 0}
            for rows, about in _looked(parts, asked):
                report |= about
                report["rows"] += rows.x.shape[0]
                has_targets = rows.y is not None
                if rows.y is not None and labels:
                    found = _with_labels(found, rows.y, report["rows"])
            return None, report | width(asked)

        job = self._job()
        if job is None or job.size == 1:
            reports = {0: look()[1]}
        else:
            reports = Together(call, None).step("looking at the files", look)[1]
        layout = agree_on(reports, self._files, self._asked, len(reports))
        rows = reports[0 if job is None else job.rank]["rows"]
        return Survey(rows, *layout, has_targets, found.tolist(), asked.bad, asked.bad_lines)

    @cached_property
    def _first(self) -> Contents | None:
        """The columns of the first file, which those of all files must be."""
        return contents_of(self._files[0], self._asked)

    @property
    def _is_svmlight(self) -> bool:
        return any(file.format == "svmlight" for file in self._files)

    def _job(self) -> jobs.Job | None:
        return jobs.joined() if self._shard else None

    def _begin(self, **columns: Any) -> tuple[list[Part], Reading]:
        """Return this rank's parts and how to read them; the count of bad lines starts anew."""
        job = self._job()
        rank, size = (0, 1) if job is None else (job.rank, job.size)
        threads = self._threads or threads_of(size)
        first = self._first
        asked = replace(self._asked, threads=threads, bad=0, bad_lines=[], first=first, **columns)
        return split(self._files, rank, size), asked


def _with_labels(known: Labels, y: Labels, rows: int) -> Labels:
    """Return `known` and the labels of y, sorted. `rows` is the number of rows read so far.

    Raises:
        ConfigError: y has values that are no labels by scikit-learn's rule, or too many different
            values.
    """
    found = np.union1d(known, y)
    broken = found[found != np.round(found)]
    regress = "for values take a regression: malt.learn.SGDRegressor, `malt train regression`"
    if len(broken):
        raise ConfigError(
            f"Unknown label type: continuous. Labels are whole numbers, and {broken[0]:g} is "
            f"among the targets; {regress}"
        )
    if len(found) > _MOST_LABELS:
        raise ConfigError(
            f"the first {rows:,} rows have {len(found):,} different labels; malt.data.Chunks may "
            f"have {_MOST_LABELS:,}; {regress}"
        )
    return found


def threads_of(size: int) -> int:
    """Return how many threads parse in each rank of a host that has `size` ranks."""
    return max(len(os.sched_getaffinity(0)) // size, 1)


def pieces(parts: Sequence[Part], asked: Reading) -> Iterator[Rows]:
    """Yield the rows of these parts piece by piece. For svmlight text `features` must be known."""
    reader: SvmlightReader | None = None
    for part in parts:
        if part.file.format != "svmlight":
            yield from READERS[part.file.format](part, asked)
            continue
        assert asked.features is not None
        reader = reader or SvmlightReader(asked)
        for _ in reader.feed(part):
            yield reader.take(zero_based=asked.zero_based is True, features=asked.features)


def _looked(parts: Sequence[Part], asked: Reading) -> Iterator[tuple[Rows, Report]]:
    """Yield the rows, of any number of columns, and what agree_on() needs of all rows so far."""
    reader: SvmlightReader | None = None
    lowest, highest = 2**31 - 1, -1
    from_zero = asked.zero_based in (True, "auto")
    for part in parts:
        if part.file.format != "svmlight":
            for rows in READERS[part.file.format](part, asked):
                yield rows, {}
            continue
        reader = reader or SvmlightReader(asked)
        for _ in reader.feed(part):
            lowest = min(lowest, reader.parser.lowest_index)
            highest = max(highest, reader.parser.highest_index)
            rows = reader.take(zero_based=from_zero, features=2**31 - 1)
            yield rows, {"lowest": lowest, "highest": highest}
