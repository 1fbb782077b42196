"""Messages of any length among the ranks of a job, over the core's mail.

A message is a subject, which is plain values, and parts. It goes in pieces.

1. The mail brings the pieces of one rank in order, and each once. A piece says where in the message
   it belongs, how long the message is, and how many bytes of it are still to come.
2. A piece at offset 0 begins a message. A part of the message before, if that was not whole, is
   dropped: its sender was interrupted. A piece that does not continue the message that has begun
   is dropped with it: this rank was interrupted. So an interrupt may lose messages that were sent
   before it, but no message has parts of another one, or lacks some.
3. While a rank waits for room to send, it takes in what comes. So two ranks that send to each other
   cannot block each other. And it keeps at most a few pieces in memory that wait for room.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from malt._core_import import Mail, available_bytes
from malt._errors import ConfigError, DamagedError
from malt._job.job import Job
from malt._pool.memory import aligned

SLOT_BYTES = 1 << 18
_DEPTH = 4
_PIECE = struct.Struct("<QQQ")  # offset, bytes of the message, bytes still to come
_MOST_PIECE = SLOT_BYTES - _PIECE.size
_COUNT = struct.Struct("<Q")  # bytes of the subject
_MOST_WAITING = 4  # pieces
_CHECKED = 1 << 24  # a longer message is compared with the free memory first
_LONG = 3600.0


class Message(NamedTuple):
    sender: int
    subject: list[Any]
    parts: list[memoryview]


class _Begun(NamedTuple):
    buffer: Any
    left: int  # bytes still to come


class Messenger:
    """This rank's messages. Made by all live ranks together; a job has one at a time."""

    def __init__(self, job: Job) -> None:
        self.rank = job.rank
        with job.within(job.deadline()):
            self._mail = Mail(job.group, "malt.Pool", SLOT_BYTES, _DEPTH)
        self._begun: dict[int, _Begun] = {}  # by sender
        self._arrived: deque[Message] = deque()

    def live(self) -> list[int]:
        """Return the ranks that live and have not closed their messenger, and this one."""
        live: list[int] = self._mail.live()
        return live

    def others(self) -> list[int]:
        return [rank for rank in self.live() if rank != self.rank]

    def send(self, to: int, *subject: Any, parts: Sequence[bytes | memoryview] = ()) -> None:
        """Send a message. It is dropped if the receiver dies."""
        head = json.dumps([subject, list(map(len, parts))], separators=(",", ":")).encode()
        chunks = [_COUNT.pack(len(head)) + head, *parts]
        starts = [0, *itertools.accumulate(aligned(len(chunk)) for chunk in chunks)]
        length = starts.pop()
        if length <= _MOST_PIECE:
            body = b"".join(bytes(each).ljust(aligned(len(each)), b"\0") for each in chunks)
            self._mail.send(to, _PIECE.pack(0, length, 0), body)
            return
        left = sum(map(len, chunks))
        for start, chunk in zip(starts, chunks, strict=True):
            view = memoryview(chunk)
            for at in range(0, len(view), _MOST_PIECE):
                piece = view[at : at + _MOST_PIECE]
                left -= len(piece)
                self._mail.send(to, _PIECE.pack(start + at, length, left), piece)
                self._flush(_MOST_WAITING)

    def flush(self) -> None:
        """Wait until all that was sent has left this rank."""
        self._flush(0)

    def _flush(self, most: int) -> None:
        while self._mail.pump() > most:
            live = self._mail.live()
            self._take_in()
            if self._mail.pump() > most:
                self._mail.wait(live, _LONG)

    def receive(self) -> Message | None:
        """Return the next message; None if none has arrived. Also send what waits for room."""
        if not self._arrived:
            self.take_in()
        return self._arrived.popleft() if self._arrived else None

    def take_in(self) -> None:
        """Make room for what other ranks send, and send what waits for room."""
        self._mail.pump()
        self._take_in()

    def wait(self, live: list[int], seconds: float = _LONG) -> None:
        """Wait for a message, until other ranks live than `live`, or until the time is up."""
        if not self._arrived:
            self._mail.pump()
            self._mail.wait(live, seconds)

    def close(self) -> None:
        """Leave. Idempotent."""
        self._mail.shut()

    def _take_in(self) -> None:
        for sender, data in self._mail.receive():
            self._take(sender, memoryview(data))

    def _take(self, sender: int, data: memoryview) -> None:
        if len(data) < _PIECE.size:
            raise _damaged(sender)
        offset, length, left = _PIECE.unpack_from(data)
        piece = data[_PIECE.size :]
        end = offset + len(piece)
        if end > length:
            raise _damaged(sender)
        begun = self._begun.pop(sender, None)
        if offset == 0:
            begun = _Begun(_room(length), left + len(piece))
        if begun is None or (len(begun.buffer), begun.left) != (length, left + len(piece)):
            return
        begun.buffer[offset:end] = piece
        if left == 0:
            self._arrived.append(_read(sender, begun.buffer))
        else:
            self._begun[sender] = _Begun(begun.buffer, left)


def _room(length: int) -> Any:
    """Return memory for a message, in which arrays are aligned as in that of memory.py."""
    if length > _CHECKED and length > (free := available_bytes()):
        raise ConfigError(
            f"malt.Pool needs {length / 1e6:,.0f} MB more on this rank, and {free / 1e6:,.0f} MB "
            "are free: share the data in more chunks, or run the job on more hosts"
        )
    memory = np.empty(length + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][:length].data


def _read(sender: int, buffer: memoryview) -> Message:
    try:
        (count,) = _COUNT.unpack_from(buffer)
        at = _COUNT.size + count
        subject, lengths = json.loads(bytes(buffer[_COUNT.size : at]))
        at = aligned(at)
        parts = []
        if not isinstance(subject, list):
            raise _damaged(sender)
        for length in lengths:
            if type(length) is not int or not 0 <= length <= len(buffer) - at:
                raise _damaged(sender)
            parts.append(buffer[at : at + length].toreadonly())
            at += aligned(length)
    except (ValueError, TypeError, RecursionError, struct.error) as error:
        raise _damaged(sender) from error
    return Message(sender, subject, parts)


def _damaged(sender: int) -> DamagedError:
    return DamagedError(f"a message of rank {sender} for malt.Pool is damaged")
