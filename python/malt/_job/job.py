"""Joining and leaving the job. The one default group of a process lives here."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from malt._core_import import Group, Turns
from malt._errors import ConfigError, SupersededError
from malt._job import faults, missed
from malt._job.bootstrap import Bootstrap, Place, find
from malt._job.rejoin import Follower, Generations
from malt._job.vector_types import AnyVector
from malt._rendezvous import tls
from malt._rendezvous.member_session import Member

log = logging.getLogger("malt")


OnChange = Callable[[int, tuple[int, ...]], object]
Result = TypeVar("Result")
Made = TypeVar("Made", bound=AnyVector)


class Settings(NamedTuple):
    transport: str
    timeout: float
    silence: float
    tie: str
    slow_after: float


class Job:
    """The job that malt.init() returns: ``with malt.init(): ...`` leaves it at the end."""

    def __init__(
        self, rank: int, size: int, settings: Settings, turns: Turns, way: Group | Generations
    ) -> None:
        self.rank = rank
        self.size = size
        self.turns = turns  # shared by all groups of the job
        self._way = way
        self.settings = settings
        self.vectors = 0  # how many this rank has made, for their default names
        self.on_change: list[OnChange] = []

    @property
    def group(self) -> Group:
        """The present group. A rejoining rank that is in none yet joins the others here."""
        if isinstance(self._way, Group):
            return self._way
        return self._way.group or self._way.start()

    @property
    def generations(self) -> Generations | None:
        """The job's groups one after the other, or None where ranks cannot rejoin."""
        return None if isinstance(self._way, Group) else self._way

    @property
    def makes_due(self) -> bool:
        """Whether this rank is rejoining and next makes a vector that the others have already."""
        return self.generations is not None and self.generations.makes_due

    @property
    def lives(self) -> list[int]:
        """By rank: 0, or how often a rank that has rejoined has been started again."""
        return [0] * self.size if self.generations is None else self.generations.lives

    def follow(self, follower: Follower) -> None:
        """Tell `follower` of each later change of the group, for as long as it exists."""
        if self.generations is not None:
            self.generations.followers.add(follower)

    @property
    def is_waited_for(self) -> bool:
        """Whether this rank is rejoining and has not used a vector yet; the others are ahead."""
        return self.generations is not None and self.generations.is_waited_for

    def leave(self) -> None:
        if isinstance(self._way, Group):
            self._way.leave()
        else:
            self._way.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        finalize()


_job: Job | None = None
_starting = threading.RLock()  # held by the thread that joins the job
_forked_from = ""  # the rank that forked this process, for messages
_left_launch = ""  # the launch whose job this process has left for good


def current() -> Job:
    """Return the job that this process is in.

    Raises:
        ConfigError: the process is in no job.
    """
    if _job is None and _forked_from:
        raise ConfigError(
            f"this process was forked from {_forked_from} and takes no part in the job; call MALT "
            "in the rank itself, and hand on what the child needs"
        )
    if _job is None and _has_left():
        raise ConfigError(_AFTER_LEAVE)
    if _job is None:
        raise ConfigError(
            "this process is in no job: call malt.init() first (and not after malt.finalize())"
        )
    return _job


def joined() -> Job | None:
    """Return the job that this process is in, or None.

    Raises:
        ConfigError: the process was forked from a rank.
    """
    return current() if _job is not None or _forked_from else None


def _setting(given: str | None, variable: str, otherwise: str) -> str:
    return given if given is not None else os.environ.get(variable, otherwise)


def _seconds(given: float | None, name: str, otherwise: str, least: float = 0.0) -> float:
    variable = f"MALT_{name.upper()}"
    text = _setting(None if given is None else str(given), variable, otherwise)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0 or seconds < least:
        limit = f"of at least {least:g}" if least else "above 0"
        raise ConfigError(f"{name} (or {variable}) is {text!r}; it is a number of seconds {limit}")
    return seconds


def _tie(given: str | None) -> str:
    tie = _setting(given, "MALT_TIE", "lowest")
    if tie not in ("lowest", "neither"):
        raise ConfigError(f"tie (or MALT_TIE) is {tie!r}; it is 'lowest' or 'neither'")
    return tie


