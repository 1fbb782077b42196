"""Messages from one rank of a process group to another.

A rank sends to another through a link that only these two have. The first message makes the link:
its sender announces it in the store, and both ranks join.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from malt import _errors as errors
from malt._job.joining import form_group
from malt._uninterrupted import uninterrupted
from malt.torch._backend.errors import translated, translation
from malt.torch._backend.limits import deadline_in, time_left
from malt.torch._backend.members import Members
from malt.torch._backend.store_bootstrap import bootstrap_over
from malt.torch._backend.streams import is_plain, on_host, on_stream_of
from malt.torch._backend.typed_link import TypedLink, check_tag
from malt.torch._backend.work import Blocking, Call, Line, start_thread

_Kept = TypeVar("_Kept")

_SLOT_BYTES = 256 << 10
_DEPTH = 8
_LOOK_SECONDS = 0.005  # how often a waiting receiver looks for further tensors to receive
_NAP_SECONDS = 0.0005  # between two looks at all senders
_LEAST_SECONDS = 1.0  # to make a link, if the other rank comes at the end of the time limit


class _AnewError(Exception):
    """The other rank has begun another attempt to make the link, or has given up its attempt."""


class _End:
    """One end of the link from `source` to `target`; made when it is first used.

    A call may time out before the other rank comes to make the link. So each rank numbers its
    attempts, and the two meet under keys that have both numbers: what a rank left in the store in
    an attempt that it has given up is never taken for that of a later one.
    """

    def __init__(self, members: Members, store: dist.Store, source: int, target: int) -> None:
        self._members = members
        self._key = f"link/{source}/{target}"
        self._store = store
        self._pair = source, target
        self._place = self._pair.index(members.rank)
        self._attempts = 0
        self._link: TypedLink | None = None
        self.names = members.names[source], members.names[target]

    @property
    def is_made(self) -> bool:
        return self._link is not None

    def link(self, deadline: float) -> TypedLink:
        """Return the link, which both ranks make together at their first message.

        Raises:
            TimeoutError: the other rank has not come by the time.monotonic() `deadline`.
        """
        if self._link is None:
            self._attempts += 1
            self._announce(self._attempts)
            try:
                self._link = self._make(deadline)
            except BaseException:
                self._announce(0)
                raise
        return self._link

    def is_wanted(self) -> bool:
        """Whether the other rank uses the link, or waits to do so."""
        return self.is_made or self._attempt_of_other() != 0

    def _make(self, deadline: float) -> TypedLink:
        while (left := time_left(deadline)) > 0:
            other = self._attempt_of_other()
            # If one rank gave up when the other has just made it, there would be half a link.
            if other != 0:
                left = max(left, _LEAST_SECONDS)
            with contextlib.suppress(_AnewError):
                return self._meet(other, left)
        raise errors.TimeoutError("the other rank did not make the link", [1 - self._place])

    def _meet(self, other: int, seconds: float) -> TypedLink:
        """Make the link with the other rank, which is in its attempt of this number."""

        def find_dead() -> set[int]:
            if self._attempt_of_other() != other:
                raise _AnewError
            dead = self._members.dead()
            return {place for place, rank in enumerate(self._pair) if rank in dead}

        deadline = deadline_in(seconds)
        numbers = (self._attempts, other) if self._place == 0 else (other, self._attempts)
        prefix = "{}/{}/{}".format(self._key, *numbers)
        store = dist.PrefixStore(prefix, self._store)
        group = form_group(bootstrap_over(store, self._place, 2, find_dead), seconds)
        return TypedLink(group, self._key, _SLOT_BYTES, _DEPTH, time_left(deadline))

    def _announce(self, attempt: int) -> None:
        self._store.set(f"{self._key}/{self._place}", str(attempt).encode())

    def _attempt_of_other(self) -> int:
        """Return the number of the other rank's attempt; 0: it is in none."""
        key = f"{self._key}/{1 - self._place}"
        return int(self._store.get(key)) if self._store.check([key]) else 0

    def close(self) -> None:
        if self._link is not None:
            self._link.shut()


class Sender:
    """Sends messages to one rank, in their order."""

    def __init__(self, end: _End, timeout: float) -> None:
        self._end = end
        self._timeout = timeout
        self._line = Line("malt send")
        self._blocking = Blocking("send")

    def send(self, tensor: torch.Tensor, tag: int, is_blocking: bool) -> Call:
        """Send a tensor: at once if there is room for it, else in a thread."""
        self._blocking.settle()
        given = on_host(tensor.detach()).contiguous()
        deadline = deadline_in(self._timeout)
        call = Call.pending([tensor])
        if is_blocking:
            self._blocking.add(call)

        def step() -> None:
            with translated("send", self._end.names):
                link = self._end.link(deadline)
                if call.begin():
                    link.send(given, tag, deadline)

        if self._end.is_made and self._line.is_idle:
            with translated("send", self._end.names):
                link = self._end.link(deadline)
                if link.try_send(given, tag, call.begun):
                    call.end()
                    return call
        self._line.put(step, call)
        return call

    def close(self) -> None:
        self._line.close()
        self._end.close()


