"""CSV, Parquet and Arrow files, through pyarrow."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Generator, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from malt._data.files import extra, reading
from malt._data.parts import Lines, Part
from malt._data.reader import Contents, Reading, Rows
from malt._errors import ConfigError

_BATCH_ROWS = 1 << 16
_MOST_COLUMNS = 1 << 17  # of CSV: pyarrow needs 9 KB for each, and ends the process at 2 million
_MOST_LINE_BYTES = 1 << 24  # of CSV

_BLANK_LINES = re.compile(rb"(?:[ \t\r]*\n)*")
_NUMBER = re.compile(r"[ \t]*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[ \t]*", re.ASCII)
_NOT_FINITE = re.compile(r"[ \t]*[+-]?(nan|inf|infinity)[ \t]*", re.IGNORECASE)
# Columns that pandas and Dask made of the rows' labels.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")


class _Columns(NamedTuple):
    """The columns of a table."""

    names: Sequence[str]
    features: Sequence[int]  # by position
    label: int | None


def _choose(
    name: str, asked: Reading, names: Sequence[str], index: Sequence[int], *, has_names: bool = True
) -> _Columns:
    """Tell the label from the features; columns of pandas' index are none, though label= may be.

    Without `has_names` the names are made up, and those of other files may be any.

    Raises:
        ConfigError: the label is not there, a name is there twice, or the first file has other
            columns.
    """
    twice = sorted({one for one in names if names.count(one) > 1}) if _repeat(names) else []
    if twice:
        raise ConfigError(f"{name}: several columns have one name: {', '.join(twice)}; rename them")
    features = [i for i in range(len(names)) if i not in index]
    label = None
    if isinstance(asked.label, int) and -len(features) <= asked.label < len(features):
        label = features[asked.label]
    elif isinstance(asked.label, str) and asked.label in names:
        label = list(names).index(asked.label)
    elif asked.label is not None:
        shown = ", ".join(repr(names[i]) for i in features[:10])
        shown += ", ..." if len(features) > 10 else ""
        raise ConfigError(f"{name}: label is {asked.label!r}; the columns are {shown}")
    features = [i for i in features if i != label]
    columns = tuple(names[i] for i in features) if has_names else None
    label_name = names[label] if label is not None and has_names else None
    asked.check_contents(Contents(name, len(features), columns, label_name))
    return _Columns(names, features, label)


def _repeat(names: Sequence[str]) -> bool:
    return len(set(names)) < len(names)


def _rows(batch: Any, columns: _Columns, asked: Reading) -> Rows:
    x = np.empty((batch.num_rows, len(columns.features)), asked.dtype)
    for i, column in enumerate(columns.features):
        x[:, i] = asked.rounded(_numbers(batch.column(column)))
    if columns.label is None:
        return Rows(x, None)
    return Rows(x, _numbers(batch.column(columns.label)).astype(np.float64))


# CSV


def read_csv(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the lines that begin in the part."""
    extra("pyarrow.csv", "reading .csv")
    lines = Lines(part)
    with reading(part.file.name):
        blocks = _blocks(lines)
        if part.begin == 0 and not part.is_empty:
            header = _header(blocks, lines, asked)
            first = [] if header is None else [header.rest]
        else:
            whole = Lines(Part(part.file, 0, part.file.size))
            with contextlib.closing(_blocks(whole)) as from_begin:
                header = _header(from_begin, whole, asked)
            first = []
        if header is None:
            return
        columns = _choose(
            part.file.name, asked, header.names, header.index_at, has_names=header.is_there
        )
        for block in first:
            yield from _parsed(block, lines, columns, asked)
        for block in blocks:
            yield from _parsed(block, lines, columns, asked)


class _Block:
    """Whole lines of a text; `before` is how many lines come before them in their part."""

    def __init__(self, text: bytes, before: int) -> None:
        self.text, self.before = text, before

    @cached_property
    def filled(self) -> list[int]:
        """Which of the lines are not empty: by pyarrow's row."""
        return [i for i, line in enumerate(self.text.splitlines()) if line]