def _start_log() -> None:
    level = os.environ.get("MALT_LOG", "").upper()
    if not level:
        return
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigError(f"MALT_LOG is {level!r}; it is DEBUG, INFO, WARNING or ERROR")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("malt %(levelname)s: %(message)s"))
        log.addHandler(handler)
    log.setLevel(level)


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
    settings = Settings(
        _setting(transport, "MALT_TRANSPORT", "auto"),
        _seconds(timeout, "timeout", "600"),
        _seconds(silence, "silence", "5", least=0.1),
        _tie(tie),
        _seconds(None, "slow_after", "30"),
    )
    with _starting:
        return _joined_with(
            settings,
            comm,
            {"transport": transport, "timeout": timeout, "silence": silence, "tie": tie},
        )


def _joined_with(settings: Settings, comm: Any | None, asked: dict[str, Any]) -> Job:
    global _job
    if _job is not None:
        given = {name: value for name, value in asked.items() if value is not None}
        if any(getattr(_job.settings, name) != value for name, value in given.items()):
            call = ", ".join(f"{name}={value!r}" for name, value in given.items())
            has = ", ".join(f"{name}={getattr(_job.settings, name)!r}" for name in given)
            raise ConfigError(
                f"malt.init({call}): this process is in a job already, with {has}; call "
                "malt.finalize() first"
            )
        return _job
    _check_is_rank()
    if _has_left():
        raise ConfigError(_AFTER_LEAVE)
    _start_log()
    if os.environ.get("MALT_LOCAL_RANK", "0") == "0":  # one rank on each host
        tls.warn_of_exposed_key()
    if comm is None and _RESTARTS in os.environ and "MALT_RENDEZVOUS" in os.environ:
        _job = _join_generations(settings)
    else:
        with find(comm, settings.timeout) as bootstrap:
            members = list(range(bootstrap.size))
            turns = Turns()
            group = _make_group(bootstrap, settings, turns, members, bootstrap.allgather)
        _log_routes(group, bootstrap.launcher)
        _job = Job(group.rank, group.size, settings, turns, group)
    if _launch():
        os.environ[_RANK_PROCESS] = f"{os.getpid()} {_launch()}"
    faults.announce(_job.rank)
    return _job


def company() -> Job | None:
    """Return the job of several ranks that this process is in, or join the one it was started for.

    Returns None if the process is alone, has left its job, or was started or forked by a rank.
    """
    is_rank = not (_forked_from or _started_by_rank() or _has_left())
    if _job is None and is_rank and _is_launched():
        init()
    return _job if _job is not None and _job.size > 1 else None


def _is_launched() -> bool:
    if "MALT_RENDEZVOUS" in os.environ:
        return True
    from malt._job import mpi

    launch = mpi.find_launch(os.environ)
    return launch is not None and launch.size != 1


def _make_group(
    place: Place | Bootstrap,
    settings: Settings,
    turns: Turns,
    members: list[int],
    allgather: Callable[[bytes, float], list[bytes]],
) -> Group:
    return Group(
        rank=place.rank,
        size=place.size,
        members=members,
        allgather=allgather,
        timeout=settings.timeout,
        transport=settings.transport,
        silence=settings.silence,
        lowest_wins=settings.tie == "lowest",
        interface=os.environ.get("MALT_INTERFACE", ""),
        toward=place.meeting_point,
        secret=place.secret,
        slow_after=settings.slow_after,
        turns=turns,
    )


def _join_generations(settings: Settings) -> Job:
    """Join a job whose ranks may rejoin. A rejoining rank joins later, when it needs the others."""
    member = Member.from_environ(os.environ, settings.timeout)
    place = Place(member.rank, member.size, member.key, member.host)
    turns = Turns()
    generations = Generations(
        member,
        restarts(),
        lambda members, allgather: _make_group(place, settings, turns, members, allgather),
        settings.timeout,
    )
    try:
        if not generations.is_back:
            _log_routes(generations.start(), "malt run --respawn")
    except BaseException:
        member.close()
        raise
    return Job(member.rank, member.size, settings, turns, generations)


