"""`malt.dask.run`: a function on workers, which are the ranks of a job."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import distributed

from malt import _errors as errors
from malt._engines import rank as ranks_here
from malt._errors import ConfigError, PeerError, describe_ranks
from malt._rendezvous.driver import Rendezvous
from malt._rendezvous.own_address import own_address

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # function, args, kwargs

log = logging.getLogger("malt")

_LOOK_SECONDS = 0.5  # between two looks at which workers are there
_STOP_SECONDS = 10.0  # that stopped functions have to end


def run(
    client: Any,
    function: Callable[..., Any],
    *args: Any,
    ranks: int | None = None,
    workers: Sequence[str] | None = None,
    keep_going: bool = False,
    timeout: float = 30.0,
    **kwargs: Any,
) -> list[Any]:
    """Run `function(*args, **kwargs)` on workers as the ranks of a job; return their results.

    In the function malt.init() works as under `malt run`. All ranks begin at once, or none does.
    Jobs on the same workers take turns. Each rank takes one thread of its worker.

    Args:
        client: a distributed.Client, not an asynchronous one.
        function: what each rank runs.
        *args: its arguments.
        ranks: how many ranks; None: one on each of the workers.
        workers: the addresses of the workers to use; None: all that are there. Rank 0 is on the
            first.
        keep_going: whether the others go on when a rank fails. Without it they are stopped.
        timeout: the most seconds to wait until the workers are free of other jobs of MALT, and
            until all ranks have begun.
        **kwargs: the function's arguments by name.

    Returns:
        The results by rank; with `keep_going`, the error in the place of a rank that failed.

    Raises:
        ConfigError: there are fewer workers than ranks; workers share a process, or have different
            versions of MALT.
        TimeoutError: the workers were not free in time; names the ranks.
        PeerError: a rank's worker has died; names the rank.
        Exception: the function's own, from the first rank that failed. No rank runs any more.
    """
    chosen = choose(client, ranks, workers)
    return run_each(client, chosen, [(function, args, kwargs)] * len(chosen), keep_going, timeout)


def run_each(
    client: Any,
    chosen: Sequence[str],
    calls: Sequence[Call],
    keep_going: bool,
    timeout: float,
) -> list[Any]:
    """Run each rank's call on its worker; return the results by rank."""
    host = _host(chosen)
    with _alone_on(client, chosen, timeout), Rendezvous(len(chosen), host=host) as rendezvous:
        futures = [
            client.submit(
                ranks_here.run,
                rendezvous.environ(rank),
                timeout,
                *calls[rank],
                key=f"malt-rank-{rank}-{uuid.uuid4().hex}",
                workers=[worker],
                allow_other_workers=False,
                pure=False,
                retries=0,
            )
            for rank, worker in enumerate(chosen)
        ]
        try:
            return _results(client, chosen, futures, rendezvous, keep_going)
        finally:
            rendezvous.close()  # ranks that still wait there are told
            _stop(client, chosen, rendezvous.address)
            client.cancel(futures, force=True)


def choose(client: Any, ranks: int | None, workers: Sequence[str] | None) -> list[str]:
    """Return the workers to use, each of them a process of its own."""
    present = _present(client)
    if workers is None:
        wanted = sorted(present)
    else:
        wanted = list(dict.fromkeys(workers))
        if missing := [worker for worker in wanted if worker not in present]:
            raise ConfigError(f"workers {', '.join(missing)} are not in the cluster")
    count = len(wanted) if ranks is None else ranks
    if not 1 <= count <= len(wanted):
        raise ConfigError(
            f"{count} ranks cannot run on {len(wanted)} workers, one on each: scale the cluster, "
            "or ask for fewer (ranks=)"
        )
    wanted = wanted[:count]
    seen: dict[tuple[str, int], str] = {}
    for worker, (host, process) in client.run(_describe, workers=wanted).items():
        if (other := seen.setdefault((host, process), worker)) != worker:
            raise ConfigError(
                f"workers {other} and {worker} are threads of one process, and a process can be "
                "one rank only: start the cluster with processes=True"
            )
    if (socket.gethostname(), os.getpid()) in seen:
        raise ConfigError("the workers are threads of this process: start with processes=True")
    return wanted


