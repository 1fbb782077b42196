"""Ranks forked from a process that is in no job: they read its memory in place, uncopied."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import pickle
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from malt import _errors
from malt._job import joining
from malt._pool import failures, starting
from malt._pool.stopped import Stopped
from malt._rendezvous.driver import Rendezvous
from malt._rendezvous.exit_code import describe_end

_LOOK_SECONDS = 0.1

Result = TypeVar("Result")


def shared_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Make an array of zeros to which forked ranks can write too; its pages are made when used."""
    size, kind = math.prod(shape), np.dtype(dtype)
    memory = mmap.mmap(-1, max(1, size * kind.itemsize))
    return np.frombuffer(memory, kind, size).reshape(shape)


class _Answer(NamedTuple):
    result: Any
    failure: tuple[bytes | None, str, str, str] | None = None


@dataclass
class _Rank:
    rank: int
    process: int
    end: int  # a pidfd: readable once the process has ended, and never another one's
    channel: socket.socket  # to the rank: where the ranks meet; from it: its answer
    answer: bytearray = field(default_factory=bytearray)
    result: Any = None  # in the answer, once it has ended
    has_ended: bool = False


def run(
    ranks: int, work: Callable[[], Result], watch: Callable[[], object] = lambda: None
) -> list[Result]:
    """Run `work` in `ranks` processes, which are the ranks of a job; return its results, by rank.

    The processes share this process's memory as it is now, but writes to it stay their own. The
    results come back pickled.
    While they work, this process calls `watch` ten times a second. If a rank fails, the others are
    ended. So is a rank that stays stopped (SIGSTOP) when another one has ended.

    Raises:
        malt.ConfigError: such a job is impossible, or this process is in a job already.
        malt.PeerError: a rank was killed, or stopped.
        Exception: what a rank raised, with its traceback as the cause; of ValueError or malt.Error
            with their type, else malt.Error.
    """
    company = joining.company()
    if company is not None:
        raise _errors.ConfigError(
            f"ranks={ranks} in a process that is one of {company.size} ranks already: leave "
            "`ranks` out, and each rank gives its own part of the data"
        )
    starting.check_ranks(ranks)
    stopped = Stopped()
    crew: list[_Rank] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_end, crew)
        with _interrupts_held():
            for rank in range(ranks):  # before the rendezvous, whose thread no fork would take over
                crew.append(_fork(rank, work))
        rendezvous = stack.enter_context(Rendezvous(ranks))
        for one in crew:
            with contextlib.suppress(OSError):  # it has ended, which is heard below
                one.channel.sendall(json.dumps(rendezvous.environ(one.rank)).encode() + b"\n")
        _await(crew, watch, stopped)
        return [one.result for one in crew]


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait: in the middle of a fork Python loses it, or raises it in the child too."""
    is_main = threading.current_thread() is threading.main_thread()  # others are not interrupted
    before = signal.getsignal(signal.SIGINT)
    if not is_main or before is None:  # None: not Python's
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _fork(rank: int, work: Callable[[], Any]) -> _Rank:
    ours, theirs = socket.socketpair()

    def become() -> int:
        ours.close()
        answer = _answer(theirs, work)
        theirs.sendall(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
        return 0 if answer.failure is None else 1

    process = starting.fork(become)
    theirs.close()
    ours.setblocking(False)
    return _Rank(rank, process, os.pidfd_open(process), ours)


def _answer(channel: socket.socket, work: Callable[[], Any]) -> _Answer:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends its ranks
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in starting.LAUNCH:
        os.environ.pop(name, None)

    def program() -> Any:
        joining.init()
        return work()

    try:
        with channel.makefile("rb") as told:
            variables = json.loads(told.readline())
        return _Answer(starting.run_program(variables, program))
    except BaseException as error:  # the parent raises it
        return _Answer(None, failures.describe_with_pickle(error))


def _await(crew: list[_Rank], watch: Callable[[], object], stopped: Stopped) -> None:
    """Wait until all have answered; raise the first failure."""
    with selectors.DefaultSelector() as selector:
        for one in crew:
            selector.register(one.channel, selectors.EVENT_READ, one)
            selector.register(one.end, selectors.EVENT_READ, one)
        while selector.get_map():
            for key, _ in selector.select(_LOOK_SECONDS):
                one = key.data
                if key.fd != one.end:
                    if not _receive(one):
                        selector.unregister(one.channel)
                    continue
                while _receive(one):
                    pass
                for source in (one.channel, one.end):
                    with contextlib.suppress(KeyError):
                        selector.unregister(source)
                one.has_ended = True
                one.result = _result_of(one, _reap(one))
            if any(one.has_ended for one in crew):
                _check_stopped(crew, stopped)
            watch()


def _receive(one: _Rank) -> bool:
    """Take in what has come of the answer; return whether more may come."""
    try:
        received = one.channel.recv(1 << 16)
    except (BlockingIOError, ConnectionResetError):  # reset: it died before it had read all
        return False
    one.answer += received
    return bool(received)


def _reap(one: _Rank) -> int:
    """Return the exit code of a process that has ended, or 0 if another waited for it."""
    try:
        _, status = os.waitpid(one.process, 0)
    except ChildProcessError:  # a thread of the user's, or SIGCHLD is ignored
        return 0
    return os.waitstatus_to_exitcode(status)


def _result_of(one: _Rank, code: int) -> Any:
    """Return the result of a rank that has ended, or raise why it failed."""
    try:
        answer = pickle.loads(one.answer)
    except (EOFError, pickle.UnpicklingError):  # in the middle of its answer, or before
        answer = None
    if answer is None or code < 0:
        raise _errors.PeerError(
            f"rank {one.rank} {describe_end(code)}, and the others were ended", [one.rank]
        )
    if answer.failure is not None:
        error = failures.from_pickle(one.rank, answer.failure)
        if isinstance(error, (ValueError, _errors.Error)):
            raise error
        _, kind, text, _ = answer.failure
        raise _errors.Error(f"rank {one.rank}: {kind}: {text}") from error.__cause__
    return answer.result


def _check_stopped(crew: list[_Rank], stopped: Stopped) -> None:
    """Raise PeerError for a rank that has been stopped for longer than the silence."""
    at_work = {one.process: one.rank for one in crew if not one.has_ended}
    for process in stopped.beyond_silence(at_work):
        raise _errors.PeerError(
            f"rank {at_work[process]} (process {process}) has been stopped for "
            f"{stopped.silence:g} s, and was ended; a longer limit: MALT_SILENCE",
            [at_work[process]],
        )


def _end(crew: list[_Rank]) -> None:
    for one in crew:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(one.end, signal.SIGKILL)
    for one in crew:
        one.channel.close()
        os.close(one.end)
        if not one.has_ended:
            _reap(one)