_EXIT_SECONDS = 1.0  # how long the process's end waits for a daemon thread's call to end
_RESTARTS = "MALT_RESTARTS"  # set by `malt run --respawn` and --elastic


# The processes that a rank starts inherit the variables that its launcher set. This variable tells
# them apart from a rank: it holds the rank's process id and the launch it belongs to. (The ranks of
# another launcher, which a rank may start, are not of this launch.)
_RANK_PROCESS = "MALT_RANK_PROCESS"


def _launch() -> str:
    return os.environ.get("MALT_RENDEZVOUS") or os.environ.get("PMIX_NAMESPACE", "")


def _started_by_rank() -> str:
    """The id of the rank's process that forked or started this one while in the job, or ""."""
    process, _, launch = os.environ.get(_RANK_PROCESS, "").partition(" ")
    return process if launch and launch == _launch() and process != str(os.getpid()) else ""


def _check_is_rank() -> None:
    if process := _started_by_rank():
        raise ConfigError(
            f"malt.init() in process {os.getpid()}, which a rank (process {process}) has forked or "
            "started and which is no rank itself: call it in the rank alone (under `if __name__ == "
            "'__main__':` where multiprocessing imports the script again); for a job of its own, "
            f"start the process without {_RANK_PROCESS}, MALT_RENDEZVOUS and what MPI sets"
        )


def _forget() -> None:
    """Clear the job in a forked child: the job is its parent's."""
    global _job, _forked_from, _starting
    _starting = threading.RLock()
    if _job is not None:
        _forked_from = f"rank {_job.rank} (process {os.getppid()})"
        _job = None


os.register_at_fork(after_in_child=_forget)


def _log_routes(group: Group, launcher: str) -> None:
    routes = {peer: group.route(peer) for peer in range(group.size) if peer != group.rank}
    peers = Counter(route.transport for route in routes.values())
    by = ", ".join(f"{count} by {transport}" for transport, count in sorted(peers.items()))
    size = group.size
    log.info("rank %d of %d, launched by %s; peers: %s", group.rank, size, launcher, by or "none")
    for peer, route in routes.items():
        log.debug("rank %d to rank %d: %s", group.rank, peer, route)


def finalize() -> None:
    """Leave the job; the other ranks go on without this one. Idempotent; also done at exit.

    Raises:
        ConfigError: another thread's call waits for other ranks, or a fold calls this.
    """
    if _job is not None:
        _job.turns.check("malt.finalize")
        _leave()


@atexit.register
def _leave_at_exit() -> None:
    """Leave, whatever a daemon thread still does.

    The wait lets that thread's call end while Python can still raise in it.
    """
    if (job := _job) is not None:
        _leave()
        job.turns.await_end(_EXIT_SECONDS)


def _leave() -> None:
    global _job
    if _job is not None:
        if _job.generations is None:  # with generations, ranks come and go as intended
            missed.tell()
        _job.leave()
        _job = None
        faults.restore()
        os.environ.pop(_RANK_PROCESS, None)


def rank() -> int:
    """Return this process's rank, from 0."""
    return current().rank


def size() -> int:
    """Return the number of ranks of the job, alive or not.

    With `malt run --elastic` this is the most ranks that the job may have.
    """
    return current().size


def leave() -> None:
    """Leave the job for good, as at its end: the updates that this rank has scattered arrive.

    The other ranks go on without this one. The process may go on without MALT: it keeps its
    vectors' arrays and stats(). Every other call, init() included, raises ConfigError.
    """
    global _left_launch
    if _job is not None:
        finalize()
        _left_launch = _launch()


_AFTER_LEAVE = (
    "this rank has left the job for good (malt.leave()): its vectors' arrays and stats() stay, and "
    "no other call of MALT works any more; leave after the last one, or end the process"
)


def _has_left() -> bool:
    return _left_launch != "" and _left_launch == _launch()


