"""The messages of a shared array: a head, what the sender has, and a payload.

Numbers are little-endian. After the head follows the sender's `held`, u64 for each rank.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from malt._errors import DamagedError
from malt._shared.streams import Held, Part

# VALUES: a piece of the copy, for rejoining ranks. MARK: the sender has come to its drain `number`.
DELTA, VALUES, MARK = range(3)
_MOST = 1 << 63  # beyond the numbers of deltas and exchanges
_HEAD = struct.Struct("<IIQQII")  # kind, then of the part: origin, number, clock, place, parts


class Message(NamedTuple):
    kind: int
    held: Held  # the sender's
    part: Part


def head_bytes(size: int) -> int:
    return _HEAD.size + 8 * size


def pack(message: Message) -> bytes:
    origin, number, clock, place, parts, payload = message.part
    head = _HEAD.pack(message.kind, origin, number, clock, place, parts)
    return head + message.held.astype("<i8").tobytes() + payload


def unpack(data: bytes, size: int) -> Message:
    """Read a message in a job of `size` ranks.

    Raises:
        DamagedError: it is none.
    """
    if len(data) >= head_bytes(size):
        kind, origin, number, clock, place, parts = _HEAD.unpack_from(data)
        held = np.frombuffer(data, "<i8", size, _HEAD.size).astype(np.int64)
        is_sound = kind <= MARK and origin < size and place < parts and (held >= 0).all()
        if is_sound and max(number, clock) < _MOST:
            payload = data[head_bytes(size) :]
            return Message(kind, held, Part(origin, number, clock, place, parts, payload))
    raise DamagedError(f"a message of {len(data)} bytes for a shared array is damaged")
