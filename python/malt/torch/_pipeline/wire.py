"""Activations and gradients between this stage and the one before or after it.

1. The first message that is larger than a slot makes the slots larger: its sender says so, and both
   ranks make new ones. Only activations do, and only the first of a call, when all gradients of
   the calls before have been received: so no message is on its way in the slots that are left.
2. A rank that fails tells its neighbours why, for which a slot is kept, and leaves. They take what
   it sent before they miss it, tell their own neighbours the same, and leave too. The replicas of a
   stage are neighbours in this: each has a wire to the next.
3. A rank that waits for one neighbour looks after the other from time to time, if that one still
   owes it messages of this step: a neighbour that waits itself tells nothing.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from malt._core_import import Duplex, Group
from malt._errors import (
    ConfigError,
    DamagedError,
    Error,
    PeerError,
    TimeoutError,  # noqa: A004
)
from malt._messages import array_head
from malt._messages.array_head import Head

# Kinds of messages. GROW: the sender needs slots of `number` bytes. FAILURE: why it left; `number`
# is the place of the error's class in _ERRORS, and the body has `shape` ranks before the text.
ACTIVATION, PREDICTION, GRADIENT, GROW, FAILURE = range(5)
_NAMES = {ACTIVATION: "step()", PREDICTION: "predict()", GRADIENT: "step()"}
_FIRST_SLOT_BYTES = 4096
_MOST_SLOT_BYTES = 1 << 50
_MOST_TEXT = 2048  # bytes of a failure's message
_LOOK_SECONDS = 0.5  # from one look after the other neighbour to the next


class Failure(NamedTuple):
    """Why a rank has left the pipeline.

    Attributes:
        kind: the class of the error that other ranks get; one of _ERRORS.
        text: the message.
        ranks: which are dead, or late.
    """

    kind: type[Error]
    text: str
    ranks: tuple[int, ...] = ()

    def error(self) -> Error:
        if issubclass(self.kind, (PeerError, TimeoutError)):
            return self.kind(self.text, self.ranks)
        return self.kind(self.text)


_ERRORS: tuple[type[Error], ...] = (ConfigError, DamagedError, PeerError, TimeoutError)


class FailureError(Error):
    """A neighbour has told a failure, its own or that of another rank."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Received(NamedTuple):
    tensor: torch.Tensor | None
    head: Head


