"""The parts of files that a rank reads, and the lines of such a part."""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from typing import BinaryIO, NamedTuple

from malt._data.files import File
from malt._errors import ConfigError, DamagedError

BLOCK_BYTES = 1 << 20


class Part(NamedTuple):
    """The bytes from `begin` to before `end` of a file, as it is stored."""

    file: File
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole file."""
        return self.begin == 0 and self.end == self.file.size

    @property
    def is_empty(self) -> bool:
        """Whether the part has no rows; readers look at the file's columns all the same."""
        return self.file.has_ranges and self.begin == self.end

    def share(self, elements: int) -> tuple[int, int]:
        """Return which of the file's rows are in this part; each row is in exactly one part."""
        if self.is_whole:
            return 0, elements
        size = self.file.size
        return elements * self.begin // size, elements * self.end // size


def split(files: Sequence[File], rank: int, size: int) -> list[Part]:
    """Return this rank's parts: an equal share of the bytes that can be cut, and whole other files.

    Whole files are dealt from the largest on, each to the rank that has the fewest bytes by then.
    """
    cut = [file for file in files if file.has_ranges]
    total = sum(file.size for file in cut)
    first, last = total * rank // size, total * (rank + 1) // size
    parts = []
    at = 0
    for file in cut:
        begin, end = max(first - at, 0), min(last - at, file.size)
        if begin < end:
            parts.append(Part(file, begin, end))
        at += file.size
    loads = [0] * size
    for file in sorted((f for f in files if not f.has_ranges), key=lambda f: (-f.size, f.name)):
        least = loads.index(min(loads))
        loads[least] += max(file.size, 1)
        if least == rank:
            parts.append(Part(file, 0, file.size))
    return parts


class Lines:
    """The lines of a text file that begin in a part of it, in blocks of bytes.

    A block is only valid until the next one. A block may end in the middle of a line. The mark by
    which some editors begin UTF-8 text is left out; UTF-16 is refused.
    """

    def __init__(self, part: Part, block_bytes: int = BLOCK_BYTES) -> None:
        self._part = part
        self._buffer = bytearray(block_bytes)
        self._first: int | None = None  # the byte at which the first line begins

    def __iter__(self) -> Iterator[memoryview]:
        return self.blocks()

    def blocks(self) -> Generator[memoryview, None, None]:
        with self._part.file.open() as file:
            blocks = self._cut(file) if self._part.file.has_ranges else self._whole(file)
            if self._part.begin == 0 and (first := next(blocks, None)):
                yield first[_mark_bytes(first, self._part.file.name) :]
            yield from blocks

    def _whole(self, file: BinaryIO) -> Iterator[memoryview]:
        self._first = 0
        while count := _fill(file, self._buffer):
            yield memoryview(self._buffer)[:count]

    def _cut(self, file: BinaryIO) -> Iterator[memoryview]:
        _, begin, end = self._part
        buffer = self._buffer
        at = max(begin - 1, 0)  # the byte before tells whether a line begins at `begin`
        file.seek(at)
        if begin == 0:
            self._first = 0
        while count := _fill(file, buffer):
            start, stop = 0, count
            if self._first is None:
                start = buffer.find(b"\n", 0, count) + 1
                if start > 0:
                    self._first = at + start
            if self._first is not None:
                if self._first >= end:
                    return
                # The last line is the one that contains byte `end` - 1.
                stop = buffer.find(b"\n", max(start, end - 1 - at), count) + 1
                yield memoryview(buffer)[start : stop or count]
                if stop:
                    return
            elif at + count >= end:
                return  # all bytes belong to one line that begins in an earlier part
            at += count
        if at < end:
            raise DamagedError(
                f"{self._part.file.name} ends at byte {at}; when it was opened it had "
                f"{self._part.file.size}"
            )

    def name_of(self, line: int) -> str:
        """Return, for messages, the place of the `line`-th of these lines, from 1."""
        file = self._part.file
        if not self._first:
            return f"{file.name}, line {line}"
        if file.system is not None:  # counting would read the bytes of all lower parts
            return f"{file.name}, line {line} after byte {self._first}"
        return f"{file.name}, line {self.lines_before + line}"

    @cached_property
    def lines_before(self) -> int:
        """How many lines of the file come before these. Reads those lines."""
        left = self._first or 0
        count = 0
        with self._part.file.open() as file:
            while left and (block := file.read(min(left, BLOCK_BYTES))):
                count += block.count(b"\n")
                left -= len(block)
        return count


def _mark_bytes(text: memoryview, name: str) -> int:
    """Return how many bytes of a file's first block are a byte-order mark."""
    begin = bytes(text[:3])
    if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise ConfigError(f"{name} is UTF-16 text; save it as UTF-8")
    return 3 if begin == codecs.BOM_UTF8 else 0


def _fill(file: BinaryIO, buffer: bytearray) -> int:
    return file.readinto(buffer) or 0  # type: ignore[attr-defined]