def _blocks(lines: Lines) -> Generator[_Block]:
    waiting, before = b"", 0
    for block in lines:
        data = bytes(block)
        if end := data.rfind(b"\n") + 1:
            text = b"".join((waiting, memoryview(data)[:end]))
            yield _Block(text, before)
            before += text.count(b"\n")
            waiting = b""
        waiting += data[end:]
        if len(waiting) > _MOST_LINE_BYTES:
            where = lines.name_of(before + 1)
            raise _too_wide(f"{where} has {len(waiting):,} bytes or more")
    if waiting:
        yield _Block(waiting, before)


def _too_wide(what: str) -> ConfigError:
    return ConfigError(
        f"{what}; at most {_MOST_COLUMNS:,} columns in {_MOST_LINE_BYTES:,} bytes are read: write "
        "wider data as .npy or svmlight text"
    )


class _Header(NamedTuple):
    is_there: bool  # else the names are "0", "1" and so on
    names: Sequence[str]
    index_at: Sequence[int]  # columns that pandas' to_csv() has made of the rows' labels
    rest: _Block  # the lines behind it


def _header(blocks: Iterator[_Block], lines: Lines, asked: Reading) -> _Header | None:
    """Read the first line that is not blank; return None if there is none."""
    for block in blocks:
        blank = _BLANK_LINES.match(block.text)
        assert blank is not None
        line, newline, rest = block.text[blank.end() :].partition(b"\n")
        if not line.strip():
            continue
        before = block.before + block.text.count(b"\n", 0, blank.end())
        where = lines.name_of(before + 1)
        cells = _cells(line, where)
        default = [str(i) for i in range(len(cells))]
        has_header = asked.header
        if has_header is None:
            has_header = _has_names(cells, where)
        if not has_header:
            return _Header(False, default, (), _Block(line + newline + rest, before))
        index_at = (0,) if len(cells) > 1 and not cells[0] else ()
        return _Header(True, cells, index_at, _Block(rest, before + 1))
    return None


def _cells(line: bytes, where: str) -> list[str]:
    columns = line.count(b",") + 1  # at most; quoted commas separate nothing
    if columns > _MOST_COLUMNS or len(line) > _MOST_LINE_BYTES:
        raise _too_wide(f"{where} has {columns:,} columns in {len(line):,} bytes")
    try:
        text = line.removesuffix(b"\r").decode()
        if "\r" in text:
            raise ConfigError(
                f"{where} has a carriage return inside; lines end with a line feed, or with both"
            )
        return next(csv.reader([text], strict=True))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} has byte {error.object[error.start]:#04x}, which is not UTF-8; save the file "
            "as UTF-8 (and a compressed file under a name that ends in .gz, .bz2, .xz or .zst)"
        ) from error
    except csv.Error as error:
        raise ConfigError(
            f"{where}: {error}; a quoted cell ends with its line: {line[:40].decode()!r}"
        ) from error


def _has_names(cells: Sequence[str], where: str) -> bool:
    """Return whether a first line has the names of the columns.

    Raises:
        ConfigError: it may have, since pandas numbers columns from 0, or be a row of such numbers.
    """
    if any(map(_is_name, cells)):
        return True
    count = len(cells) - 1
    if count and not cells[0] and list(cells[1:]) == [str(i) for i in range(count)]:
        return True  # behind the index
    if count and list(cells) == [str(i) for i in range(count + 1)]:
        raise ConfigError(
            f"{where} is {','.join(cells[:4])}{',...' if count > 3 else ''}: either names that "
            "pandas gives to columns, or a row of numbers; give header=True or header=False, or "
            "the columns other names"
        )
    return False


def _is_name(cell: str) -> bool:
    return not _is_value(cell) and cell.strip().lower() not in ("", "true", "false")


def _is_value(cell: str) -> bool:
    """Return whether a cell is a number, or a missing one."""
    return bool(_NUMBER.fullmatch(cell) or _NOT_FINITE.fullmatch(cell)) or cell in _nulls()