class Wire:
    """The messages to and from a neighbouring stage. Making it is collective over the two ranks.

    Args:
        group: of these two ranks.
        peer: the other one.
        depth: how many messages can be on their way in each direction.
        timeout: seconds to wait for the other rank.

    Attributes:
        owed: how many messages the other rank has still to send in this step.
    """

    def __init__(self, group: Group, peer: int, depth: int, timeout: float) -> None:
        self.peer = peer
        self.owed = 0
        self._group = group
        self._depth = depth
        self._timeout = timeout
        self._made = 0
        self._slot_bytes = 0
        self._duplex = self._make(_FIRST_SLOT_BYTES)

    def send(
        self, kind: int, tensor: torch.Tensor | None, number: float, *, may_grow: bool
    ) -> None:
        """Send a tensor, or that there is none, and a number.

        Raises:
            ConfigError: the tensor is larger than any before, and that is not allowed here.
            PeerError: the other rank is dead or has left.
            TimeoutError: the other rank received nothing for too long.
        """
        if tensor is None:
            self._put(Head(kind, number=number), 0, 0)
            return
        given = tensor.detach().resolve_conj().resolve_neg().contiguous()
        head = Head(kind, str(given.dtype).removeprefix("torch."), tuple(given.shape), number)
        size = given.numel() * given.element_size()
        need = size + array_head.MOST_BYTES
        if need > self._slot_bytes:
            if not may_grow:
                raise ConfigError(
                    f"a micro-batch has an activation of {size:,} bytes, and the first of the "
                    f"step had at most {self._slot_bytes - array_head.MOST_BYTES:,}: put the "
                    "largest first"
                )
            self._put(Head(GROW, number=need), 0, 0)
            self._duplex = self._make(need)
        self._put(head, given.data_ptr(), size)

    def receive(self, kind: int, look: Callable[[], None]) -> Received:
        """Return the next message, which must be of this kind.

        Args:
            kind: of the message.
            look: called from time to time in a long wait; may raise.

        Raises:
            ConfigError: the other rank makes another call.
            FailureError: the other rank told why it left.
            PeerError: as send().
            TimeoutError: no message came in time.
        """
        while True:
            data, size = self._await(look)
            head = array_head.unpack(data)
            if head.kind == FAILURE:
                raise FailureError(self._failure(head, size))
            if head.kind == GROW:
                head.check_length(size, 0)
                self._duplex.take(0, 0)
                self._duplex = self._make(head.whole(self._slot_bytes + 1, _MOST_SLOT_BYTES))
                continue
            if head.kind != kind:
                raise ConfigError(
                    f"rank {self.peer} calls {_NAMES.get(head.kind, 'another call')}, and this "
                    f"rank {_NAMES[kind]}: all ranks make the same calls in the same order"
                )
            self.owed -= 1
            return Received(self._take(head, size), head)

    def _await(self, look: Callable[[], None]) -> tuple[bytes, int]:
        """Return the head of the next message, and the length of its body."""
        deadline = time.monotonic() + self._timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return self._duplex.peek(min(max(left, 0), _LOOK_SECONDS))
            except TimeoutError:
                if left <= _LOOK_SECONDS:
                    raise TimeoutError(
                        f"malt.torch.Pipeline: no message of rank {self.peer} came within "
                        f"{self._timeout:g} s; a longer limit: malt.init(timeout=...) or "
                        "MALT_TIMEOUT; then make a new pipeline on all ranks",
                        [self.peer],
                    ) from None
            look()

    def look(self) -> None:
        """Look whether the other rank has failed, if it owes messages. Never waits.

        Raises:
            FailureError: the other rank told why it left.
            PeerError: the other rank is dead or has left, and told nothing.
        """
        if self.owed > 0:
            with contextlib.suppress(TimeoutError):
                data, size = self._duplex.peek(0)
                head = array_head.unpack(data)
                if head.kind == FAILURE:
                    raise FailureError(self._failure(head, size))

    def _take(self, head: Head, size: int) -> torch.Tensor | None:
        if not head.dtype and head.kind == GRADIENT:  # the other stages get none
            head.check_length(size, 0)
            self._duplex.take(0, 0)
            return None
        dtype = getattr(torch, head.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise DamagedError(f"rank {self.peer} sent a tensor of dtype {head.dtype!r}")
        head.check_length(size, dtype.itemsize)
        tensor = torch.empty(head.shape, dtype=dtype)
        self._duplex.take(tensor.data_ptr(), size)
        return tensor

    def tell(self, failure: Failure) -> None:
        """Tell the other rank why this one leaves, if that needs no wait."""
        text = failure.text.encode(errors="replace")[:_MOST_TEXT]
        told = struct.pack(f"<{len(failure.ranks)}I", *failure.ranks) + text
        body = torch.frombuffer(bytearray(told), dtype=torch.uint8)
        if body.numel() + array_head.MOST_BYTES <= self._slot_bytes:
            with contextlib.suppress(Error):
                kind = _ERRORS.index(failure.kind)
                head = Head(FAILURE, shape=(len(failure.ranks),), number=kind).pack()
                self._duplex.try_send(head, body.data_ptr(), body.numel())

    def heard(self) -> Failure | None:
        """Return the failure that the other rank has told, without a wait; drop all before it."""
        with contextlib.suppress(Error):
            while True:
                data, size = self._duplex.peek(0)
                head = array_head.unpack(data)
                if head.kind == FAILURE:
                    return self._failure(head, size)
                dropped = torch.empty(size, dtype=torch.uint8)
                self._duplex.take(dropped.data_ptr(), size)
        return None

    def close(self, timeout: float) -> None:
        self._duplex.shut()
        self._group.leave(timeout)

    def _put(self, head: Head, data: int, size: int) -> None:
        self._duplex.send(head.pack(), data, size)

    def _make(self, slot_bytes: int) -> Duplex:
        """Make slots of this size together with the other rank."""
        self._made += 1
        name = f"wire {self._made}"
        made = Duplex(self._group, name, self.peer, slot_bytes, self._depth, spare=1)
        if self._slot_bytes:
            self._duplex.shut()
        self._slot_bytes = slot_bytes
        return made

    def _failure(self, head: Head, size: int) -> Failure:
        body = torch.empty(size, dtype=torch.uint8)
        self._duplex.take(body.data_ptr(), size)
        kind = _ERRORS[head.whole(0, len(_ERRORS) - 1)]
        told = bytes(body.numpy())
        count = head.shape[0] if len(head.shape) == 1 else len(told)
        ranks = struct.unpack_from(f"<{count}I", told) if 4 * count <= len(told) else (-1,)
        if not all(0 <= rank < self._group.size for rank in ranks):
            raise DamagedError(f"rank {self.peer} sent a damaged message of its failure")
        return Failure(kind, told[4 * count :].decode(errors="ignore"), ranks)
