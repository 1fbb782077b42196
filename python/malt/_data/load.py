"""malt.load_data reads examples from files, each rank its own part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, overload

from malt._arguments import seconds, whole
from malt._data.chunks import READERS, Chunks, Data, contents_of, threads_of, to_data
from malt._data.columns import Layout, agree_on, request, width
from malt._data.files import File, Url, find_files, reading
from malt._data.parts import Part, split
from malt._data.reader import Reading, Rows, joined
from malt._data.svmlight import SvmlightReader
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job.agreement import Report, Together


@overload
def load_data(
    url: Url | Sequence[Url],
    *,
    shard: bool = True,
    format: str | None = None,
    features: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    zero_based: bool | Literal["auto"] = "auto",
    label: str | int | None = None,
    header: bool | None = None,
    on_bad: Literal["raise", "count"] = "raise",
    chunk_rows: None = None,
    threads: int | None = None,
    timeout: float | None = 600.0,
) -> Data: ...


@overload
def load_data(
    url: Url | Sequence[Url],
    *,
    shard: bool = True,
    format: str | None = None,
    features: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    zero_based: bool | Literal["auto"] = "auto",
    label: str | int | None = None,
    header: bool | None = None,
    on_bad: Literal["raise", "count"] = "raise",
    chunk_rows: int,
    threads: int | None = None,
    timeout: float | None = 600.0,
) -> Chunks: ...


def load_data(
    url: Url | Sequence[Url],
    *,
    shard: bool = True,
    format: str | None = None,  # noqa: A002  (NumPy's and scikit-learn's name for it)
    features: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    zero_based: bool | Literal["auto"] = "auto",
    label: str | int | None = None,
    header: bool | None = None,
    on_bad: Literal["raise", "count"] = "raise",
    chunk_rows: int | None = None,
    threads: int | None = None,
    timeout: float | None = 600.0,
) -> Data | Chunks:
    """Read examples from files; in a job each rank reads a part of its own.

    Text (svmlight, CSV) is cut by bytes, at line ends; .npy, .npz, Parquet and Arrow by rows. Files
    that cannot be cut are shared out whole: compressed text (.gz .bz2 .xz .zst), and files on a web
    server that cannot send parts. In a job, with `shard` and without `chunk_rows`, the call is
    collective: all ranks give the same arguments, and if one fails, all raise its error.

    Args:
        url: a path, a pattern ("part-*.svm"), a URL that fsspec knows (s3://, gs://, hdfs://,
            https://), or a list of these.
        shard: read this rank's part only; False, or without malt.init(): all.
        format: "svmlight", "csv", "npy", "npz", "parquet" or "arrow"; None: as the suffix says.
        features: the number of columns of X; None: for svmlight, as many as the largest index on
            any rank needs, else as many as the files have.
        dtype: of X. Numbers are rounded as by std::from_chars.
        zero_based: whether svmlight indices count from 0; "auto": if any is 0 on any rank.
        label: the column of a table or .npy file that is y, by name or position; None: y is None.
            svmlight text and .npz files have their own. The index of a pandas frame is no feature,
            but may be the label, by its name.
        header: whether the first line of CSV has the columns' names; None: if a cell of it is a
            name. A first cell without a name is that of pandas' index.
        on_bad: "raise" for the first bad line, or "count": leave bad lines out. A line is bad if it
            is not of the format, or has a value that is missing, NaN or infinite.
        chunk_rows: read at most this many rows at a time; the call then returns a
            malt.data.Chunks, to loop over or for an estimator's fit().
        threads: how many threads parse svmlight text; None: the cores of this process, divided by
            the ranks.
        timeout: how many seconds the slowest rank may take longer than this one, and a pipe until
            its next bytes come; that of malt.init() if None.

    Raises:
        ConfigError: an argument is wrong, or not the same on all ranks; no file matches; a file
            cannot be read or has other contents than its format; the files have different columns;
            a line is bad; a rank has no rows.
        TimeoutError: the ranks that the error names did not come.
    """
    choices = {"shard": shard, "dtype": dtype, "zero_based": zero_based}
    _check_choices(choices | {"header": header, "on_bad": on_bad})
    limit = seconds(timeout)
    job = jobs.joined() if shard else None
    if limit is None:
        limit = math.inf if job is None else job.settings.timeout
    rank, size = (0, 1) if job is None else (job.rank, job.size)
    parsers = threads_of(size) if threads is None else threads
    asked = Reading(dtype, features, zero_based, label, on_bad, chunk_rows, parsers, header)
    _check(asked)
    if chunk_rows is not None:
        files = find_files(url, format)
        for file in files:
            if file.is_read_once:
                raise ConfigError(
                    f"{file.name} is a pipe or a device, which is read once; chunk_rows= reads "
                    "anew for each pass: give a file, or leave chunk_rows= out"
                )
        return Chunks(files, asked, shard=shard, threads=threads)
    files = []
    loading = _Loading(asked)

    def load() -> tuple[None, Report]:
        files.extend(file._replace(limit=limit) for file in find_files(url, format))
        return None, request(files, asked) | loading.read(files, split(files, rank, size))

    if job is None or job.size == 1 or job.makes_due() or job.is_rejoining:
        reports = {rank: load()[1]}
        if size > 1:
            loading.check_alone()
    else:
        reports = Together("malt.load_data", timeout).step("reading", load)[1]
    layout = agree_on(reports, files, asked, size)
    with reading(f"the part of rank {rank}"):
        data = to_data(loading.take(layout), files, asked, layout.zero_based)
    if job is not None and size > 1:
        job.matching.note_part(data.X)
        if data.y is not None:
            job.matching.note_part(data.y)
    return data


class _Loading:
    """Reads this rank's parts, then builds its rows in the layout on which the ranks agree."""

    def __init__(self, asked: Reading) -> None:
        self._asked = asked
        self._svmlight: SvmlightReader | None = None
        self._pieces: list[Rows] = []

    def read(self, files: Sequence[File], parts: Sequence[Part]) -> Report:
        """Read the parts of these files; their columns must be those of the first file."""
        if parts and parts[0].file != files[0] and not files[0].is_read_once:
            self._asked.first = contents_of(files[0], self._asked)
        for part in parts:
            if part.file.format == "svmlight":
                self._svmlight = self._svmlight or SvmlightReader(self._asked)
                for _ in self._svmlight.feed(part):
                    pass
            else:
                self._pieces += READERS[part.file.format](part, self._asked)
        if self._svmlight is None:
            rows = sum(piece.x.shape[0] for piece in self._pieces)
            return {"rows": rows} | width(self._asked)
        parser = self._svmlight.parser
        return {
            "rows": parser.rows,
            "lowest": parser.lowest_index,
            "highest": parser.highest_index,
        }

    def check_alone(self) -> None:
        """Refuse settings that depend on other ranks, which this rank cannot ask.

        Raises:
            ConfigError: features or zero_based is not given.
        """
        if self._svmlight and (self._asked.features is None or self._asked.zero_based == "auto"):
            raise ConfigError(
                "a rejoining rank cannot ask the other ranks how many features there are, and "
                "whether indices begin at 0 or 1: give features= and zero_based=True or False"
            )

    def take(self, layout: Layout) -> Rows:
        """Return this rank's rows, with as many columns as the rows of all ranks."""
        if self._svmlight is None:
            return joined(self._pieces)
        return self._svmlight.take(zero_based=layout.zero_based is True, features=layout.features)


def _check_choices(given: Mapping[str, object]) -> None:
    choices: dict[str, tuple[object, ...]] = {
        "shard": (True, False),
        "dtype": ("float32", "float64"),
        "zero_based": (True, False, "auto"),
        "header": (True, False, None),
        "on_bad": ("raise", "count"),
    }
    for name, values in choices.items():
        value = given[name]
        if not any(value is one or value == one for one in values):
            listed = " or ".join(map(repr, values))
            raise ConfigError(f"{name} is {value!r}; it is {listed}")


def _check(asked: Reading) -> None:
    if isinstance(asked.label, bool):
        raise ConfigError(f"label is {asked.label!r}; it is the name of a column, or its position")
    for name in ("features", "chunk_rows", "threads"):
        count = getattr(asked, name)
        if count is not None:
            whole(name, count, 1)
