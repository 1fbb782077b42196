"""The parts of a process group, and how its calls are made."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import _profiler_enabled
from torch.distributed import ReduceOp

from malt._errors import Error
from malt.torch._backend.errors import translated
from malt.torch._backend.limits import deadline_in
from malt.torch._backend.members import Members
from malt.torch._backend.point_to_point import Mail
from malt.torch._backend.streams import on_stream_of
from malt.torch._backend.versions import IS_OLD, asks_async
from malt.torch._backend.work import Call, Line, join_threads, recorded

_ALL_REDUCE = inspect.unwrap(dist.all_reduce).__code__  # waits for nothing if it gets None


class Core:
    """The parts of a process group: its members, its line of calls, and its messages."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, names: Sequence[int], timeout: float
    ) -> None:
        self.members = Members(store, rank, size, names, timeout, _dead_in_world)
        self.is_world = not names
        self.line = Line("malt collectives")
        self.mail = Mail(self.members, self.members.store)
        self.windows: set[Any] = set()  # those that have a tensor
        self.title = "malt"  # of the events that a profiler records
        self._number = 0
        # The synchronous call of the main thread whose end nobody has waited for.
        self._untaken: str | None = None
        _open.add(self)

    def call(
        self,
        name: str,
        opts: Any,
        tensors: Any,
        function: Callable[..., object],
        *arguments: Any,
        shown: Sequence[torch.Tensor] | None = None,
    ) -> Call:
        """Make the collective call function(members, *arguments, deadline).

        Args:
            name: for errors.
            opts: torch's options of the call, or None.
            tensors: what the call's result() gives.
            function: one of collectives.py.
            arguments: between the members and the deadline, which the limit of the call gives now.
            shown: the tensors whose shapes a profiler records; None: `tensors`.
        """
        members = self.members
        deadline = deadline_in(seconds_of(getattr(opts, "timeout", None), members.timeout))
        is_async = asks_async(opts)
        stream = on_stream_of(tensors, arguments)

        def step() -> None:
            on_stream = stream or contextlib.nullcontext()
            # Outputs may be parameters, which nothing may write to where gradients are recorded.
            with (
                translated(name, members.names),
                members.in_step(name, deadline),
                on_stream,
                torch.no_grad(),
            ):
                function(members, *arguments, deadline)

        def begin() -> Call:
            return self.line.call(step, tensors, is_async, stream)

        if not is_async and threading.current_thread() is threading.main_thread():
            begin = self._to_be_taken(name, begin)
        return self.recorded(name, tensors if shown is None else shown, begin)

    def sum_at_once(self, tensors: Any, opts: Any) -> bool:
        """Make the call all_reduce as call() does, in less time, if that is all that it takes.

        Such a call is synchronous, of the main thread, and sums a plain tensor of the host.
        The caller returns summed(tensors).

        Returns:
            False: it is not such a call, and nothing was done.
        """
        line = self.line
        if (
            asks_async(opts)
            or len(tensors) != 1
            or self._untaken is not None
            or not line.is_idle
            or threading.current_thread() is not threading.main_thread()
            or _profiler_enabled()
        ):
            return False
        op = getattr(opts, "reduceOp", None)
        mean = op != ReduceOp.SUM
        if mean and op != ReduceOp.AVG:
            return False
        members = self.members
        deadline = deadline_in(seconds_of(getattr(opts, "timeout", None), members.timeout))
        self._untaken = "all_reduce"
        try:
            with line.turn:
                line.maker = threading.get_ident()
                try:
                    is_made = members.reduce_at_once(tensors[0], mean, deadline)
                finally:
                    line.maker = 0
        except Error:
            self._untaken = None
            with translated("all_reduce", members.names):
                raise
        if not is_made:
            self._untaken = None
        return is_made

    def summed(self, tensors: Any, caller: CodeType) -> Call | None:
        """Return what `caller` is to wait for after sum_at_once()."""
        if IS_OLD or caller is not _ALL_REDUCE:
            call = Call(tensors)
            call.on_taken = self._take
            return call
        self._untaken = None
        return None

    def _to_be_taken(self, name: str, begin: Callable[[], Call]) -> Callable[[], Call]:
        """Have the call after this one fail if nobody waits for this one's end.

        torch does so at once, unless a signal handler's exception has ended it. If the program then
        repeated the call, it would be the next one for the other ranks.
        """

        def make() -> Call:
            self.line.check_outside()
            if self._untaken is not None:
                self.members.fail(self._untaken)
            self._untaken = name
            try:
                call = begin()
            except Error:  # which in_step() has seen
                self._untaken = None
                raise
            call.on_taken = self._take
            return call

        return make

    def _take(self) -> None:
        self._untaken = None

    def recorded(self, name: str, shown: Sequence[torch.Tensor], begin: Callable[[], Call]) -> Call:
        """Begin a call, as an event if a profiler is on."""
        if not _profiler_enabled():
            return begin()
        stop = recorded(f"{self.title}:{name}", shown)
        call = begin()
        call.get_future().then(lambda _: stop())
        return call

    def next_number(self) -> int:
        """Return another number at each call, the same on all ranks, for names."""
        self._number += 1
        return self._number

    def close(self) -> None:
        """Leave: calls in progress fail, here and on the other ranks. Idempotent."""
        _open.discard(self)
        self.line.close()
        for window in list(self.windows):
            window.close()
        self.mail.close()
        self.members.close()


_open: weakref.WeakSet[Core] = weakref.WeakSet()


def _dead_in_world() -> set[int]:
    """Return the ranks of the whole job that are dead, or have left it."""
    return {rank for core in list(_open) if core.is_world for rank in core.members.dead()}


_EXIT_SECONDS = 1.0  # for each thread


@atexit.register
def _leave_all() -> None:
    """Leave the groups that the program has not destroyed, and let the threads of all end."""
    for core in list(_open):
        core.close()
    join_threads(_EXIT_SECONDS)


def seconds_of(given: timedelta | None, otherwise: float) -> float:
    """Return a time limit in seconds; torch gives one below zero where there is none."""
    if not isinstance(given, timedelta):
        return otherwise
    seconds = given.total_seconds()
    return seconds if seconds > 0 else otherwise
