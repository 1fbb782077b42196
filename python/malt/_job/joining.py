"""Joining the job: malt.init()."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from malt._core_import import Group, Turns, set_callbacks
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job import missed, mpi, rank_mark
from malt._job.find_bootstrap import find
from malt._job.forming import MakeGroup
from malt._job.generations import Generations
from malt._job.job import Job
from malt._job.settings import Settings, start_log
from malt._rendezvous import tls
from malt._rendezvous.member_session import Member

_starting = threading.RLock()  # held by the thread that joins the job


def _renew_lock() -> None:
    """Make the lock anew in a forked child: another thread of the parent may have held it."""
    global _starting
    _starting = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def init(
    transport: str | None = None,
    timeout: float | None = None,
    *,
    silence: float | None = None,
    tie: str | None = None,
    comm: Any | None = None,
) -> Job:
    """Join the job this process was started in; alone, be a job of one rank. Collective.

    Idempotent: if this process is in a job already, the call returns that job.

    Until finalize(), a rank that SIGSEGV, SIGFPE, SIGILL, SIGBUS or SIGABRT ends says so on
    standard error, with a traceback. MALT enables faulthandler for this, unless it is enabled
    already or the program handles one of these signals itself.

    Args:
        transport: "auto" (shared memory between ranks that can map one another's memory; between
            other ranks RDMA where both sides have adapters that reach one another, else TCP), or
            one transport for all: "shm", "verbs" or "tcp". MALT_TRANSPORT if None, else "auto".
        timeout: the most seconds that a wait may take unless its call sets another limit; it limits
            this call too. MALT_TIMEOUT if None, else 600. No call waits for a rank that is dead. A
            wait that has taken MALT_SLOW_AFTER seconds (30) says on standard error for which ranks
            it waits.
        silence: the seconds without a heartbeat, at least 0.1, after which a rank that is stopped
            or cut off is evicted from the job, if more than half of the ranks agree. When an
            evicted rank wakes, its next call raises PeerError; so does a call on ranks that find
            themselves without such a majority. MALT_SILENCE if None, else 5. The same on all ranks.
        tie: which half goes on if the job splits into two halves: "lowest", the half with the
            lowest rank, or "neither". MALT_TIE if None, else "lowest". The same on all ranks.
        comm: an mpi4py communicator whose processes form the job.

    Raises:
        TimeoutError: the ranks that the error names did not join in time.
        ConfigError: a setting is wrong, or the ranks cannot reach one another.
    """
    asked = {"transport": transport, "timeout": timeout, "silence": silence, "tie": tie}
    settings = Settings.read(transport, timeout, silence, tie)
    with _starting:
        if (job := jobs.present()) is not None:
            _check_same(job, {name: value for name, value in asked.items() if value is not None})
            return job
        return _join(settings, comm)


def _check_same(job: Job, given: dict[str, Any]) -> None:
    """Check that the job that this process is in already has the given settings."""
    if any(getattr(job.settings, name) != value for name, value in given.items()):
        call = ", ".join(f"{name}={value!r}" for name, value in given.items())
        has = ", ".join(f"{name}={getattr(job.settings, name)!r}" for name in given)
        raise ConfigError(
            f"malt.init({call}): this process is in a job already, with {has}; call "
            "malt.finalize() first"
        )


def _join(settings: Settings, comm: Any | None) -> Job:
    rank_mark.check()
    jobs.check_has_not_left()
    start_log()
    set_callbacks(
        new_epoch=jobs.call_at_new_epoch,
        slow=jobs.say_slow,
        look_again=jobs.look_again,
        regroup=jobs.regroup,
        keep_round=jobs.keep_round,
        note_unsent=missed.note_unsent,
        note_left=missed.note_left,
        note_left_allreduce=missed.note_left_allreduce,
    )
    if os.environ.get("MALT_LOCAL_RANK", "0") == "0":  # one rank on each host
        tls.warn_of_exposed_key()
    if comm is None and "MALT_RESTARTS" in os.environ and "MALT_RENDEZVOUS" in os.environ:
        job = _join_generations(settings)
    else:
        job = _join_group(settings, comm)
    jobs.enter(job)
    return job


def _join_group(settings: Settings, comm: Any | None) -> Job:
    """Join a job whose ranks cannot rejoin, and which therefore has one group."""
    turns = Turns()
    with find(comm, settings.timeout) as found:
        make_group = _group_maker(
            settings, turns, found.rank, found.size, found.secret, found.meeting_point
        )
        group = make_group(list(range(found.size)), found.allgather)
    _log_routes(group, found.launcher)
    return Job(group.rank, group.size, settings, turns, group)


def _join_generations(settings: Settings) -> Job:
    """Join a job whose ranks may rejoin. A rejoining rank joins later, when it needs the others."""
    member = Member.from_environ(os.environ, settings.timeout)
    turns = Turns()
    make_group = _group_maker(settings, turns, member.rank, member.size, member.key, member.host)
    generations = Generations(member, jobs.restarts(), make_group, settings.timeout)
    try:
        if not generations.is_rejoining:
            _log_routes(generations.start(), "malt run --respawn")
    except BaseException:
        member.close()
        raise
    return Job(member.rank, member.size, settings, turns, generations)


def _group_maker(
    settings: Settings, turns: Turns, rank: int, size: int, secret: bytes, meeting_point: str
) -> MakeGroup:
    def make_group(members: list[int], allgather: Callable[[bytes, float], list[bytes]]) -> Group:
        return Group(
            rank=rank,
            size=size,
            members=members,
            allgather=allgather,
            timeout=settings.timeout,
            transport=settings.transport,
            silence=settings.silence,
            lowest_wins=settings.tie == "lowest",
            interface=os.environ.get("MALT_INTERFACE", ""),
            toward=meeting_point,
            secret=secret,
            slow_after=settings.slow_after,
            turns=turns,
        )

    return make_group


def company() -> Job | None:
    """Return the job of several ranks that this process is in, or join the one it was started for.

    Returns None if the process is alone, has left its job, or was started or forked by a rank.
    """
    job = jobs.present()
    if job is None and jobs.may_join() and _is_launched():
        job = init()
    return job if job is not None and job.size > 1 else None


def _is_launched() -> bool:
    if "MALT_RENDEZVOUS" in os.environ:
        return True
    launch = mpi.find_launch(os.environ)
    return launch is not None and launch.size != 1


def _log_routes(group: Group, launcher: str) -> None:
    routes = {peer: group.route(peer) for peer in range(group.size) if peer != group.rank}
    peers = Counter(route.transport for route in routes.values())
    by = ", ".join(f"{count} by {transport}" for transport, count in sorted(peers.items()))
    jobs.log.info(
        "rank %d of %d, launched by %s; peers: %s", group.rank, group.size, launcher, by or "none"
    )
    for peer, route in routes.items():
        jobs.log.debug("rank %d to rank %d: %s", group.rank, peer, route)
