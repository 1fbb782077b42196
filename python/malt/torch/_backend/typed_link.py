"""A link whose messages say the dtype of their values, in the highest bits of their tags."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence

import torch

from malt import _errors as errors
from malt._core_import import Group, Link
from malt.torch._backend.limits import time_left
from malt.torch._backend.tensors import bytes_of

_TAG_BITS = 27  # of the 32 of a link's tag
_MOST_TAG = (1 << _TAG_BITS) - 1
# A dtype's number is its place here, as all ranks have it. All others have the number after these.
# Older versions of PyTorch lack some.
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64"),
    *("bool", "complex64", "complex128", "complex32", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_NUMBERS = {getattr(torch, name, name): number for number, name in enumerate(DTYPES)}
_NAMES = [*(f"torch.{name}" for name in DTYPES), "another dtype"]


def number_of(dtype: torch.dtype) -> int:
    """Return the number of a dtype."""
    return _NUMBERS.get(dtype, len(DTYPES))


def check_tag(tag: int) -> None:
    """Check that a message may have the tag.

    Raises:
        ConfigError: it may not.
    """
    if not 0 <= tag <= _MOST_TAG:
        raise errors.ConfigError(f"the tag is {tag}; it is from 0 to {_MOST_TAG}")


class TypedLink:
    """A link from one rank to another: malt._core.Link, for tensors."""

    def __init__(
        self, group: Group, name: str, slot_bytes: int, depth: int, timeout: float
    ) -> None:
        self._link = Link(group, name, slot_bytes, depth, timeout)

    def send(self, tensor: torch.Tensor, tag: int, deadline: float) -> None:
        """Send a contiguous tensor of the host."""
        tag = _typed(tag, tensor.dtype)
        self._link.send(tensor.data_ptr(), bytes_of(tensor), tag, time_left(deadline))

    def try_send(self, tensor: torch.Tensor, tag: int, ended: list[None]) -> bool:
        """Send a tensor if that needs no wait; `ended` and the result as for Link.try_send()."""
        tag = _typed(tag, tensor.dtype)
        return self._link.try_send(tensor.data_ptr(), bytes_of(tensor), tag, ended)

    def await_tag(self, tags: Sequence[int], timeout: float) -> int:
        """Wait for a message of any dtype; return the place of its tag in `tags`, or -1."""
        wanted = _of_any_dtype(tags[0]) if len(tags) == 1 else sum(map(_of_any_dtype, tags), ())
        place = self._link.await_tag(wanted, timeout)
        return -1 if place < 0 else place // len(_NAMES)

    def receive(self, tensor: torch.Tensor, tag: int, deadline: float, ended: list[None]) -> None:
        """Receive a message that has begun to arrive into a contiguous tensor of the host.

        Raises:
            ConfigError: the message has another length or dtype. It is dropped.
        """
        own = number_of(tensor.dtype)
        dtypes = _of_any_dtype(tag)
        given = self._link.await_tag(dtypes, 0)
        left = time_left(deadline)
        if given in (-1, own):
            with _tags_alone():
                self._link.receive(tensor.data_ptr(), bytes_of(tensor), dtypes[own], left, ended)
            return
        with contextlib.suppress(errors.ConfigError):  # as none has so few bytes
            self._link.receive(0, 0, dtypes[given], left, [])
        raise errors.ConfigError(
            f"the message is of {_NAMES[given]}, and the tensor to receive it of {tensor.dtype}"
        )

    def check_room(self, tag: int) -> None:
        """Check that a message of this tag can come; raises as Link.check_room()."""
        with _tags_alone():
            self._link.check_room(tag)

    def shut(self) -> None:
        self._link.shut()


def _typed(tag: int, dtype: torch.dtype) -> int:
    return tag | number_of(dtype) << _TAG_BITS


@functools.lru_cache(maxsize=1024)
def _of_any_dtype(tag: int) -> tuple[int, ...]:
    return tuple(tag | number << _TAG_BITS for number in range(len(_NAMES)))


@contextlib.contextmanager
def _tags_alone() -> Iterator[None]:
    """Leave the dtypes out of the tags that an error names."""
    try:
        yield
    except errors.ConfigError as error:
        text = re.sub(r"(?<=tag )\d+", lambda tag: str(int(tag[0]) & _MOST_TAG), str(error))
        raise errors.ConfigError(text) from error