class _Waiting(NamedTuple):
    """A tensor that waits for its message."""

    tensor: torch.Tensor
    tag: int
    call: Call
    deadline: float


class Receiver:
    """Receives messages from one rank, into the tensors that wait for them."""

    def __init__(self, end: _End, source: int, timeout: float) -> None:
        self._end = end
        self._source = source
        self._timeout = timeout
        self._waiting: list[_Waiting] = []  # the oldest first
        self._lock = threading.Lock()  # of the list, and of whether a thread serves it
        self._busy = threading.Lock()  # held by the thread that uses the link
        self._direct = 0  # that thread, where it receives in its own call
        self._has_thread = False
        self._blocking = Blocking("recv")

    def is_wanted(self) -> bool:
        return self._end.is_wanted()

    def receive(self, tensor: torch.Tensor, tag: int, is_blocking: bool) -> Call:
        """Receive a tensor: at once if its message is there, else in a thread.

        If the caller waits for the tensor anyway, it looks for a while: that is quicker.
        """
        if self._direct == threading.get_ident():
            raise errors.ConfigError(
                "recv: a signal handler has made this call inside another recv from the same rank: "
                "have it set a flag, and make the call where the program looks at that"
            )
        self._blocking.settle()
        deadline = deadline_in(self._timeout)
        call = Call.pending([tensor])
        if is_blocking:
            self._blocking.add(call)
        with self._lock:
            is_first = not self._has_thread
        if is_first and self._end.is_made:
            with self._busy:  # those that may hold it have earlier deadlines
                self._direct = threading.get_ident()
                try:
                    has_come = self._take(
                        tensor, tag, deadline, call, seconds=_LOOK_SECONDS if is_blocking else 0
                    )
                finally:
                    self._direct = 0
            if has_come:
                call.end(source=self._source)
                return call
        call.stream = on_stream_of(tensor)
        self._wait(tensor, tag, call, deadline)
        return call

    @uninterrupted
    def _wait(self, tensor: torch.Tensor, tag: int, call: Call, deadline: float) -> None:
        call.is_served = True
        with self._lock:
            self._waiting.append(_Waiting(tensor, tag, call, deadline))
            if not self._has_thread:
                self._has_thread = True
                start_thread(self._serve, "malt receive")

    def take(self, tensor: torch.Tensor, tag: int, deadline: float, call: Call) -> bool:
        """In a thread: receive the tensor now if its message has begun to arrive.

        Returns:
            Whether it had. If the call is withdrawn, the message stays for another one.
        """
        if not self._busy.acquire(timeout=time_left(deadline)):
            return False
        try:
            return self._take(tensor, tag, deadline, call, call.begin)
        finally:
            self._busy.release()

    def check_room(self, tag: int) -> None:
        """Check that a message of this tag can come, though others have not been received.

        Raises:
            ConfigError: they fill the memory that there is for them.
        """
        if self._end.is_made and self._busy.acquire(timeout=0):
            try:
                self._end.link(0).check_room(tag)
            finally:
                self._busy.release()

    def _take(
        self,
        tensor: torch.Tensor,
        tag: int,
        deadline: float,
        call: Call,
        begin: Callable[[], bool] = lambda: True,
        seconds: float = 0,
    ) -> bool:
        with translated("recv", self._end.names):
            link = self._end.link(deadline)
            if link.await_tag([tag], min(seconds, time_left(deadline))) < 0:
                return False
            if begin():
                self._read(link, tensor, tag, deadline, call)
        return True

    def _read(
        self, link: TypedLink, tensor: torch.Tensor, tag: int, deadline: float, call: Call
    ) -> None:
        is_direct = tensor.is_contiguous() and is_plain(tensor)
        here = tensor if is_direct else torch.empty(tensor.shape, dtype=tensor.dtype)
        link.receive(here, tag, deadline, call.begun)
        if here is not tensor:
            with torch.no_grad():
                tensor.copy_(here)

    def _serve(self) -> None:
        """Receive until no tensor waits any more. In a thread of its own."""
        while True:
            with self._lock:
                self._waiting = [each for each in self._waiting if not each.call.is_withdrawn]
                if not self._waiting:
                    self._has_thread = False
                    return
                waiting = list(self._waiting)
            try:
                with self._busy, translated("recv", self._end.names):
                    place, failure = self._serve_one(waiting)
            except BaseException as error:  # all that wait hear of it
                self._fail_all(error)
                return
            if place >= 0:
                with self._lock:
                    ended = self._waiting.pop(place)
                ended.call.end(failure, self._source)

    def _serve_one(self, waiting: list[_Waiting]) -> tuple[int, errors.Error | None]:
        """Look for a message; return the place of the tensor that it or an error has ended, or -1.

        The error concerns no other tensor: something is wrong with the message, or time is up.
        """
        deadline = waiting[0].deadline
        try:
            link = self._end.link(deadline)
        except errors.TimeoutError as error:
            return 0, translation("recv", self._end.names, error)
        place = link.await_tag([each.tag for each in waiting], _LOOK_SECONDS)
        if place < 0:
            if time_left(deadline) > 0:
                return -1, None
            place = 0  # the link says why nothing came
        tensor, tag, call, deadline = waiting[place]
        try:
            if call.begin():
                with call.stream or contextlib.nullcontext():
                    self._read(link, tensor, tag, deadline, call)
        except (errors.ConfigError, errors.TimeoutError) as error:
            return place, translation("recv", self._end.names, error)
        return place, None

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            failed, self._waiting = self._waiting, []
            self._has_thread = False
        for each in failed:
            each.call.end(error)

    def close(self) -> None:
        self._end.close()


