"""The result of a call of the backend, and the thread that makes asynchronous calls."""

from __future__ import annotations

import contextlib
import inspect
import math
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from malt._errors import PeerError, TimeoutError  # noqa: A004
from malt._uninterrupted import uninterrupted
from malt.torch._backend.errors import ConfigError
from malt.torch._backend.streams import OnStream
from malt.torch._backend.versions import IS_OLD, drop, keep

Step = Callable[[], Any]

_LOOK_SECONDS = 1.0
_lock = threading.Lock()  # held for an instant, when a future is made or a call begins or ends
_Work: Any = torch._C._distributed_c10d.Work  # older versions of torch.distributed hide it


# Threads that may be in the core: at the program's end Python would stop them there, and C++ ends a
# process whose thread is stopped so.
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that ends by itself once its process group is closed."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


def join_threads(seconds: float) -> None:
    """Wait for all of them to end, for so long each at most."""
    for thread in list(_threads):
        thread.join(seconds)


class Call(_Work):  # type: ignore[misc] # PyTorch is no dependency
    """A call that is in progress or has ended.

    Args:
        tensors: what result() and the future give.

    Attributes:
        stream: on which the call works with CUDA tensors; wait() lets the present one wait for it.
        on_taken: is called when somebody has waited for the call's end.
        is_blocking: an exception that ends that wait withdraws the call.
        begun: of a message: has an element once it has been sent or received, or is about to be.
        is_served: a thread receives the message, and ends the call.
    """

    stream: OnStream | None = None
    on_taken: Callable[[], None] | None = None
    is_blocking = False
    is_served = False

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self._tensors = tensors
        self._error: BaseException | None = None
        self._has_ended = True
        # Free once the call has ended. Not an Event: an exception of a signal handler that comes in
        # the middle of its Python code leaves it locked for ever, also for the thread that sets it.
        self._end = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self._source = -1
        self.begun: list[None] = []
        self.is_withdrawn = False
        keep(self)

    @classmethod
    def pending(cls, tensors: Any) -> Call:
        """Return a call that end() is to end."""
        call = cls(tensors)
        call._has_ended = False
        call._end.acquire()
        return call

    def begin(self) -> bool:
        """Begin with the message, unless the call is withdrawn; return whether it has begun."""
        with _lock:
            if not self.is_withdrawn:
                self.begun.append(None)
            return not self.is_withdrawn

    def withdraw(self) -> bool:
        """Have the call never begin with its message; return False if it has."""
        with _lock:
            self.is_withdrawn = not self.begun
            return self.is_withdrawn

    def end(self, error: BaseException | None = None, source: int = -1) -> None:
        """Mark the call as ended. The tensors have their values, or `error` says what failed."""
        self._error = error
        self._source = source
        with _lock:
            self._has_ended = True
            future = self._future
        self._end.release()
        if future is not None:
            # The future's callbacks are called here, and work behind this call.
            with contextlib.nullcontext() if self.stream is None else self.stream.active():
                future.set_result(None)

    def is_completed(self) -> bool:
        return self._has_ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._has_ended:
            seconds = None if timeout is None else timeout.total_seconds()
            limit = seconds if seconds is not None and seconds > 0 else None
            try:
                self.await_end(limit)
            except BaseException:
                if self.is_blocking:
                    self.withdraw()
                raise
            if not self._has_ended:
                raise RuntimeError(f"wait(timeout): the call has not ended within {limit} s")
        drop(self)
        if self.on_taken is not None:
            self.on_taken()
        if self._error is not None:
            raise self._error
        if self.stream is not None:
            self.stream.join()
        return True

    def await_end(self, limit: float | None = None) -> None:
        end = math.inf if limit is None else time.monotonic() + limit
        while not self._has_ended and (left := end - time.monotonic()) > 0:
            # Looks again: a thread that an exception ends between these two keeps the lock.
            if self._end.acquire(timeout=min(left, _LOOK_SECONDS)):
                self._end.release()

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[Any]:
        with _lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self.is_completed():
                    self._future.set_result(None)
        # An exception set in a plain future does not reach DDP: raise it in a callback.
        return self._future.then(lambda _: self._outcome())

    def _outcome(self) -> Any:
        drop(self)
        if self._error is not None:
            raise self._error
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    def _source_rank(self) -> int:
        return self._source


