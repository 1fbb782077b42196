"""Tracebacks of several ranks that come from the same place: the first is shown whole.

Of the others only the last line is, which says what went wrong, and whose traceback it is like.
"""

from __future__ import annotations

_BEGIN = b"Traceback (most recent call last):\n"
_MOST = 1000  # places that are remembered


class Tracebacks:
    """Those that the ranks of a job have shown: the rank, by what comes before the last line."""

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}

    def shorten(self, rank: int, frames: bytes) -> bytes:
        """What to show for them: themselves, or whose they are like."""
        if len(self._first) < _MOST:
            self._first.setdefault(frames, rank)
        first = self._first.get(frames, rank)
        return frames if first == rank else b"(traceback as on rank %d)\n" % first


class Watched:
    """The error output of one rank, a traceback at a time."""

    def __init__(self, rank: int, shown: Tracebacks) -> None:
        self._rank = rank
        self._shown = shown
        self._frames = bytearray()

    @property
    def is_held(self) -> bool:
        """Whether a traceback has begun and not come to its end."""
        return bool(self._frames)

    def take(self, lines: bytes) -> bytes:
        """Whole lines; returns those to show now."""
        output = bytearray()
        for line in lines.splitlines(keepends=True):
            if line == _BEGIN:
                output += self.release()
                self._frames += line
            elif not self._frames:
                output += line
            elif line.startswith(b" "):
                self._frames += line
            else:
                output += self._shown.shorten(self._rank, bytes(self._frames)) + line
                self._frames.clear()
        return bytes(output)

    def release(self) -> bytes:
        """What is held of a traceback that does not come to its end."""
        held = bytes(self._frames)
        self._frames.clear()
        return held
