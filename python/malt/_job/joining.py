"""Joining the job: malt.init()."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from malt._arguments import variable
from malt._bootstrap import launchers
from malt._bootstrap.bootstrap import Bootstrap
from malt._bootstrap.find_bootstrap import adopt, find
from malt._core_import import Deadline, Group, Recorder, Turns, set_callbacks
from malt._errors import (
    ConfigError,
    TimeoutError,  # noqa: A004
    describe_ranks,
)
from malt._job import job as jobs
from malt._job import rank_mark
from malt._job.job import Job
from malt._job.settings import Settings, start_log
from malt._mistakes import assigning, missed
from malt._recording.recording import collect, recorder_of
from malt._rejoining.forming import AllGather, MakeGroup
from malt._rejoining.generations import Generations
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
    bootstrap: Bootstrap | Mapping[str, str] | None = None,
) -> Job:
    """Join the job this process was started in; alone, be a job of one rank. Collective.

    The launcher is recognised by its variables: `malt run`, mpirun, srun, torchrun and others that
    set torch's. MALT_BOOTSTRAP chooses one of them ("malt", "mpi", "slurm", "torch"), or "none": a
    job of one rank. `malt info` says which one is found.

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
        bootstrap: how the ranks of the job find one another, instead of by a launcher: a Bootstrap
            of the program's own, or the variables that Rendezvous.environ(rank) returned. The
            process must not be in a job already.

    Raises:
        TimeoutError: the ranks that the error names did not join in time.
        ConfigError: a setting is wrong, or the ranks cannot reach one another; the launchers'
            variables contradict one another, or say that there are ranks which cannot be found.
    """
    if comm is not None and bootstrap is not None:
        raise ConfigError("malt.init() takes comm= or bootstrap=, not both")
    asked = {"transport": transport, "timeout": timeout, "silence": silence, "tie": tie}
    settings = Settings.read(transport, timeout, silence, tie)
    with _starting:
        if (job := jobs.present()) is not None:
            if bootstrap is not None:
                raise ConfigError(
                    "malt.init(bootstrap=...): this process is in a job already, as rank "
                    f"{job.rank} of {job.size}; call malt.finalize() first"
                )
            _check_same(job, {name: value for name, value in asked.items() if value is not None})
            return job
        return _join(settings, comm, bootstrap)


def _check_same(job: Job, given: dict[str, Any]) -> None:
    """Check that the job that this process is in already has the given settings."""
    if any(getattr(job.settings, name) != value for name, value in given.items()):
        call = ", ".join(f"{name}={value!r}" for name, value in given.items())
        has = ", ".join(f"{name}={getattr(job.settings, name)!r}" for name in given)
        raise ConfigError(
            f"malt.init({call}): this process is in a job already, with {has}; call "
            "malt.finalize() first"
        )


def _join(
    settings: Settings, comm: Any | None, bootstrap: Bootstrap | Mapping[str, str] | None
) -> Job:
    rank_mark.check()
    jobs.check_has_not_left()
    start_log()
    _set_callbacks()
    if variable("MALT_LOCAL_RANK", "0") == "0":  # one rank on each host
        tls.warn_of_exposed_key()
    if comm is None and bootstrap is None and _may_rejoin():
        job = _join_generations(settings)
    else:
        job = _join_group(settings, comm, bootstrap)
    jobs.enter(job)
    return job


def _set_callbacks() -> None:
    set_callbacks(
        new_epoch=jobs.call_at_new_epoch,
        slow=jobs.say_slow,
        look_again=jobs.look_again,
        regroup=jobs.regroup,
        keep_round=jobs.keep_round,
        note_unsent=missed.note_unsent,
        note_nan=missed.note_nan,
        write=assigning.write,
        note_left=missed.note_left,
        note_left_allreduce=missed.note_left_allreduce,
        do_nothing=_do_nothing,
    )


def form_group(bootstrap: Bootstrap, timeout: float) -> Group:
    """Form a group that is no job of this process: of the processes of `bootstrap`. Collective.

    Its calls take their turns by themselves, whatever other groups this process is in.

    Args:
        bootstrap: finds the other processes; it is closed.
        timeout: seconds that this may take, and a wait of the group that is given no limit.
    """
    deadline = Deadline(timeout)
    start_log()
    _set_callbacks()
    settings = Settings.read(None, timeout, None, None)
    with bootstrap as found:
        make_group = _group_maker(
            settings, Turns(), None, found.rank, found.size, found.secret, found.meeting_point
        )
        return make_group(list(range(found.size)), partial(_allgather, found), deadline)


def _do_nothing() -> None:
    """Let Python raise what another thread has sent to this one; the core calls this in waits."""


def _may_rejoin() -> bool:
    """Return whether this process is a rank of `malt run --respawn` or `--elastic`."""
    if not variable("MALT_RESTARTS"):
        return False
    launcher = launchers.choose(os.environ)
    return launcher is not None and launcher.way == "malt"


def _join_group(
    settings: Settings, comm: Any | None, bootstrap: Bootstrap | Mapping[str, str] | None
) -> Job:
    """Join a job whose ranks cannot rejoin, and which therefore has one group."""
    turns, deadline = Turns(), Deadline(settings.timeout)
    if bootstrap is None:
        joined = find(comm, settings.timeout)
    else:
        joined = adopt(bootstrap, settings.timeout)
    with joined as found:
        recorder = recorder_of(found.rank, found.size)
        make_group = _group_maker(
            settings, turns, recorder, found.rank, found.size, found.secret, found.meeting_point
        )
        group = make_group(list(range(found.size)), partial(_allgather, found), deadline)
        further = _further_maker(settings, found.secret, found.meeting_point)
    collect(recorder, group)
    _log_routes(group, found.launcher)
    return Job(group.rank, group.size, settings, turns, group, further)


def _allgather(bootstrap: Bootstrap, data: bytes, deadline: Deadline) -> list[bytes]:
    """Check what a bootstrap returns, which may be of the program's own.

    Raises:
        malt.TimeoutError: tells the whole limit.
    """
    try:
        parts = bootstrap.allgather(data, deadline.left)
    except TimeoutError as error:
        if not error.ranks:
            raise
        raise TimeoutError(
            f"{describe_ranks(error.ranks)} did not come within {deadline.limit:g} s; a longer "
            "limit: malt.init(timeout=...) or MALT_TIMEOUT",
            error.ranks,
        ) from error
    if len(parts) != bootstrap.size:
        kind = type(bootstrap).__qualname__
        raise ConfigError(
            f"{kind}.allgather() returned {len(parts)} parts for {bootstrap.size} ranks: it must "
            "return every rank's, by rank"
        )
    return parts


def _join_generations(settings: Settings) -> Job:
    """Join a job whose ranks may rejoin. A rejoining rank joins later, when it needs the others."""
    member = Member.from_environ(os.environ, settings.timeout)
    turns = Turns()
    recorder = recorder_of(member.rank, member.size)
    make_group = _group_maker(
        settings, turns, recorder, member.rank, member.size, member.key, member.host
    )
    generations = Generations(member, jobs.restarts(), make_group, settings.timeout)
    try:
        if not generations.is_rejoining:
            _log_routes(generations.start(), "malt run --respawn")
    except BaseException:
        member.close()
        raise
    further = _further_maker(settings, member.key, member.host)
    return Job(member.rank, member.size, settings, turns, generations, further)


def _group_maker(
    settings: Settings,
    turns: Turns,
    recorder: Recorder | None,
    rank: int,
    size: int,
    secret: bytes,
    meeting_point: str,
    in_background: bool = False,
) -> MakeGroup:
    def make_group(members: list[int], allgather: AllGather, deadline: Deadline) -> Group:
        return Group(
            rank=rank,
            size=size,
            members=members,
            allgather=allgather,
            timeout=settings.timeout,
            deadline=deadline,
            transport=settings.transport,
            silence=settings.silence,
            lowest_wins=settings.tie == "lowest",
            interface=variable("MALT_INTERFACE"),
            toward=meeting_point,
            secret=secret,
            slow_after=settings.slow_after,
            turns=turns,
            recorder=recorder,
            in_background=in_background,
        )

    return make_group


def _further_maker(settings: Settings, secret: bytes, meeting_point: str) -> jobs.FurtherMaker:
    """Return what makes groups besides the job's own, with the job's settings and its key."""

    def maker_for(rank: int, size: int, turns: Turns, in_background: bool) -> MakeGroup:
        return _group_maker(settings, turns, None, rank, size, secret, meeting_point, in_background)

    return maker_for


def company() -> Job | None:
    """Return the job of several ranks that this process is in, or join the one it was started for.

    Returns None if the process is alone, has left its job, or was started or forked by a rank.
    """
    job = jobs.present()
    if job is None and jobs.may_join() and _is_launched():
        job = init()
    return job if job is not None and job.size > 1 else None


def _is_launched() -> bool:
    launcher = launchers.choose(os.environ)
    return launcher is not None and (launcher.way == "malt" or launcher.is_of_several)


def _log_routes(group: Group, launcher: str) -> None:
    routes = {peer: group.route(peer) for peer in range(group.size) if peer != group.rank}
    peers = Counter(route.transport for route in routes.values())
    by = ", ".join(f"{count} by {transport}" for transport, count in sorted(peers.items()))
    jobs.log.info(
        "rank %d of %d, launched by %s; peers: %s", group.rank, group.size, launcher, by or "none"
    )
    for peer, route in routes.items():
        jobs.log.debug("rank %d to rank %d: %s", group.rank, peer, route)
