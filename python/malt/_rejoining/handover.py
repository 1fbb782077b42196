"""Transfer of the values of all vectors from one rank to the rejoining ranks.

The values travel through a vector made for this, in chunks that each have a checksum. The transfer
is one-sided, as everything that MALT sends.
"""

from __future__ import annotations

import contextlib
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from malt import _errors as errors
from malt._core_import import ALL, DeviceVector, Group, Update, Vector
from malt._errors import DamagedError, PeerError
from malt._vector_types import SPARSE_VECTORS, AnyVector

Bytes: TypeAlias = npt.NDArray[np.uint8]
Copy: TypeAlias = list[Bytes]  # a dense vector's pieces, or a sparse vector's indices and values

_CHUNK_BYTES = 1 << 19
_HEAD_WORDS = 2  # the number of bytes used, and their checksum
_NAP_SECONDS = 0.0005
_RANK = struct.Struct("=i")


def share(
    group: Group,
    vectors: Sequence[tuple[AnyVector, Copy | None]],
    back: Sequence[int],
    senders: Sequence[int],
    timeout: float,
) -> None:
    """Send the vectors' values from the first live rank of `senders` to the ranks `back`.

    Collective. A vector that comes with a copy is sent as that copy.

    Raises:
        malt.PeerError: raised on a rejoining rank; the sender has died, or all other ranks have
            ended.
        malt.TimeoutError: a rank that had to send or to receive did not.
        malt.DamagedError: the bytes that arrived are not the bytes that were sent.
    """
    alive = set(group.alive())
    sender = next((rank for rank in senders if rank in alive), None)
    if sender is None:
        raise PeerError("the other ranks ended before this rank had rejoined", back)
    if not vectors:
        return
    # Ranks may differ about which ranks live. So the receivers announce from which rank they take
    # the values. (The vector is made in any case: when a rejoining rank has died, some ranks know
    # of it and some do not.)
    chosen = group.exchange(
        "the sender of the values", _RANK.pack(sender) if group.rank in back else b"", timeout
    )
    if not all(len(post) == _RANK.size for post in chosen if post):
        raise DamagedError("a rank named the sender of the values in a message that is damaged")
    named = {_RANK.unpack(post)[0] for post in chosen if post}
    most = max(sum(view.nbytes for view in _views(vector, room=True)) for vector, _ in vectors)
    words = (min(_CHUNK_BYTES, most) + 7) // 8 + _HEAD_WORDS
    way = Vector(
        group=group,
        dtype=np.dtype(np.int64),
        arrays=[],
        own_count=words,
        shown=None,
        name="values for the rejoining ranks",
        graph=ALL,
        policy="queue",
        depth=2,
        reject_nonfinite=False,
        max_norm=None,
        rejoins=False,
    )
    with contextlib.closing(way):
        if group.rank in named:
            for vector, copy in vectors:
                _send(way, vector, _views(vector) if copy is None else copy)
        elif group.rank in back:
            taker = _Taker(way, group, sender, timeout)
            for vector, _ in vectors:
                taker.take(vector)
        else:
            way.close()  # so that the sender does not wait for this rank
        group.barrier(timeout)


def copy_of(vector: AnyVector) -> Copy:
    return [view.copy() for view in _views(vector)]


def _views(vector: AnyVector, *, room: bool = False) -> list[Bytes]:
    """Return a vector's memory as bytes.

    Of a sparse vector, or one on a GPU, this is a copy; with `room`, zeros of the most that it can
    hold.
    """
    if isinstance(vector, Vector):
        arrays = vector.array if isinstance(vector.array, (list, tuple)) else [vector.array]
    elif isinstance(vector, DeviceVector):
        arrays = [np.zeros(len(vector), vector.dtype) if room else vector.read()]
    elif room:
        most = vector.capacity
        arrays = [np.zeros(most, np.int32), np.zeros(most, vector.values.dtype)]
    else:
        arrays = [vector.indices, vector.values]
    return [_bytes_of(np.asarray(array)) for array in arrays]


def _bytes_of(array: npt.NDArray[Any]) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def _send(way: Vector, vector: AnyVector, views: Copy) -> None:
    if isinstance(vector, SPARSE_VECTORS):
        indices, _ = views
        _put(way, _bytes_of(np.array([len(indices) // 4])))
    for view in views:
        _put(way, view)


def _put(way: Vector, view: Bytes) -> None:
    room = way.array[_HEAD_WORDS:].view(np.uint8)
    for start in range(0, len(view), len(room)):
        part = view[start : start + len(room)]
        room[: len(part)] = part
        way.array[:_HEAD_WORDS] = len(part), zlib.crc32(part.tobytes())
        way.scatter()


class _Taker:
    def __init__(self, way: Vector, group: Group, sender: int, timeout: float) -> None:
        self._way = way
        self._group = group
        self._sender = sender
        self._timeout = timeout
        self._come = bytearray()

    def take(self, vector: AnyVector) -> None:
        if isinstance(vector, SPARSE_VECTORS):
            (count,) = np.frombuffer(self._next(8), np.int64)
            if not 0 <= count <= vector.capacity:
                raise DamagedError(f"rank {self._sender} sent {count} elements of {vector!r}")
            indices = np.frombuffer(self._next(4 * count), np.int32)
            dtype = vector.values.dtype
            values: Any = np.frombuffer(self._next(dtype.itemsize * count), dtype)
            vector.set(indices, values)
            return
        if isinstance(vector, DeviceVector):
            length = len(vector) * vector.dtype.itemsize
            vector.write(np.frombuffer(self._next(length), vector.dtype))
            return
        for view in _views(vector):
            view[:] = np.frombuffer(self._next(len(view)), np.uint8)

    def _next(self, length: int) -> bytes:
        deadline = time.monotonic() + self._timeout
        while len(self._come) < length:
            lives = self._sender in self._group.alive()  # if dead, the next gather gets the rest
            if self._way.gather(self._collect).count:
                deadline = time.monotonic() + self._timeout
            elif not lives:
                raise PeerError(
                    f"rank {self._sender} died while it sent the values of the vectors",
                    [self._sender],
                )
            elif time.monotonic() > deadline:
                raise errors.TimeoutError(
                    f"rank {self._sender} did not send the values of the vectors within "
                    f"{self._timeout:g} s",
                    [self._sender],
                )
            else:
                time.sleep(_NAP_SECONDS)
        taken = bytes(self._come[:length])
        del self._come[:length]
        return taken

    def _collect(self, _mine: object, updates: list[Update]) -> None:
        for update in updates:
            if update.rank != self._sender:
                continue  # it is for another rejoining rank
            length, checksum = update.values[:_HEAD_WORDS]
            part = update.values[_HEAD_WORDS:].view(np.uint8)[: max(int(length), 0)].tobytes()
            if len(part) != length or zlib.crc32(part) != checksum:
                raise DamagedError(f"rank {update.rank} sent values that arrived damaged")
            self._come += part