@cache
def _nulls() -> frozenset[str]:
    return frozenset(extra("pyarrow.csv", "reading .csv").ConvertOptions().null_values)


def _parsed(block: _Block, lines: Lines, columns: _Columns, asked: Reading) -> Iterator[Rows]:
    """Yield the rows of the lines that are good."""
    arrow, arrow_csv = extra("pyarrow", "reading .csv"), extra("pyarrow.csv", "reading .csv")
    number = arrow.float32() if asked.dtype == "float32" else arrow.float64()
    types = dict.fromkeys(columns.names, number)
    for i, one in enumerate(columns.names):
        if i == columns.label:
            types[one] = arrow.float64()
        elif i not in columns.features:
            types[one] = arrow.string()

    def parse(text: bytes) -> Any:
        return arrow_csv.read_csv(
            arrow.BufferReader(text),
            arrow_csv.ReadOptions(
                use_threads=False, column_names=columns.names, block_size=len(text) + 1
            ),
            None,
            arrow_csv.ConvertOptions(column_types=types),
        )

    if not block.text or block.text.isspace():
        return
    try:
        table = parse(block.text)
    except arrow.ArrowInvalid:
        block = _without_bad(block, lines, columns, asked)
        table = parse(block.text or b"\n")
    place = partial(_cell_in, block, lines, columns)
    yield asked.only_finite(_rows(table, columns, asked), place)


def _cell_in(
    block: _Block, lines: Lines, columns: _Columns, row: int, feature: int | None
) -> tuple[str, object]:
    """Return the place and the text of a feature, or of the label."""
    column = columns.label if feature is None else columns.features[feature]
    assert column is not None
    line = block.filled[row]
    where = lines.name_of(block.before + line + 1)
    cell = ""
    with contextlib.suppress(ConfigError):  # too long a cell
        cell = _cells(block.text.splitlines()[line], where)[column]
    return f"{where}, column {columns.names[column]!r}", cell


def _without_bad(block: _Block, lines: Lines, columns: _Columns, asked: Reading) -> _Block:
    """Leave out the bad lines, and empty those that stay in the text in their place."""
    kept = []
    for i, line in enumerate(block.text.splitlines()):
        if line.strip() and (flaw := _flaw(line, lines, block.before + i + 1, columns)):
            asked.leave_out(flaw)
            line = b""
        kept.append(line if line.strip() else b"")
    return _Block(b"\n".join(kept), block.before)


def _flaw(line: bytes, lines: Lines, number: int, columns: _Columns) -> str | None:
    where = lines.name_of(number)
    try:
        cells = _cells(line, where)
    except ConfigError as error:
        return str(error)
    if len(cells) != len(columns.names):
        return (
            f"{where}: {len(cells)} cells, where there are {len(columns.names)} columns: "
            f"{line[:40].decode(errors='replace')!r}"
        )
    for i in (*columns.features, *([] if columns.label is None else [columns.label])):
        if not _is_value(cells[i]):
            return f"{where}, column {columns.names[i]!r}: {cells[i][:40]!r} is no number"
    return None


# Parquet and Arrow


