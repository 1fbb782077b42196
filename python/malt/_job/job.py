"""The job of which this process is a rank: questions about it, and leaving it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

from malt._arguments import function, seconds, variable
from malt._core_import import Deadline, Group, Turns
from malt._errors import ConfigError
from malt._job import faults, parting, rank_mark
from malt._job.settings import Settings
from malt._mistakes import missed
from malt._mistakes.matching import Matching
from malt._pieces import SentByThread
from malt._recording import recording
from malt._rejoining.forming import MakeGroup
from malt._rejoining.generations import Follower, Generations

log = logging.getLogger("malt")

OnChange = Callable[[int, tuple[int, ...]], object]
# make(rank, size, turns, in_background) makes a group besides the job's own; in one that is in the
# background, waits run no Python.
FurtherMaker = Callable[[int, int, Turns, bool], MakeGroup]

_EXIT_SECONDS = 1.0  # how long the process's end waits for a daemon thread's call to end
_AFTER_LEAVE = (
    "this rank has left the job for good (malt.jobs.leave()): its vectors' arrays and stats() "
    "stay, and no other call of MALT works any more; leave after the last one, or end the process"
)
_AFTER_PROGRAM = (
    "this program of malt.Pool.run() has left its job already; leave after the last call of MALT, "
    "or not at all: the job is left when the program ends"
)


class Companion(Protocol):
    """A thing that has groups of its own besides the job's."""

    def leave(self, *, timeout: float | None = None) -> None:
        """Leave them within the seconds. Idempotent."""


class Job:
    """The job that malt.init() returns: ``with malt.init(): ...`` leaves it at the end."""

    def __init__(
        self,
        rank: int,
        size: int,
        settings: Settings,
        turns: Turns,
        groups: Group | Generations,
        make_further: FurtherMaker,
    ) -> None:
        """`groups` is the job's one group, or its groups one after the other."""
        self.rank = rank
        self.size = size
        self.turns = turns  # shared by all groups of the job
        self._groups = groups
        self.settings = settings
        self.vectors = 0  # how many this rank has made, for their default names
        self.tables = 0  # the same, of malt.ps.Table
        self.sent = SentByThread()
        self.unended: set[str] = set()  # calls that have begun and not ended
        # All ranks' posts in the steps of a call that can be resumed (agreement.py), by the step
        # and this rank's post.
        self.steps: dict[tuple[str, bytes], list[bytes | None]] = {}
        self.is_resumable = False  # a call is in progress that can be resumed
        # The group's step in which an exception has ended such a call, and the call.
        self.unfinished: tuple[str, object] = ("", None)
        self.matching = Matching()
        self.on_change: list[OnChange] = []
        self.told_epoch = -1  # the last one that these have been told
        self.make_further = make_further
        self.companions: weakref.WeakSet[Companion] = weakref.WeakSet()  # they leave with the job
        self._within: tuple[int, Deadline] | None = None  # of a call of several, and its thread

    @property
    def group(self) -> Group:
        """The present group. A rejoining rank that is in none yet joins the others here."""
        if isinstance(self._groups, Group):
            return self._groups
        return self._groups.group or self._groups.start()

    @property
    def generations(self) -> Generations | None:
        """The job's groups one after the other, or None where ranks cannot rejoin."""
        return None if isinstance(self._groups, Group) else self._groups

    def makes_due(self) -> bool:
        """Whether this rank is rejoining and next makes a vector that the others have already."""
        return self.generations is not None and self.generations.makes_due()

    @property
    def restarts(self) -> list[int]:
        """By rank: 0, or how often a rank that has rejoined has been started again."""
        return [0] * self.size if self.generations is None else self.generations.restarts

    def deadline(self, limit: float | None = None) -> Deadline:
        """Begin the time limit of a call that is given so many seconds; None: it is given none."""
        if (given := seconds(limit)) is not None:
            return Deadline(given)
        if self._within is not None and self._within[0] == threading.get_ident():
            return self._within[1]
        return Deadline(self.settings.timeout)

    @contextlib.contextmanager
    def within(self, deadline: Deadline) -> Iterator[None]:
        """Have this thread's calls in the block share a limit, unless they are given their own.

        If ranks rejoin, each has its own limit, since the group may change meanwhile.
        """
        if self.generations is not None:
            yield
            return
        before, self._within = self._within, (threading.get_ident(), deadline)
        try:
            with self.group.within(deadline):
                yield
        finally:
            self._within = before

    def follow(self, follower: Follower) -> None:
        """Tell `follower` of each later change of the group, for as long as it exists."""
        if self.generations is not None:
            self.generations.followers.add(follower)

    @property
    def is_rejoining(self) -> bool:
        """Whether this rank rejoins and has not used a vector yet; the other ranks are ahead."""
        return self.generations is not None and self.generations.is_rejoining

    def leave(self, limit: float | None = None) -> None:
        """Leave, within the limit in seconds and a second more; None: within the job's."""
        companions = list(self.companions)
        limit = self.settings.timeout if limit is None else limit
        limits = parting.shares(limit, len(companions) + 1)
        for companion in companions:
            companion.leave(timeout=next(limits))
        if isinstance(self._groups, Group):
            self._groups.leave(next(limits))
        else:
            self._groups.close(next(limits))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        finalize()


