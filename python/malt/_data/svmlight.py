"""svmlight and libsvm text, through the core's parser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from malt._core_import import SvmlightParserFloat32, SvmlightParserFloat64
from malt._data.files import reading
from malt._data.parts import BLOCK_BYTES, Lines, Part
from malt._data.reader import Reading, Rows, csr
from malt._errors import ConfigError

_MOST_INDEX = 2**31 - 1
_OUT_OF_RANGE = "the number is out of the type's range"
_INDEX_OUT_OF_RANGE = "the index is not from "


class SvmlightReader:
    """Parses parts of files; the parser keeps the rows until take() is called."""

    def __init__(self, asked: Reading) -> None:
        self._asked = asked
        if asked.label is not None:
            raise ConfigError(f"label is {asked.label!r}; svmlight text has labels of its own")
        first = 0 if asked.zero_based in (True, "auto") else 1
        last = _MOST_INDEX
        if asked.features is not None:
            last = min(asked.features - (asked.zero_based is True), _MOST_INDEX)
        kind = SvmlightParserFloat32 if asked.dtype == "float32" else SvmlightParserFloat64
        self.parser: Any = kind(first_index=first, last_index=last, threads=asked.threads)

    def feed(self, part: Part) -> Iterator[None]:
        """Parse a part; yields after each block."""
        asked, parser = self._asked, self.parser
        lines = Lines(part, BLOCK_BYTES * asked.threads)
        for block in lines:
            with reading(part.file.name):
                try:
                    parser.feed(block)
                except ConfigError as error:
                    raise ConfigError(f"{part.file.name}: {error}") from error
            self._note_bad(lines)
            yield
        parser.end_text()
        self._note_bad(lines)
        yield

    def take(self, *, zero_based: bool, features: int) -> Rows:
        """Return the rows parsed since the last call."""
        labels, starts, columns, values = self.parser.take(0 if zero_based else 1)
        return Rows(csr(values, columns, starts, features), labels)

    def _note_bad(self, lines: Lines) -> None:
        asked, parser = self._asked, self.parser
        if parser.bad_count == asked.bad:
            return
        for line, reason, text in parser.take_bad_lines():
            way_out = _way_out(asked, reason, text)
            asked.leave_out(f"{lines.name_of(line)}: {reason}: {text!r}{way_out}")
        asked.bad = parser.bad_count  # includes bad lines that were not kept


def _way_out(asked: Reading, reason: str, text: str) -> str:
    """Return what takes a line of which `text` is the rest, from what is bad in it."""
    if asked.dtype == "float32" and reason == _OUT_OF_RANGE and _is_float64(text):
        return "; dtype='float64' may hold it"
    index = text.partition(":")[0]
    if not (reason.startswith(_INDEX_OUT_OF_RANGE) and index.isdecimal()):
        return ""
    if int(index) == 0:
        return "; zero_based=False counts indices from 1: give True, or 'auto'"
    needed = int(index) + (asked.zero_based is True)
    if asked.features is None or needed > _MOST_INDEX:
        return ""
    return (
        f"; features is {asked.features}, and index {index} needs {needed}: give features={needed} "
        "or more, or leave it out"
    )


def _is_float64(text: str) -> bool:
    """Return whether float64 holds the number, behind its index if it has one, that text begins."""
    try:
        value = float(text.split()[0].rpartition(":")[2])
    except (ValueError, IndexError):
        return False
    return math.isfinite(value) and value != 0  # smaller numbers are also out of range
