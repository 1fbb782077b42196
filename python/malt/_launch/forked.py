"""Ranks forked from a process that is in no job: they read its memory in place, uncopied."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import secrets
import selectors
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from malt import _errors
from malt._job import joining
from malt._launch import orphans
from malt._launch.descriptors import check_descriptors
from malt._rendezvous import wire
from malt._rendezvous.exit_code import describe_end
from malt._rendezvous.node_session import Node
from malt._rendezvous.server import Server

_START_SECONDS = 30.0
_LOOK_SECONDS = 0.1
# More ranks only take the cores from one another: 1,000 ranks on 2 cores work for more than a
# minute and then fail at a time limit.
_MOST_A_CORE = 64

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


@dataclass
class _Forked:
    rank: int
    process: int
    pipe: int  # the rank writes its report to the other end
    report: bytes = b""


def check_ranks(ranks: int) -> None:
    """Refuse more ranks than can work here, before any long work begins.

    Raises:
        malt.ConfigError: there are too many.
    """
    cores = len(os.sched_getaffinity(0))
    if ranks > cores * _MOST_A_CORE:
        raise _errors.ConfigError(
            f"{ranks} ranks are too many for {cores} cores: at most {cores * _MOST_A_CORE}, "
            f"{_MOST_A_CORE} a core; take fewer (one a core is fastest), or more hosts"
        )
    check_descriptors(ranks, ranks)


def run(
    ranks: int, work: Callable[[], Report], watch: Callable[[], object] = lambda: None
) -> list[Report]:
    """Run `work` in `ranks` processes, which are the ranks of a job; return their reports.

    The processes share this process's memory as it is now, but writes to it stay their own. Results
    come back in memory mapped as shared, or in the report, which JSON must be able to express.
    While they work, this process calls `watch` ten times a second. If a rank fails, the others are
    ended.

    Raises:
        malt.ConfigError: such a job is impossible, or this process is in a job already.
        malt.PeerError: a rank was killed.
        Exception: the exception that a rank raised; ValueError and malt's errors keep their type.
    """
    company = joining.company()
    if company is not None:
        raise _errors.ConfigError(
            f"ranks={ranks} in a process that is one of {company.size} ranks already: leave "
            "`ranks` out, and each rank gives its own part of the data"
        )
    check_ranks(ranks)
    key = secrets.token_bytes(wire.KEY_BYTES)
    server = Server(1, key)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        node = Node(server.address, key, 0, 1)
        stack.callback(node.abort)
        node.start(ranks, _START_SECONDS, server)
        crew: list[_Forked] = []
        stack.callback(_end, crew)
        for rank in range(ranks):
            crew.append(_fork(rank, node.environ(rank, rank), work))
        server.start()
        _await(crew, node, watch)
        return [json.loads(one.report)["report"] for one in crew]


def _fork(rank: int, environ: Mapping[str, str], work: Callable[[], Report]) -> _Forked:
    parent = os.getpid()
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking beside other threads, whose locks the child does not take.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process != 0:
        os.close(write_end)
        return _Forked(rank, process, read_end)
    code = 1
    try:
        orphans.die_with(parent)
        os.close(read_end)
        _become_rank(environ)
        answer = _answer(work)
        with open(write_end, "wb", closefd=False) as pipe:
            pipe.write(json.dumps(answer).encode())
        code = 0 if "report" in answer else 1
    finally:
        os._exit(code)  # skips the parent's buffers and exit handlers, which the parent runs itself


def _become_rank(environ: Mapping[str, str]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends its ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in ("MALT_RESTARTS", "MALT_RECORD_FD"):  # of the job of one that the parent is in
        os.environ.pop(name, None)
    os.environ.update(environ)


def _answer(work: Callable[[], Report]) -> dict[str, Any]:
    try:
        with joining.init():
            return {"report": work()}
    except BaseException as error:  # the parent raises it
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"kinds": kinds, "text": str(error)}


def _await(crew: list[_Forked], node: Node, watch: Callable[[], object]) -> None:
    """Wait until all have reported; raise the first failure."""
    with selectors.DefaultSelector() as selector:
        for one in crew:
            selector.register(one.pipe, selectors.EVENT_READ, one)
        while selector.get_map():
            for key, _ in selector.select(_LOOK_SECONDS):
                one = key.data
                received = os.read(one.pipe, 1 << 16)
                one.report += received
                if not received:
                    selector.unregister(one.pipe)
                    _, status = os.waitpid(one.process, 0)
                    process, one.process = one.process, 0
                    code = os.waitstatus_to_exitcode(status)
                    node.rank_ended(one.rank, process, code)
                    _check(one, code)
            watch()


def _check(one: _Forked, code: int) -> None:
    answer = json.loads(one.report) if one.report else {}
    if "report" in answer:
        return
    if not answer:
        raise _errors.PeerError(
            f"rank {one.rank} {describe_end(code)}, and the others were ended", [one.rank]
        )
    for kind in answer["kinds"]:
        known = ValueError if kind == "ValueError" else getattr(_errors, kind, None)
        if isinstance(known, type):
            raise known(f"rank {one.rank}: {answer['text']}")
    raise _errors.Error(f"rank {one.rank}: {answer['kinds'][0]}: {answer['text']}")


def _end(crew: list[_Forked]) -> None:
    for one in crew:
        if one.process != 0:
            os.kill(one.process, signal.SIGKILL)
    for one in crew:
        os.close(one.pipe)
        if one.process != 0:
            os.waitpid(one.process, 0)
            one.process = 0