_job: Job | None = None
_forked_from = ""  # the rank that forked this process, for messages
_left_launch = ""  # the launch whose job this process has left for good
_is_in_program = False  # inside in_program()


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
    if _job is None:
        check_has_not_left()
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


def present() -> Job | None:
    """Return the job that this process is in, or None."""
    return _job


def may_join() -> bool:
    """Return whether no rank forked or started this process, and it has not left its job."""
    return not (_forked_from or rank_mark.started_by_rank() or _has_left())


def check_has_not_left() -> None:
    """Check that this process has not left its job for good.

    Raises:
        ConfigError: it has.
    """
    if _has_left():
        raise ConfigError(_AFTER_PROGRAM if _is_in_program else _AFTER_LEAVE)


def enter(job: Job) -> None:
    """Make `job` the one that this process is in."""
    global _job
    _job = job
    rank_mark.put()
    faults.announce(job.rank)


@contextlib.contextmanager
def in_program(job: Job) -> Iterator[None]:
    """Have this process be in `job` instead of its present one, while a program runs.

    The program leaves `job`, at its end if not before. If it fails, it waits for no rank then.
    """
    global _job, _left_launch, _is_in_program
    before, left_before = current(), _left_launch
    _job, _is_in_program = job, True
    try:
        yield
    except BaseException:
        missed.forget()
        _leave(0)
        raise
    finally:
        try:
            _leave()
        finally:
            _job, _left_launch, _is_in_program = before, left_before, False
            rank_mark.put()
            faults.announce(before.rank)


def _forget() -> None:
    """Clear the job in a forked child: the job is its parent's."""
    global _job, _forked_from
    if _job is not None:
        _forked_from = f"rank {_job.rank} (process {os.getppid()})"
        _job = None


os.register_at_fork(after_in_child=_forget)


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
    recording.finish()


def _leave(limit: float | None = None) -> None:
    global _job
    if _job is not None:
        if _job.generations is None:  # with generations, ranks come and go as intended
            missed.tell(_job.group)
        _job.leave(limit)
        _job = None
        faults.restore()
        rank_mark.remove()


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
        _left_launch = rank_mark.launch()


def _has_left() -> bool:
    if _is_in_program:
        return _job is None
    return _left_launch != "" and _left_launch == rank_mark.launch()


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
    return int(variable("MALT_RESTARTS", "0"))


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
    function("callback", callback)
    current().on_change.append(callback)
    return callback


def call_at_new_epoch() -> None:
    """Call the functions given to on_change(). The core calls this."""
    if (job := _job) is None or job.told_epoch == (now := epoch()):
        return
    job.told_epoch = now
    for callback in job.on_change:
        callback(now, alive())


def say_slow(rank: int, text: str) -> None:
    """Log that a wait of this rank takes long. The core calls this."""
    log.warning("malt: rank %d waits: %s", rank, text)


def look_again(is_new: bool) -> bool:
    """Return whether a wait in a superseded group may still succeed. The core calls this."""
    generations = current().generations
    assert generations is not None
    return generations.look_again(is_new)


def regroup() -> None:
    """Move to the next group. The core calls this between two calls."""
    generations = current().generations
    assert generations is not None
    generations.move_to_next()
    current().unended.clear()  # ranks that join know of no such call
    call_at_new_epoch()


def keep_round(name: str) -> None:
    """Keep the values that a gather or an allreduce of vector `name` left, for rejoining ranks.

    The core calls this while the group is being superseded.
    """
    generations = current().generations
    assert generations is not None
    generations.keep_round(name)
