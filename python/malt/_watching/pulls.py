"""Files that collectors of different hosts ask of one another, piece by piece.

The launchers pass the messages on (`_rendezvous/relay.py`).

    P1  A message may be lost. An asker repeats a question that has had no answer, and ignores
        answers that it no longer waits for. Nothing is ever sent without having been asked for.
    P2  For each pull one piece is on its way, and few pulls ask at a time. So neither side, nor any
        launcher between them, needs memory beyond that, and a host that is slow gets few questions.
    P3  A file does not change while it is asked for: its serial number names it.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, Protocol

from malt._rendezvous import wire

ASK = struct.Struct("!cBIQ")  # b"?", kind, serial number, offset
# b"=", kind, serial number, offset, bytes of the whole, the clock of the host that answers; a piece
# follows
PIECE = struct.Struct("!cBIQQq")
_PIECE_BYTES = wire.MAX_RELAYED // 2
# The files. The last has no bytes: asking for it says that the trace has been taken.
SUMMARY, REPORT, TRACE, TAKEN = range(4)

# Bytes that another host may send.
_MOST_BYTES = {SUMMARY: 1 << 20, REPORT: 1 << 26, TRACE: 1 << 30, TAKEN: 0}

_MOST_AT_ONCE = 4
_AGAIN_NS = 500_000_000  # after which a question is repeated
_GIVE_UP_NS = 3_000_000_000  # after which another host gets the turn of one that does not answer
_DRIFT = 1e-4  # by how much two clocks may drift apart, as a part of the time that has passed


class Sink(Protocol):
    """A file that is being written."""

    def write(self, data: bytes, /) -> int: ...


class Pull:
    """A file that is asked for.

    Attributes:
        is_done: all of it has come.
        is_waiting: it is asked for, or will be. Otherwise it is done, or has been given up.
        error: why it cannot be had, or empty.
    """

    def __init__(self, node: int, kind: int, serial: int, into: Sink) -> None:
        self.node, self.kind, self.serial, self.into = node, kind, serial, into
        self.is_done = False
        self.is_waiting = True
        self.error = ""
        self.offset = 0
        self.asked = 0  # when this piece was asked for first
        self.repeated = 0  # and when last

    def ask(self) -> bytes:
        self.repeated = time.monotonic_ns()
        self.asked = self.asked or self.repeated
        return ASK.pack(b"?", self.kind, self.serial, self.offset)


class Puller:
    """The asking side of one collector.

    Attributes:
        gone: nodes whose launchers have ended.
    """

    def __init__(self, send: Callable[[int, bytes], None]) -> None:
        self.gone: set[int] = set()
        self._send = send
        self._asking: list[Pull] = []
        self._waiting: deque[Pull] = deque()
        self._serial = 0
        # By node: half the shortest time that an answer took, what to add to that host's clock to
        # get this one's, and when. Nanoseconds.
        self._clocks: dict[int, tuple[float, int, int]] = {}

    def begin(self, node: int, kind: int, into: Sink) -> Pull:
        """Ask for a file, from its beginning; it is written to `into`."""
        self._serial += 1
        pull = Pull(node, kind, self._serial, into)
        self._waiting.append(pull)
        self.advance()
        return pull

    def go_on(self, pull: Pull) -> None:
        """Ask for the rest of a file that has been given up."""
        pull.is_waiting, pull.asked = True, 0
        self._waiting.append(pull)

    def advance(self) -> None:
        """Ask what is due; call it again and again."""
        now = time.monotonic_ns()
        for pull in list(self._asking):
            if pull.node in self.gone or now - pull.asked > _GIVE_UP_NS:
                self._end(pull)
            elif now - pull.repeated > _AGAIN_NS:
                self._send(pull.node, pull.ask())
        while self._waiting and len(self._asking) < _MOST_AT_ONCE:
            pull = self._waiting.popleft()
            if pull.node in self.gone:
                pull.is_waiting = False
                continue
            self._asking.append(pull)
            self._send(pull.node, pull.ask())

    def hear(self, node: int, message: bytes) -> None:
        """Handle an answer.

        Raises:
            struct.error: it is none.
        """
        now = time.monotonic_ns()
        _, kind, serial, offset, total, theirs = PIECE.unpack_from(message)
        piece = message[PIECE.size :]
        for pull in self._asking:
            awaited = (pull.node, pull.kind, pull.serial, pull.offset)
            if awaited == (node, kind, serial, offset):
                break
        else:
            return
        if len(piece) > total - offset or (not piece and offset < total):
            return
        self._note_clock(node, pull.asked, now, theirs)
        try:
            if total > _MOST_BYTES[kind]:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            pull.into.write(piece)
        except OSError as error:
            pull.error = error.strerror or str(error)
            self._end(pull)
            return
        pull.offset += len(piece)
        pull.asked = 0
        if pull.offset < total:
            self._send(node, pull.ask())
        else:
            pull.is_done = True
            self._end(pull)
            self.advance()

    def shift(self, node: int) -> int:
        """Return what to add to the clock of a host that has answered to get this host's."""
        return self._clocks[node][1]

    def _end(self, pull: Pull) -> None:
        self._asking.remove(pull)
        pull.is_waiting = False

    def _note_clock(self, node: int, asked: int, now: int, theirs: int) -> None:
        """Take the answer as the better measure of a clock if it was quick."""
        error = (now - asked) / 2
        best, _, at = self._clocks.get(node, (float("inf"), 0, 0))
        if error <= best + (now - at) * _DRIFT:
            self._clocks[node] = error, (asked + now) // 2 - theirs, now


class Answers:
    """The answering side.

    Attributes:
        files: by kind: those that can be asked for; SUMMARY is always there.
        is_taken: the trace has been taken.
    """

    def __init__(self, summary: Callable[[int, bool], bytes]) -> None:
        """`summary` returns what has come since a node asked last, or all for its first time."""
        self.files: dict[int, BinaryIO] = {}
        self.is_taken = False
        self._summary = summary
        self._summaries: dict[int, tuple[int, bytes]] = {}  # by node: serial number, bytes

    def answer(self, node: int, message: bytes) -> bytes | None:
        """Return the answer to a question, or None if there is none yet.

        Raises:
            struct.error: it is no question.
        """
        _, kind, serial, offset = ASK.unpack(message)
        if kind == SUMMARY:
            last, whole = self._summaries.get(node, (0, b""))
            if serial != last and offset == 0:
                whole = self._summary(node, last == 0)
                self._summaries[node] = serial, whole
            elif serial != last:
                return None
            piece, total = whole[offset : offset + _PIECE_BYTES], len(whole)
        elif kind == TAKEN:
            self.is_taken = True
            piece, total = b"", 0
        elif kind in self.files:
            descriptor = self.files[kind].fileno()
            piece = os.pread(descriptor, _PIECE_BYTES, min(offset, 1 << 62))
            total = os.fstat(descriptor).st_size
        else:
            return None
        return PIECE.pack(b"=", kind, serial, offset, total, time.monotonic_ns()) + piece