class Mail:
    """All messages that this rank sends to and receives from the others of a process group."""

    def __init__(self, members: Members, store: dist.Store) -> None:
        self._members = members
        self._store = store
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        self._any: dict[int, Line] = {}  # by tag
        self._blocking = Blocking("recv")  # from any rank
        self._lock = threading.Lock()

    def send(self, tensor: torch.Tensor, to: int, tag: int, is_blocking: bool = False) -> Call:
        """Send a tensor to rank `to` of the group. `is_blocking`: torch waits for it at once."""
        return self._sender(self._check(to, tag)).send(tensor, tag, is_blocking)

    def receive(
        self, tensor: torch.Tensor, source: int, tag: int, is_blocking: bool = False
    ) -> Call:
        """Receive a tensor from rank `source` of the group."""
        return self._receiver(self._check(source, tag)).receive(tensor, tag, is_blocking)

    def receive_any(self, tensor: torch.Tensor, tag: int, is_blocking: bool = False) -> Call:
        """Receive a tensor from whichever rank sends one with this tag first."""
        check_tag(tag)
        self._blocking.settle()
        line = self._kept(self._any, tag, lambda: Line("malt receive from any"))
        deadline = deadline_in(self._members.timeout)
        call = Call.pending([tensor])
        call.stream = on_stream_of(tensor)
        call.is_served = True
        if is_blocking:
            self._blocking.add(call)

        def search() -> int:
            with call.stream or contextlib.nullcontext():
                return self._search(tensor, tag, deadline, call)

        line.put(search, call)
        return call

    def _search(self, tensor: torch.Tensor, tag: int, deadline: float, call: Call) -> int:
        others = [rank for rank in range(self._members.size) if rank != self._members.rank]
        gone: set[int] = set()  # all that these sent has been seen
        while True:
            dead = self._members.dead()
            for rank in sorted({*others} - gone):
                receiver = self._receiver(rank)
                try:
                    if receiver.is_wanted():  # then the link says when no more can come
                        if receiver.take(tensor, tag, deadline, call):
                            return rank
                    elif rank in dead:
                        gone.add(rank)
                except errors.PeerError as error:
                    if self._members.names[rank] not in error.ranks:
                        raise  # this rank was evicted
                    gone.add(rank)
            with translated("recv", self._members.names):
                if gone.issuperset(others):
                    raise errors.PeerError("all other ranks are dead", others)
                if time_left(deadline) == 0:
                    for rank in sorted({*others} - gone):
                        self._receiver(rank).check_room(tag)
                    raise errors.TimeoutError("no message came", others)
            time.sleep(_NAP_SECONDS)

    def _check(self, rank: int, tag: int) -> int:
        check_tag(tag)
        if not 0 <= rank < self._members.size or rank == self._members.rank:
            raise errors.ConfigError(
                f"the rank is {rank}; it is another one of 0 to {self._members.size - 1} in the "
                f"group, of which this one is {self._members.rank}"
            )
        return rank

    def _sender(self, to: int) -> Sender:
        return self._kept(
            self._senders,
            to,
            lambda: Sender(self._end(self._members.rank, to), self._members.timeout),
        )

    def _receiver(self, source: int) -> Receiver:
        return self._kept(
            self._receivers,
            source,
            lambda: Receiver(self._end(source, self._members.rank), source, self._members.timeout),
        )

    def _kept(self, kept: dict[int, _Kept], key: int, make: Callable[[], _Kept]) -> _Kept:
        with self._lock:
            if key not in kept:
                kept[key] = make()
            return kept[key]

    def _end(self, source: int, target: int) -> _End:
        return _End(self._members, self._store, source, target)

    def close(self) -> None:
        """Leave all links."""
        for line in self._any.values():
            line.close()
        for sender in self._senders.values():
            sender.close()
        for receiver in self._receivers.values():
            receiver.close()
