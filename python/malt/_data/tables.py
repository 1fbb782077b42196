"""CSV, Parquet and Arrow files, through pyarrow."""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from malt._data.files import extra, reading
from malt._data.parts import BLOCK_BYTES, Lines, LinesFile, Part
from malt._data.reader import Reading, Rows
from malt._errors import ConfigError

_BATCH_ROWS = 1 << 16
_MOST_COLUMNS = 1 << 17  # of CSV: pyarrow needs 9 KB for each, and ends the process at 2 million
_MOST_HEADER_BYTES = 1 << 24


def read_csv(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the lines that begin in the part. A first line with a non-number is a header."""
    arrow = extra("pyarrow", "reading .csv")
    arrow_csv = extra("pyarrow.csv", "reading .csv")
    name = part.file.name
    names, has_header = _columns(part)
    label = _label(name, asked, names)
    where = name if part.begin == 0 else f"{name}, from byte {part.begin}"
    skipped = _SkippedRows(where)
    number = arrow.float32() if asked.dtype == "float32" else arrow.float64()
    types = {column: arrow.float64() if column == label else number for column in names}
    with reading(name), io.BufferedReader(LinesFile(Lines(part)), BLOCK_BYTES) as text:
        if has_header and part.begin == 0:
            text.readline()
        if not text.peek(1).strip():
            return
        stream = arrow_csv.open_csv(
            arrow.PythonFile(text, mode="r"),
            arrow_csv.ReadOptions(use_threads=False, column_names=names),
            arrow_csv.ParseOptions(invalid_row_handler=skipped.skip),
            arrow_csv.ConvertOptions(column_types=types),
        )
        at = 0
        for batch in stream:
            skipped.note(asked)
            rows = _rows(batch, label, asked)
            yield asked.only_finite(rows, where, partial(skipped.row_of, at))
            at += batch.num_rows
        skipped.note(asked)


class _SkippedRows:
    """The rows that pyarrow leaves out because they have too few or too many cells."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._kept_before: list[int] = []  # for each: how many kept rows come before it
        self._new: list[str] = []

    def skip(self, row: Any) -> str:
        """Note a row; pyarrow calls this for each that it leaves out."""
        number = row.number - 1
        self._kept_before.append(number - len(self._kept_before))
        self._new.append(
            f"{self._where}, row {number} (from 0): {row.actual_columns} cells, where there are "
            f"{row.expected_columns} columns: {row.text[:40]!r}"
        )
        return "skip"

    def note(self, asked: Reading) -> None:
        for bad in self._new:
            asked.leave_out(bad)
        self._new.clear()

    def row_of(self, at: int, i: int) -> int:
        """Return the number among all rows of row `at + i` of the kept ones."""
        return at + i + bisect_right(self._kept_before, at + i)


def read_parquet(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the part's rows from the row groups that contain them."""
    parquet = extra("pyarrow.parquet", "reading .parquet")
    name = part.file.name
    with part.file.open() as file:
        table = parquet.ParquetFile(file)
        label = _label(name, asked, _numbers(name, table.schema_arrow))
        first, last = part.share(table.metadata.num_rows)
        at = 0
        for group in range(table.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if at + rows > first and at < last:
                for batch in table.iter_batches(_BATCH_ROWS, row_groups=[group]):
                    yield from _cut(batch, at, first, last, label, asked, name)
                    at += batch.num_rows
            else:
                at += rows


def read_arrow(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the part's share of the record batches, the first and the last of which may be cut."""
    ipc = extra("pyarrow.ipc", "reading .arrow")
    name, size = part.file.name, part.file.size
    with part.file.open() as file:
        table = ipc.open_file(file)
        label = _label(name, asked, _numbers(name, table.schema))
        count = table.num_record_batches
        at = 0  # rows of the batches read so far
        # In units of 1/size of a batch, the part goes from count * begin to count * end.
        for i in range(count * part.begin // size, -(-count * part.end // size)):
            batch = table.get_batch(i)
            inside = (min(max(count * end - i * size, 0), size) for end in (part.begin, part.end))
            first, last = (batch.num_rows * units // size for units in inside)
            yield from _cut(batch, at, at + first, at + last, label, asked, f"{name}, batch {i}")
            at += batch.num_rows


def _cut(
    batch: Any, at: int, first: int, last: int, label: str | None, asked: Reading, where: str
) -> Iterator[Rows]:
    """Yield the batch's rows from row `first` to before row `last`; it begins with row `at`."""
    begin, end = max(first - at, 0), min(last - at, batch.num_rows)
    if begin < end:
        rows = _rows(batch.slice(begin, end - begin), label, asked)
        yield asked.only_finite(rows, where, (at + begin).__add__)


def _rows(batch: Any, label: str | None, asked: Reading) -> Rows:
    names = [name for name in batch.schema.names if name != label]
    x = np.empty((batch.num_rows, len(names)), asked.dtype)
    for i, name in enumerate(names):
        x[:, i] = asked.rounded(batch.column(name).to_numpy(zero_copy_only=False))
    if label is None:
        return Rows(x, None)
    return Rows(x, batch.column(label).to_numpy(zero_copy_only=False).astype(np.float64))


def _columns(part: Part) -> tuple[list[str], bool]:
    """Return the names of a CSV file's columns, and whether its first line holds them."""
    whole = Lines(Part(part.file, 0, part.file.size))
    with reading(part.file.name), io.BufferedReader(LinesFile(whole), BLOCK_BYTES) as text:
        line = text.readline(_MOST_HEADER_BYTES + 1)
        columns = line.count(b",") + 1  # at most; quoted commas separate nothing
        if len(line) > _MOST_HEADER_BYTES or columns > _MOST_COLUMNS:
            raise ConfigError(
                f"{part.file.name}: its first line has {columns:,} columns in {len(line):,} bytes "
                f"or more; at most {_MOST_COLUMNS:,} in {_MOST_HEADER_BYTES:,} are read: write "
                "wider data as .npy or svmlight text"
            )
        cells = next(csv.reader([line.decode("utf-8-sig")]), [])
    if all(map(_is_number, cells)):
        return [str(i) for i in range(len(cells))], False
    if len(set(cells)) < len(cells):
        raise ConfigError(f"{part.file.name}: several columns have one name: {', '.join(cells)}")
    return cells, True


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(name: str, schema: Any) -> list[str]:
    """Return the names of the columns, which must all be numbers."""
    types = extra("pyarrow.types", "reading tables")
    for column in schema:
        kind = column.type
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
            raise ConfigError(
                f"{name}: column {column.name!r} is of {kind}; all columns must be numbers"
            )
    return list(schema.names)


def _label(name: str, asked: Reading, names: Sequence[str]) -> str | None:
    """Return the name of the column that label= names; the other columns are the features."""
    label = asked.label
    if isinstance(label, int) and -len(names) <= label < len(names):
        label = names[label]
    if label is not None and label not in names:
        shown = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
        raise ConfigError(f"{name}: label is {label!r}; the columns are {shown}")
    asked.check_width(name, len(names) - (label is not None))
    return label  # type: ignore[return-value]
