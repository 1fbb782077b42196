"""Bytes of any length that the live ranks of a group give one another, in pieces."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence

MOST_BYTES = 768  # the most bytes of one exchange: Group::kMostExchanged

_LENGTH = struct.Struct("<I")  # before the first byte
MOST_GIVEN = 1 << 26  # bytes of a rank


class Sent:
    """Bytes that a rank has sent and received in a step, so that the step can go on.

    Attributes:
        post: what it sent; None: nothing yet.
        here: by piece, what all ranks gave.
        settings: what a call that goes on with this one has to have too.
        is_here: the call, or the one that goes on with it, has come to the exchange.
        is_folded: the user's function folds what all ranks gave.
        is_over: it is not to go on.
    """

    def __init__(self) -> None:
        self.post: bytes | None = None
        self.here: list[list[bytes | None]] = []
        self.settings: dict[str, str] = {}
        self.is_here = False
        self.is_folded = False
        self.is_over = False


class SentByThread(threading.local):
    """This thread's `Sent` of calls that have not ended, by call."""

    def __init__(self) -> None:
        self.by_call: dict[str, Sent] = {}


def exchange(
    data: bytes,
    once: Callable[[int, bytes], Sequence[bytes | None]],
    damaged: Callable[[int], Exception],
) -> dict[int, bytes]:
    """Return what each rank gave that lived to the end, by rank. Collective.

    Args:
        data: what this rank gives.
        once: exchanges the piece of at most MOST_BYTES bytes that begins at this byte (0: the
            first piece), and returns the others' by rank, None for the dead.
        damaged: the error where this rank sent something else than pieces.
    """
    whole = _LENGTH.pack(len(data)) + data
    here = {rank: told for rank, told in enumerate(once(0, whole[:MOST_BYTES])) if told is not None}
    lengths = {rank: _length_of(told) for rank, told in here.items()}
    if wrong := [rank for rank, length in lengths.items() if length is None]:
        raise damaged(wrong[0])
    for begin in range(MOST_BYTES, max(length or 0 for length in lengths.values()), MOST_BYTES):
        there = once(begin, whole[begin : begin + MOST_BYTES])
        here = {rank: here[rank] + told for rank in here if (told := there[rank]) is not None}
        for rank, told in here.items():
            if len(told) != min(lengths[rank] or 0, begin + MOST_BYTES):
                raise damaged(rank)
    return {rank: told[_LENGTH.size :] for rank, told in here.items()}


def is_whole(first: bytes) -> bool:
    """Whether a first piece is all that a rank gives."""
    length = _length_of(first)
    return length is not None and length == len(first)


def _length_of(first: bytes) -> int | None:
    """Return how long what a rank gives is, by its first piece; None: the piece is damaged."""
    if len(first) < _LENGTH.size:
        return None
    length = _LENGTH.size + int(_LENGTH.unpack_from(first)[0])
    is_right = length <= _LENGTH.size + MOST_GIVEN and len(first) == min(length, MOST_BYTES)
    return length if is_right else None
