"""Memory that one process writes and others read: a memfd that grows.

Its pages are reserved before they are written, so that a lack of memory is an exception and not
SIGBUS. It has no name, so nothing of it is left when the last process that has it ends.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence

from malt._core_import import available_bytes
from malt._errors import ConfigError
from malt._system_limits import make_memory_file, reason

_ALIGNMENT = 64
_CHECKED = 1 << 20  # requests beyond this are compared with the free memory first

_SHORT = 4096  # bytes of an object that a message can hold itself

# An object's place: its offset, and the lengths of its parts, one after the other.
Place = tuple[int, tuple[int, ...]]
# An object in a message: its place, or the parts of a short one.
Parcel = Place | list[bytes]


def aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def bytes_of(parts: Sequence[bytes | memoryview]) -> int:
    """Return how much memory the parts of an object take."""
    return sum(aligned(len(part)) for part in parts)


class Memory:
    """Shared memory over a descriptor, which it owns.

    One process writes, at increasing offsets from `start` on; `reset` begins again. A reader must
    not look at a parcel any more when the writer resets: the processes agree on this by messages.
    """

    def __init__(self, descriptor: int, *, start: int = 0, copies: bool = False) -> None:
        """`copies`: what this process writes stays its own; the others do not see it."""
        self.descriptor = descriptor
        self._start = self._end = start
        self._access = mmap.ACCESS_COPY if copies else mmap.ACCESS_WRITE
        self._map: mmap.mmap | None = None
        self._bytes = memoryview(b"")
        if start:
            self.reserve(0)

    @classmethod
    def make(cls, name: str, *, start: int = 0) -> Memory:
        """Raises malt.ConfigError: the system refuses it."""
        return cls(make_memory_file(f"malt-pool-{name}"), start=start)

    @property
    def view(self) -> memoryview:
        """All bytes that are mapped now."""
        return self._bytes

    def reset(self) -> None:
        """Forget all parcels: the next one is written over the first."""
        self._end = self._start

    def reserve(self, length: int) -> None:
        """Make room for `length` more bytes.

        Raises:
            malt.ConfigError: there is not enough memory.
        """
        needed = self._end + length
        if needed <= len(self._bytes):
            return
        grown = needed - len(self._bytes)
        if grown > _CHECKED and grown > (free := available_bytes()):
            raise _no_room(grown, free)
        try:
            os.posix_fallocate(self.descriptor, 0, -(-needed // mmap.PAGESIZE) * mmap.PAGESIZE)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise ConfigError(f"malt.Pool needs more shared memory: {reason(error)}") from None
            raise _no_room(grown, available_bytes()) from None
        self._look()

    def put(self, parts: Sequence[bytes | memoryview]) -> Parcel:
        """Copy the parts of an object here, unless they are short."""
        if sum(map(len, parts)) <= _SHORT:
            return list(map(bytes, parts))
        return self.place(parts)

    def place(self, parts: Sequence[bytes | memoryview]) -> Place:
        """Copy the parts of an object here."""
        self.reserve(bytes_of(parts))
        offset = at = self._end
        for part in parts:
            self._bytes[at : at + len(part)] = part
            at += aligned(len(part))
        self._end = at
        return offset, tuple(map(len, parts))

    def get(self, parcel: Parcel) -> Sequence[bytes | memoryview]:
        """Return the parts of an object in place, which nobody can write to through them."""
        if isinstance(parcel, list):
            return parcel
        at, lengths = parcel
        parts = []
        for length in lengths:
            if at + length > len(self._bytes):
                self._look()
            parts.append(self._bytes[at : at + length].toreadonly())
            at += aligned(length)
        return parts

    def close(self) -> None:
        """Close the descriptor; the mapping ends with the last view of it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._bytes = memoryview(b"")
        self._map = None

    def _look(self) -> None:
        """Map all that there is by now. Views of the mapping before keep that one alive."""
        self._map = mmap.mmap(self.descriptor, 0, access=self._access)
        self._bytes = memoryview(self._map)


def _no_room(needed: int, free: int) -> ConfigError:
    return ConfigError(
        f"malt.Pool needs {needed / 1e6:,.0f} MB more of shared memory, and {free / 1e6:,.0f} MB "
        "are free: share fewer rows or a smaller dtype, or close what else uses memory"
    )
