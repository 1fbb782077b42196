"""Runs a function as a rank in the worker process of an engine, and can stop it there."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from malt._core_import import __version__
from malt._engines.stopping import Stop, stop_thread
from malt._errors import ConfigError, Error
from malt._job import job as jobs
from malt._rendezvous import session

Result = TypeVar("Result")


class StoppedError(Error):
    """The function was stopped, because another rank of its job had failed."""


class _Running(NamedTuple):
    job: str  # the address of its rendezvous
    thread: int


_running: _Running | None = None
_lock = threading.Lock()  # guards _running


def _forget() -> None:
    """In a forked child, which runs no function of an engine's."""
    global _running, _lock
    _running, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def run(
    variables: Mapping[str, str],
    start_seconds: float,
    function: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Result:
    """Run `function` as under `malt run`, and leave the job at its end.

    The function begins only once all ranks are there: all begin, or none.

    Args:
        variables: what Rendezvous.environ() returned for this rank.
        start_seconds: how long to wait for all ranks.
        function: what the rank runs.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        malt.ConfigError: this process is in a job already.
        malt.TimeoutError: not all ranks began within `start_seconds`; names them.
        malt.PeerError: a rank can no longer come.
        StoppedError: stop() was called.
    """
    _begin(variables["MALT_RENDEZVOUS"])
    try:
        with _environment(variables):
            local_rank = _await_all(dict(variables), start_seconds)
            os.environ["MALT_LOCAL_RANK"] = str(local_rank)
            try:
                return function(*args, **(kwargs or {}))
            finally:
                _end()
                jobs.finalize()
    except Stop:
        raise StoppedError("stopped, because another rank of the job has failed") from None
    finally:
        _end()
        jobs.finalize()  # again, if it was just then that the function was stopped


def stop(job: str) -> bool:
    """Stop the function of the job whose rendezvous has this address; return whether it runs.

    Any thread may call it. The function ends at its next step in Python, or in a wait of MALT.
    """
    with _lock:
        if _running is None or _running.job != job:
            return False
        stop_thread(_running.thread)
        return True


def _begin(job: str) -> None:
    global _running
    with _lock:
        if _running is not None or jobs.present() is not None:
            raise ConfigError(
                f"process {os.getpid()} is a rank of a job already, and a process can be one rank "
                "only: wait for that job, or give each rank a worker process of its own"
            )
        _running = _Running(job, threading.get_ident())


def _end() -> None:
    global _running
    with _lock:
        _running = None


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    names = [*variables, "MALT_LOCAL_RANK"]
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _await_all(variables: dict[str, str], seconds: float) -> int:
    """Wait until all ranks are there; return this rank's number on its host."""
    client = session.Client.from_environ(variables, seconds)
    try:
        told = client.allgather(f"{__version__} {socket.gethostname()}".encode(), seconds)
    except BaseException:
        client.abort()
        raise
    client.close()
    versions, hosts = zip(*(each.decode().split(" ", 1) for each in told), strict=True)
    if (others := {version: rank for rank, version in enumerate(versions)}).keys() != {__version__}:
        which = ", ".join(f"{version} (rank {rank})" for version, rank in others.items())
        raise ConfigError(f"the ranks have different versions of MALT: {which}; install the same")
    return hosts[: client.rank].count(hosts[client.rank])
