"""Shows the ranks' output on the launcher's own: whole lines, each with its rank.

An unfinished line is shown after a moment too, so that a prompt, or the last words before a hang,
are seen. A carriage return restarts a line (progress bars): of such a line only the latest state is
shown, in place on a terminal, else from time to time.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from malt._launch.tracebacks import Tracebacks, Watched

_LONGEST_LINE = 1 << 16  # the most bytes that are held back of a line
_ERASE = b"\r\x1b[K"
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


class _Cursor:
    """The owner of the unfinished line that the output ends in.

    It is a Stream, the sink itself if that Stream has ended, or None.
    """

    owner: object = None


class Sink:
    """One of the launcher's own outputs. Two outputs that are the same file share a cursor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)
        self.has_no_reader = False
        self.failure: OSError | None = None  # since it was last asked for: why the rest is lost
        self._is_lost = False
        self.cursor = _Cursor()

    @classmethod
    def standard(cls) -> tuple[Sink, Sink]:
        """Standard output and standard error."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        out, err = cls(1), cls(2)
        try:
            if os.path.samestat(os.fstat(1), os.fstat(2)):
                err.cursor = out.cursor
        except OSError:  # one of them is closed
            pass
        return out, err

    def say(self, text: str) -> None:
        """Write a line of the launcher's own."""
        self.write(self.line_break() + text.encode() + b"\n")

    def line_break(self) -> bytes:
        """Return the bytes that end another stream's unfinished line."""
        if self.cursor.owner is None:
            return b""
        self.cursor.owner = None
        return b"\n"

    def write(self, data: bytes) -> None:
        """Write all of `data`; blocks as long as the reader does. A closed reader is no error.

        Once the file cannot be written (its disk is full), all the rest is lost.
        """
        view = memoryview(data)
        while view and not (self.has_no_reader or self._is_lost):
            try:
                view = view[os.write(self.descriptor, view) :]
            except BlockingIOError:
                select.select([], [self.descriptor], [], 1.0)
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                self.has_no_reader = error.errno == errno.EPIPE
                self._is_lost = not self.has_no_reader
                self.failure = error if self._is_lost else None


class Stream:
    """One output of one rank, read from a pipe."""

    def __init__(
        self, descriptor: int, sink: Sink, rank: int | None, tracebacks: Tracebacks | None = None
    ) -> None:
        """With a rank, lines get its prefix; with None, bytes pass unchanged.

        A traceback like one that another rank has shown is shortened to its end.
        """
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.sink = sink
        self._raw = rank is None
        self._prefix = b"" if rank is None else b"[%d] " % rank
        if rank is not None and sink.is_terminal and not os.environ.get("NO_COLOR"):
            colour = _COLOURS[rank % len(_COLOURS)]
            self._prefix = b"\x1b[%dm[%d]\x1b[0m " % (colour, rank)
        self._held = bytearray()
        self._held_since = 0.0
        self._watched = Watched(rank, tracebacks) if rank is not None and tracebacks else None
        self._redraws = False  # a carriage return has restarted the current line before
        self._returned = False  # the shown part of the line ended in a carriage return

    def read(self, now: float) -> bool:
        """Read once, and pass whole lines on; return False at the end of the stream."""
        try:
            data = os.read(self.descriptor, _LONGEST_LINE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data:
            self._take(data, now)
        return bool(data)

    def drain(self, now: float) -> None:
        """Read all that is there, but not for ever if another process goes on writing."""
        readable = select.poll()  # unlike select(), accepts descriptors of any number
        readable.register(self.descriptor, select.POLLIN)
        for _ in range(32):
            if not readable.poll(0) or not self.read(now):
                return

    def show_at(self) -> float | None:
        """Return when to show the unfinished line; None if there is nothing to show."""
        if not self._held and (self._watched is None or not self._watched.is_held):
            return None
        terminal = self.sink.is_terminal
        if self._redraws or (not self._raw and b"\r" in self._held):
            owner = self.sink.cursor.owner is self
            return self._held_since + ((0.1 if owner else 1.0) if terminal else 10.0)
        return self._held_since + (0.2 if terminal else 1.0)

    def show(self) -> None:
        """Write the part that is held of an unfinished line, and of a traceback before it."""
        if self._watched is not None and self._watched.is_held:
            self._pass_on(self._watched.release())
        if not self._held:
            return
        text = bytes(self._held)
        self._held.clear()
        if self._raw:
            self.sink.write(self._start(text))
        else:
            self._redraws = self._redraws or b"\r" in text
            if shown := text.rstrip(b"\r"):
                self.sink.write(self._start(shown))
            self._returned = shown != text
            if not shown:
                return
        self.sink.cursor.owner = self

    def finish(self) -> None:
        """Write the rest, at the end of the stream, and close it."""
        self.show()
        if self.sink.cursor.owner is self:
            if self._raw:
                self.sink.cursor.owner = self.sink  # the next writer ends the line
            else:
                self.sink.write(self.sink.line_break())
        os.close(self.descriptor)

    def _take(self, data: bytes, now: float) -> None:
        if not self._held:
            self._held_since = now
        end = data.rfind(b"\n") + 1
        if end:
            lines = bytes(self._held) + data[:end]
            self._held.clear()
            self._held_since = now
            if self._watched is not None:
                lines = self._watched.take(lines)
            if lines:
                self._pass_on(lines)
        self._held += data[end:]
        if len(self._held) >= _LONGEST_LINE:
            self.show()

    def _pass_on(self, lines: bytes) -> None:
        first, _, rest = lines.partition(b"\n")
        output = [self._start(first), b"\n"]
        self._redraws = self._returned = False
        self.sink.cursor.owner = None
        if self._raw or not rest:
            output.append(rest)
        else:
            for line in rest[:-1].split(b"\n"):
                output += [self._prefix, _latest(line), b"\n"]
        self.sink.write(b"".join(output))

    def _start(self, text: bytes) -> bytes:
        """Return `text` as the start of a line, or as more of the line that is shown already."""
        is_more = self.sink.cursor.owner is self
        if self._raw:
            return text if is_more else self.sink.line_break() + text
        if not is_more:
            return self.sink.line_break() + self._prefix + _latest(text)
        text = text.rstrip(b"\r")
        if text and (self._returned or b"\r" in text):
            anew = _ERASE if self.sink.is_terminal else b"\n"
            return anew + self._prefix + _latest(text)
        return text


def _latest(line: bytes) -> bytes:
    """Return what a terminal would show of a line that carriage returns have restarted."""
    if b"\r" not in line:
        return line
    ending = b"\r" if line.endswith(b"\r") and b"\r" not in line[:-1] else b""
    return line.rstrip(b"\r").rpartition(b"\r")[2] + ending
