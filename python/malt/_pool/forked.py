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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from malt import _errors
from malt._job import joining
from malt._pool import failures, starting
from malt._rendezvous.driver import Rendezvous
from malt._rendezvous.exit_code import describe_end

_LOOK_SECONDS = 0.1

Report = Mapping[str, Any]


def shared(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copy an array to memory in which forked ranks can write for this process to read."""
    copy = shared_zeros(array.shape, array.dtype)
    copy[:] = array
    return copy


def shared_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Make an array of zeros to which forked ranks can write too; its pages are made when used."""
    size, kind = math.prod(shape), np.dtype(dtype)
    memory = mmap.mmap(-1, max(1, size * kind.itemsize))
    return np.frombuffer(memory, kind, size).reshape(shape)


class _Answer(NamedTuple):
    report: Report
    failure: tuple[bytes | None, str, str, str] | None = None


@dataclass
class _Forked:
    rank: int
    process: int
    channel: socket.socket  # to the rank: where the ranks meet; from it: its answer
    answer: bytes = b""


def run(
    ranks: int, work: Callable[[], Report], watch: Callable[[], object] = lambda: None
) -> list[Report]:
    """Run `work` in `ranks` processes, which are the ranks of a job; return their reports.

    The processes share this process's memory as it is now, but writes to it stay their own. Results
    come back in memory mapped as shared, or in the report, which must be picklable.
    While they work, this process calls `watch` ten times a second. If a rank fails, the others are
    ended.

    Raises:
        malt.ConfigError: such a job is impossible, or this process is in a job already.
        malt.PeerError: a rank was killed.
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
    crew: list[_Forked] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_end, crew)
        for rank in range(ranks):  # before the rendezvous, whose thread a fork would not take over
            crew.append(_fork(rank, work))
        rendezvous = stack.enter_context(Rendezvous(ranks))
        for one in crew:
            with contextlib.suppress(OSError):  # it has ended, which is heard below
                one.channel.sendall(json.dumps(rendezvous.environ(one.rank)).encode() + b"\n")
        _await(crew, watch)
        return [pickle.loads(one.answer).report for one in crew]


def _fork(rank: int, work: Callable[[], Report]) -> _Forked:
    ours, theirs = socket.socketpair()

    def become() -> int:
        ours.close()
        answer = _answer(theirs, work)
        theirs.sendall(pickle.dumps(answer))
        return 0 if answer.failure is None else 1

    process = starting.fork(become)
    theirs.close()
    return _Forked(rank, process, ours)


def _answer(channel: socket.socket, work: Callable[[], Report]) -> _Answer:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends its ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in starting.LAUNCH:
        os.environ.pop(name, None)

    def program() -> Report:
        joining.init()
        return work()

    try:
        with channel.makefile("rb") as told:
            variables = json.loads(told.readline())
        return _Answer(starting.run_program(variables, program))
    except BaseException as error:  # the parent raises it
        return _Answer({}, failures.describe_with_pickle(error))


def _await(crew: list[_Forked], watch: Callable[[], object]) -> None:
    """Wait until all have answered; raise the first failure."""
    with selectors.DefaultSelector() as selector:
        for one in crew:
            selector.register(one.channel, selectors.EVENT_READ, one)
        while selector.get_map():
            for key, _ in selector.select(_LOOK_SECONDS):
                one = key.data
                received = one.channel.recv(1 << 16)
                one.answer += received
                if not received:
                    selector.unregister(one.channel)
                    _, status = os.waitpid(one.process, 0)
                    one.process = 0
                    _check(one, os.waitstatus_to_exitcode(status))
            watch()


def _check(one: _Forked, code: int) -> None:
    if not one.answer or code < 0:  # perhaps in the middle of its answer
        raise _errors.PeerError(
            f"rank {one.rank} {describe_end(code)}, and the others were ended", [one.rank]
        )
    if (failure := pickle.loads(one.answer).failure) is not None:
        error = failures.from_pickle(one.rank, failure)
        if isinstance(error, (ValueError, _errors.Error)):
            raise error
        _, kind, text, _ = failure
        raise _errors.Error(f"rank {one.rank}: {kind}: {text}") from error.__cause__


def _end(crew: list[_Forked]) -> None:
    for one in crew:
        if one.process != 0:
            os.kill(one.process, signal.SIGKILL)
    for one in crew:
        one.channel.close()
        if one.process != 0:
            os.waitpid(one.process, 0)
            one.process = 0