def recorded(name: str, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Begin an event for the profiler that is on, and return what ends it.

    As with gloo the event is asynchronous: it has a beginning and the tensors' shapes, but Python
    cannot give such an event its end, which the profiler so takes to be that of the profile.

    Args:
        name: of the event.
        tensors: their shapes are recorded with it.
    """
    held = [torch._C._profiler._RecordFunctionFast(name, tuple(tensors), {})]
    held[0].__enter__()
    if IS_OLD:  # then it must end in this thread
        held.pop().__exit__(None, None, None)

    def stop() -> None:
        # Dropped in another thread than it began in, the event counts as asynchronous.
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()

    return stop


_SEND, _RECV = (inspect.unwrap(each).__code__ for each in (dist.send, dist.recv))
_MOST_FRAMES = 6  # from theirs to the one that asks


def torch_waits() -> bool:
    """Return whether this is a dist.send() or recv() of the main thread, not an isend() or irecv().

    torch makes the same call for both and waits for its end itself, so this looks at who calls.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None or frame.f_code is _SEND or frame.f_code is _RECV:
            break
        frame = frame.f_back
    return frame is not None and (frame.f_code is _SEND or frame.f_code is _RECV)


class Blocking:
    """The last call of a link that torch waits for at once, until it has.

    torch does wait, unless an exception of a signal handler ends the call first. A program that
    then makes the call again would send its message twice, or get the one after it. So the call is
    withdrawn if its message has not begun; if it has, the next call of the link says so, once.
    """

    def __init__(self, name: str) -> None:
        """`name`: "send" or "recv"."""
        self._name = name
        self._done = "sent, or is on its way" if name == "send" else "received"
        self._last: Call | None = None

    def add(self, call: Call) -> None:
        """Take note of a call before it does anything."""
        call.is_blocking = True
        call.on_taken = self._forget
        self._last = call

    def settle(self) -> None:
        """Call it before each call of the link.

        Raises:
            ConfigError: the last one has been ended by an exception, and its message had begun.
        """
        last = self._last
        if last is None or threading.current_thread() is not threading.main_thread():
            return  # signal handlers run in the main thread
        is_undone = last.withdraw()
        if not is_undone and last.is_served:  # its tensor is whole then, or its time is up
            last.await_end()
        is_undone = is_undone or isinstance(last.exception(), (PeerError, TimeoutError))
        error = ConfigError(
            f"{self._name}: this call has done nothing, as an exception has ended the {self._name} "
            f"before it, whose message has been {self._done}; for another message make the call "
            "again"
        )
        self._last = None  # and at once the error, which is raised once
        if not is_undone:
            raise error

    def _forget(self) -> None:
        self._last = None


class Line:
    """Makes calls in their order: at once in the caller's thread, or in a thread of its own.

    Attributes:
        turn: held by the thread whose call is being made.
        maker: that thread, if it is the caller's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # A lock alone: `with` takes it and lets it go in a step that no signal handler can divide.
        self.turn = threading.Lock()
        self.maker = 0
        self._waiting: queue.SimpleQueue[tuple[Step, Call] | None] = queue.SimpleQueue()
        self._unended = 0  # calls that the thread has yet to end
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the thread has no call to make."""
        return self._unended == 0

    def call(
        self, step: Step, tensors: Any, is_async: bool, stream: OnStream | None = None
    ) -> Call:
        """Make the call `step`, in the thread if `is_async` or if it still has earlier calls.

        The thread calls the callbacks of a call's future before it makes the next call. It makes
        the calls of a callback at once, as the callback may wait for them, on all ranks before that
        next call.
        """
        if threading.current_thread() is self._thread:
            call = self._pending(tensors, stream)
            with _lock:
                self._unended += 1
            self._make(step, call)
            return call
        if is_async or self._unended:
            return self.later(step, tensors, stream)
        self.check_outside()
        with self.turn:
            self.maker = threading.get_ident()
            try:
                step()
            finally:
                self.maker = 0
        call = Call(tensors)
        call.stream = stream
        return call

    def check_outside(self) -> None:
        """Check that this thread is not in the middle of a call, which a signal handler may be.

        Raises:
            ConfigError: it is: the call of the handler would wait for itself.
        """
        if self.turn.locked() and self.maker == threading.get_ident():
            raise ConfigError(
                "a signal handler has made a collective call inside another one: have it set a "
                "flag, and make the call where the program looks at that"
            )

    def later(self, step: Step, tensors: Any, stream: OnStream | None = None) -> Call:
        """Make the call `step` in the thread."""
        call = self._pending(tensors, stream)
        self.put(step, call)
        return call

    @staticmethod
    def _pending(tensors: Any, stream: OnStream | None) -> Call:
        call = Call.pending(tensors)
        call.stream = stream
        return call

    @uninterrupted
    def put(self, step: Step, call: Call) -> None:
        """Make the call `step` in the thread, which ends `call`."""
        with _lock:
            self._unended += 1
            if self._thread is None:
                self._thread = start_thread(self._run, self._name)
        self._waiting.put((step, call))

    def close(self) -> None:
        """Let the thread end after the calls that it has."""
        if self._thread is not None:
            self._waiting.put(None)

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            self._make(*entry)
            del entry

    def _make(self, step: Step, call: Call) -> None:
        """Make a call in the thread, and end it."""
        error: BaseException | None = None
        source = -1
        try:
            with self.turn:
                found = step()
            source = found if isinstance(found, int) else -1
        except BaseException as raised:  # the caller's wait() raises it
            error = raised
        try:
            call.end(error, source)
        finally:  # now that the callbacks have made their calls
            with _lock:
                self._unended -= 1
            del error  # its traceback has this frame
