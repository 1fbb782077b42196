"""svmlight and libsvm text, through the core's parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from malt._core_import import SvmlightParserFloat32, SvmlightParserFloat64
from malt._data.files import reading
from malt._data.parts import BLOCK_BYTES, Lines, Part
from malt._data.reader import Reading, Rows, csr
from malt._errors import ConfigError

_MOST_INDEX = 2**31 - 1
_WAYS_OUT = {"the number is out of the type's range": "; dtype='float64' may hold it"}


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
            way_out = _WAYS_OUT.get(reason, "") if asked.dtype == "float32" else ""
            asked.leave_out(f"{lines.name_of(line)}: {reason}: {text!r}{way_out}")
        asked.bad = parser.bad_count  # includes bad lines that were not kept
