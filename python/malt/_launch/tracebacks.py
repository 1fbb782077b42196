"""Shortens equal tracebacks and warnings of several ranks: the first is shown whole.

Of the other tracebacks only the last line is shown, which has the error, and which rank's traceback
it is like. Of the other warnings nothing is shown.
"""

from __future__ import annotations

import re

_BEGIN = b"Traceback (most recent call last):\n"
_WARNING = re.compile(rb"malt( WARNING)?: |\S+:\d+: \w*Warning: ")  # MALT's, and Python's
_MOST = 1000  # the most tracebacks that are remembered, and as many warnings


class Tracebacks:
    """The tracebacks shown so far: the first rank, by the lines before the last one."""

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._warned: dict[bytes, int] = {}

    def shorten(self, rank: int, frames: bytes) -> bytes:
        """Return the lines to show: `frames`, or a reference to the rank that has shown them."""
        if len(self._first) < _MOST:
            self._first.setdefault(frames, rank)
        first = self._first.get(frames, rank)
        return frames if first == rank else b"(traceback as on rank %d)\n" % first

    def is_again(self, rank: int, line: bytes) -> bool:
        """Return whether the line is a warning that another rank has shown."""
        if not _WARNING.match(line):
            return False
        line = line.replace(b"rank %d " % rank, b"rank # ")
        if len(self._warned) < _MOST:
            self._warned.setdefault(line, rank)
        return self._warned.get(line, rank) != rank


class Watched:
    """The error output of one rank, split into tracebacks and other lines."""

    def __init__(self, rank: int, shown: Tracebacks) -> None:
        self._rank = rank
        self._shown = shown
        self._frames = bytearray()
        self._skips_code = False  # a warning was left out; Python may show its line of code next

    @property
    def is_held(self) -> bool:
        """Whether a traceback has begun and not ended."""
        return bool(self._frames)

    def take(self, lines: bytes) -> bytes:
        """Take whole lines; return those to show now."""
        output = bytearray()
        for line in lines.splitlines(keepends=True):
            skips_code, self._skips_code = self._skips_code, False
            if line == _BEGIN:
                output += self.release()
                self._frames += line
            elif not self._frames:
                if skips_code and line.startswith(b"  "):
                    continue
                self._skips_code = self._shown.is_again(self._rank, line)
                if not self._skips_code:
                    output += line
            elif line.startswith(b" "):
                self._frames += line
            else:
                output += self._shown.shorten(self._rank, bytes(self._frames)) + line
                self._frames.clear()
        return bytes(output)

    def release(self) -> bytes:
        """Return the held part of a traceback that does not end."""
        held = bytes(self._frames)
        self._frames.clear()
        return held