def leaving() -> bool:
    """Return whether `malt scale` has asked this rank to leave.

    The loop should then end, at a moment of its choice. A rank that does not ask goes on; the other
    ranks do not wait for it to leave.
    """
    generations = current().generations
    return generations is not None and generations.is_asked_to_leave


def restarts() -> int:
    """Return how often this rank has been started since the job began; 0: it began with the job.

    `malt run --respawn` starts a rank again, and `malt scale` starts one late.
    """
    return int(os.environ.get(_RESTARTS, "0"))


def alive() -> tuple[int, ...]:
    """Return the ranks that are not dead, have not left and were not evicted, sorted.

    A rejoining rank knows only of itself until it makes its first vector.
    """
    job = current()
    if job.generations is not None and job.generations.group is None:
        return (job.rank,)
    return job.group.alive()


def epoch() -> int:
    """Return the number of the membership on which the live ranks agree.

    The epoch grows soon after a rank has died, left, been evicted, or rejoined.
    """
    job = current()
    generations = job.generations
    if generations is None:
        return job.group.epoch
    return generations.epoch + (generations.group.epoch if generations.group is not None else 0)


def on_change(callback: OnChange) -> OnChange:
    """Have `callback(epoch, alive)` called whenever the live ranks have agreed on a new epoch.

    The main thread calls it, between two steps of the program or while MALT waits. An exception
    that it raises ends such a wait, as Ctrl-C would. Several changes at once may cause one call.
    While MALT waits, the callback may ask for information (alive(), epoch(), stats()) or leave();
    other calls of MALT in it raise ConfigError. For these, let the callback set a flag that the
    loop reads.
    """
    current().on_change.append(callback)
    return callback


def call_at_new_epoch() -> None:
    """Call the functions given to on_change(). The extension calls this."""
    if _job is not None:
        for callback in _job.on_change:
            callback(epoch(), alive())


def say_slow(rank: int, text: str) -> None:
    """Log that a wait of this rank takes long. The core calls this."""
    log.warning("malt: rank %d waits: %s", rank, text)


def look_again(is_new: bool) -> bool:
    """Return whether a wait in a superseded group may still succeed. The extension calls this."""
    generations = current().generations
    assert generations is not None
    return generations.look_again(is_new)


def regroup() -> None:
    """Move to the next group. The extension calls this between two calls."""
    generations = current().generations
    assert generations is not None
    generations.go_over()
    call_at_new_epoch()


def keep_round(name: str) -> None:
    """Keep the values that a gather or an allreduce of vector `name` left, for rejoining ranks.

    The extension calls this while the group is being superseded.
    """
    generations = current().generations
    assert generations is not None
    generations.keep_round(name)


def call(name: str, step: Callable[[Group], Result]) -> Result:
    """Run a collective step of the call `name`, again in the next group if it is superseded."""
    with current().turns.hold(name):
        while True:
            try:
                return step(current().group)
            except SupersededError:
                regroup()


def make(
    build: Callable[[Group, bool], Made], description: str, *, has_shared_values: bool = True
) -> Made:
    """Make a vector by `build(group, rejoins)` and count it; a failed one uses up no name."""
    job = current()
    with job.turns.hold("making a vector"):
        generations = job.generations
        if generations is None:
            made = build(job.group, False)
        else:
            kept = generations

            def step(group: Group) -> Made:
                made = build(group, False)
                kept.keep(made, description, has_shared_values)
                return made

            made = generations.rejoin(build, description, has_shared_values) or call(
                "making a vector", step
            )
        job.vectors += 1
        if has_shared_values and job.rank == 0 and job.size > 1:
            missed.note_made(made)
        return made


def barrier(timeout: float | None = None) -> None:
    """Return when every live rank has called it.

    On a rejoining rank it returns at once until the first scatter, gather or allreduce, because the
    other ranks have made this call before.

    Raises:
        TimeoutError: the ranks that the error names did not come within `timeout` seconds (init()'s
            if None).
    """
    if not current().is_waited_for:
        call("malt.barrier", lambda group: group.barrier(timeout))