def read_parquet(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the part's rows from the row groups that contain them."""
    parquet = extra("pyarrow.parquet", "reading .parquet")
    name = part.file.name
    with part.file.open() as file:
        table = parquet.ParquetFile(file)
        columns = _columns(name, asked, table.schema_arrow)
        first, last = part.share(table.metadata.num_rows)
        at = 0
        for group in range(table.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if at + rows > first and at < last:
                for batch in table.iter_batches(_BATCH_ROWS, row_groups=[group]):
                    yield from _cut(batch, at, first, last, columns, asked, name)
                    at += batch.num_rows
            else:
                at += rows


def read_arrow(part: Part, asked: Reading) -> Iterator[Rows]:
    """Yield the part's share of the record batches, the first and the last of which may be cut."""
    ipc = extra("pyarrow.ipc", "reading .arrow")
    name = part.file.name
    begin, end, size = (0, 1, 1) if part.is_whole else (part.begin, part.end, part.file.size)
    with part.file.open() as file:
        magic = file.read(6)
        file.seek(0)
        if magic != b"ARROW1":
            raise ConfigError(
                f"{name} is no Arrow file, though it may be an Arrow stream or of Feather's "
                "version 1; write it with pyarrow.feather.write_feather() or pyarrow.ipc.new_file()"
            )
        table = ipc.open_file(file)
        columns = _columns(name, asked, table.schema)
        count = table.num_record_batches
        # In units of 1/size of a batch, the part goes from count * begin to count * end.
        for i in range(count * begin // size, -(-count * end // size)):
            batch = table.get_batch(i)
            inside = (min(max(count * at - i * size, 0), size) for at in (begin, end))
            first, last = (batch.num_rows * units // size for units in inside)
            yield from _cut(batch, 0, first, last, columns, asked, f"{name}, batch {i}")


def _cut(
    batch: Any, at: int, first: int, last: int, columns: _Columns, asked: Reading, where: str
) -> Iterator[Rows]:
    """Yield the batch's rows from row `first` to before row `last`; it begins with row `at`."""
    begin, end = max(first - at, 0), min(last - at, batch.num_rows)
    if begin < end:
        cut = batch.slice(begin, end - begin)

        def place(row: int, feature: int | None) -> tuple[str, object]:
            column = columns.label if feature is None else columns.features[feature]
            assert column is not None
            named = f"row {at + begin + row} (from 0), column {columns.names[column]!r}"
            return f"{where}, {named}", cut.column(column)[row].as_py()

        yield asked.only_finite(_rows(cut, columns, asked), place)


def _columns(name: str, asked: Reading, schema: Any) -> _Columns:
    """Choose among the columns; the label and the features must be numbers."""
    in_columns, ranges = _index(schema)
    is_name = isinstance(asked.label, str)
    if is_name and asked.label in ranges and asked.label not in schema.names:
        raise ConfigError(
            f"{name}: label is {asked.label!r}, a RangeIndex, of which pandas writes no column; "
            "write the frame's reset_index()"
        )
    columns = _choose(name, asked, schema.names, in_columns)
    types = extra("pyarrow.types", "reading tables")
    for i in (*columns.features, *([] if columns.label is None else [columns.label])):
        kind = schema.field(i).type
        of = kind.value_type if types.is_dictionary(kind) else kind
        tests = (types.is_floating, types.is_integer, types.is_boolean, types.is_decimal)
        if not any(is_such(of) for is_such in tests):
            raise ConfigError(
                f"{name}: column {columns.names[i]!r} is of {kind}; all columns must be numbers: "
                "write it as numbers (pandas: .cat.codes, pandas.get_dummies()), or leave it out"
            )
    return columns


def _index(schema: Any) -> tuple[list[int], list[Any]]:
    """Return the positions of the columns that pandas has made of a frame's index.

    Returns also the names of its levels that are ranges, which have no columns.
    """
    try:
        about = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        named = [one for one in about if isinstance(one, str)]
        ranges = [one["name"] for one in about if isinstance(one, dict)]
    except (ValueError, TypeError, LookupError):
        named, ranges = [], []
    at = [
        i for i, name in enumerate(schema.names) if name in named or _PANDAS_INDEX.fullmatch(name)
    ]
    return at, ranges


def _numbers(column: Any) -> Any:
    """Return a column of numbers as an array of NumPy's; a null is NaN."""
    arrow = extra("pyarrow", "reading tables")
    kind = column.type
    if arrow.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = kind.value_type
    if arrow.types.is_boolean(kind):
        column = column.cast(arrow.uint8())
    elif arrow.types.is_decimal(kind):
        column = column.cast(arrow.float64())
    if isinstance(column, arrow.ChunkedArray):
        return column.to_numpy()
    return column.to_numpy(zero_copy_only=False)