def _describe() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _present(client: Any) -> set[str]:
    return set(client.scheduler_info(n_workers=-1)["workers"])


def _host(workers: Sequence[str]) -> str:
    """Return the address of this host that all workers can reach."""
    hosts = [worker.rpartition("://")[2].rpartition(":")[0].strip("[]") for worker in workers]
    for host in hosts:
        try:
            if ipaddress.ip_address(host).is_loopback:
                continue
        except ValueError:
            pass  # a name
        return own_address(host)
    return own_address(hosts[0])


@contextmanager
def _alone_on(client: Any, workers: Sequence[str], timeout: float) -> Iterator[None]:
    """Hold these workers against other calls of run().

    All calls take workers in one order, so that no two wait for each other. The scheduler takes
    back what a dead client held, after distributed.scheduler.locks.lease-timeout.
    """
    deadline = time.monotonic() + timeout
    with ExitStack() as held:
        for worker in sorted(workers):
            hold = distributed.Semaphore(
                name=f"malt {worker}", scheduler_rpc=client.scheduler, loop=client.loop
            )
            if not hold.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise errors.TimeoutError(
                    f"the workers were not free of other jobs of MALT within {timeout:g} s; a "
                    "longer limit: timeout=",
                    range(len(workers)),
                )
            held.callback(hold.release)
        yield


def _results(
    client: Any,
    workers: Sequence[str],
    futures: Sequence[Any],
    rendezvous: Rendezvous,
    keep_going: bool,
) -> list[Any]:
    results: dict[int, Any] = {}
    failures: dict[int, BaseException] = {}
    looked = time.monotonic()
    while len(results) + len(failures) < len(futures):
        open_ = {rank for rank in range(len(futures)) if rank not in results | failures}
        _wait_for_one([futures[rank] for rank in open_])
        for rank in open_:
            if futures[rank].status == "finished":
                results[rank] = futures[rank].result()
            elif futures[rank].done():
                failures[rank] = futures[rank].exception() or PeerError("was cancelled", [rank])
        if time.monotonic() - looked > _LOOK_SECONDS:
            present = _present(client)
            looked = time.monotonic()
            for rank in open_ - results.keys() - failures.keys():
                if workers[rank] not in present:
                    failures[rank] = _lost(rank, workers[rank])
        for rank in failures:
            rendezvous.fail(rank)
        if failures and (not keep_going or len(failures) == len(futures)):
            raise next(iter(failures.values()))
    return [results[rank] if rank in results else failures[rank] for rank in range(len(futures))]


def _wait_for_one(futures: Sequence[Any]) -> None:
    with suppress(TimeoutError, distributed.TimeoutError):
        distributed.wait(futures, timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED")


def _lost(rank: int, worker: str) -> PeerError:
    return PeerError(f"{describe_ranks([rank])} died with its worker, {worker}", [rank])


def _stop(client: Any, workers: Sequence[str], job: str) -> None:
    """Stop the ranks that still run, and wait until they have ended."""
    deadline = time.monotonic() + _STOP_SECONDS
    while living := [worker for worker in workers if worker in _present(client)]:
        answers = client.run(ranks_here.stop, job, workers=living, on_error="ignore")
        running = [worker for worker, is_running in answers.items() if is_running is True]
        if not running:
            return
        if time.monotonic() > deadline:
            log.warning(
                "malt.dask: the function has not stopped within %g s on %s, and takes a thread "
                "there until its present call ends; client.restart_workers() ends it at once",
                _STOP_SECONDS,
                ", ".join(running),
            )
            return
        time.sleep(0.1)
