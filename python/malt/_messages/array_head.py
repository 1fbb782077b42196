"""The head of a message that carries an array: what it is, dtype, shape, and a number."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from malt._errors import DamagedError

_FIXED = struct.Struct("<B15sd")  # kind, dtype, number
_MOST_DIMENSIONS = 64  # NumPy's and PyTorch's
_MOST_ARRAY_BYTES = (1 << 63) - 1  # NumPy's and PyTorch's
MOST_BYTES = _FIXED.size + 8 * _MOST_DIMENSIONS


class Head(NamedTuple):
    """The head of a message.

    Attributes:
        kind: what the message is; the layer above says.
        dtype: NumPy's and PyTorch's name of it, such as "float32"; "" if there is no array.
        shape: of the array.
        number: what else the layer above says.
    """

    kind: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    number: float = 0.0

    def pack(self) -> bytes:
        fixed = _FIXED.pack(self.kind, self.dtype.encode(), self.number)
        return fixed + struct.pack(f"<{len(self.shape)}Q", *self.shape)

    def whole(self, least: int, most: int) -> int:
        """Return the number.

        Raises:
            DamagedError: it is not a whole one from `least` to `most`.
        """
        if not (self.number.is_integer() and least <= self.number <= most):
            raise DamagedError(
                f"a message has the number {self.number}; it must be a whole one from {least} to "
                f"{most}"
            )
        return int(self.number)

    def check_length(self, body_bytes: int, item_bytes: int) -> None:
        """Raise DamagedError unless the body is such an array of elements of so many bytes."""
        # An empty array's other dimensions must not overflow either.
        widest = math.prod(filter(None, self.shape)) * item_bytes
        if math.prod(self.shape) * item_bytes != body_bytes or widest > _MOST_ARRAY_BYTES:
            raise DamagedError(
                f"a message says that it carries {self.dtype} {list(self.shape)}, and has "
                f"{body_bytes} bytes"
            )


def unpack(data: bytes) -> Head:
    """Read a head.

    Raises:
        DamagedError: it is none.
    """
    count, rest = divmod(len(data) - _FIXED.size, 8)
    if not 0 <= count <= _MOST_DIMENSIONS or rest:
        raise DamagedError(f"a message has a head of {len(data)} bytes, which is damaged")
    kind, dtype, number = _FIXED.unpack_from(data)
    shape = struct.unpack_from(f"<{count}Q", data, _FIXED.size)
    return Head(kind, dtype.rstrip(b"\0").decode("ascii", "replace"), shape, number)
