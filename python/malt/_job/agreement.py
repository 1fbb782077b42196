"""Collective calls that succeed on every rank or fail on every rank."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from malt import _pieces as pieces
from malt._arguments import seconds
from malt._core_import import Deadline, Group
from malt._errors import ConfigError, DamagedError, PeerError, describe_ranks
from malt._job import calls
from malt._job import job as jobs
from malt._pieces import Sent

Result = TypeVar("Result")
_Arguments = ParamSpec("_Arguments")
Report = dict[str, Any]

_MOST_TOLD = 4096  # bytes of an error message sent to the other ranks
_DONE, _DAMAGED, _FAILED = b"+", b"?", b"!"


@contextmanager
def resuming(call: object) -> Iterator[None]:
    """Let a call that compares what ranks gave, and then makes something, be repeated.

    If an exception ends it while it makes that, as a vector, the others are there or will come
    there: the call that repeats it does not compare anew.
    """
    job = jobs.present()
    if job is None or job.is_resumable or job.generations is not None:
        yield
        return
    unfinished, job.unfinished = job.unfinished, ("", None)
    if unfinished[0] == "" or unfinished != (job.group.pending, call):
        job.steps.clear()
    job.is_resumable = True
    try:
        yield
        job.steps.clear()
    except BaseException:
        job.unfinished = job.group.pending, call
        raise
    finally:
        job.is_resumable = False


def resumed(function: Callable[_Arguments, Result]) -> Callable[_Arguments, Result]:
    """Make a function be as in resuming()."""

    @functools.wraps(function)
    def resume(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> Result:
        with resuming(function):
            return function(*arguments, **named)

    return resume


class _Told(Report):
    """A report that another rank has sent."""

    def __missing__(self, name: str) -> Any:
        raise DamagedError(f"a report of another rank lacks {name!r}")


class Together:
    """One collective call, in steps.

    Its waits for other ranks together take at most `timeout` seconds; None: that of malt.init().
    If ranks rejoin, the group may change meanwhile; in the next one the limit begins anew.

    Used in a `with` statement, a call that an exception has ended on this rank cannot be paired
    with the others' next one of its name: repeated, its steps have another name, so that all ranks
    get an error.
    """

    def __init__(self, call: str, timeout: float | None) -> None:
        if jobs.current().is_rejoining:
            raise ConfigError(
                f"{call} on a rejoining rank: the other ranks made this call long ago, and this "
                "rank has their values; call it under `if not malt.jobs.restarts():`, or after the "
                "first scatter, gather or allreduce"
            )
        self.call = call
        self.timeout = seconds(timeout)
        limit = jobs.current().deadline(self.timeout)
        self._limit, self._left = limit.limit, limit.left
        self._wait: Deadline | None = None  # the present one's
        self._last_group: Group | None = None
        self._repeats: bool | None = False  # None: its first step will tell
        self._is_marked = False  # used in a `with` statement
        self._fails_here = False  # and perhaps not on the other ranks

    def __enter__(self) -> Together:
        self._is_marked = True
        if self.call in jobs.current().unended:
            self._repeats = None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_over = kind is None or issubclass(kind, (ConfigError, DamagedError, PeerError))
        if is_over and not self._fails_here:
            jobs.current().unended.discard(self.call)

    @property
    def group(self) -> Group:
        """The present group."""
        return jobs.current().group

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count all the time in the block, and so the steps in it, as one wait for other ranks."""
        if self._wait is not None:
            yield
            return
        self._wait = self.deadline()
        try:
            yield
        finally:
            self._left, self._wait = self._wait.left, None

    def deadline(self) -> Deadline:
        """Return the time limit of the present wait for other ranks, or of one that begins now."""
        return Deadline(self._limit, self._left) if self._wait is None else self._wait

    def _deadline_in(self, group: Group) -> Deadline:
        """Return that limit, which begins anew where the call goes on in the next group."""
        if self._last_group is not None and self._last_group is not group:
            self._wait = Deadline(self._limit)
        self._last_group = group
        return self.deadline()

    def allow(self, more: float) -> None:
        """Let the waits for other ranks, from now on, together take so many seconds more."""
        self._limit += more
        self._left += more

    def step(
        self,
        name: str,
        action: Callable[[], tuple[Result, Report]],
        *,
        sent: Sent | None = None,
        may_differ: bool = False,
        failures: type[Exception] = Exception,
    ) -> tuple[Result, dict[int, Report]]:
        """Run `action` on every rank, and tell the other ranks how it went.

        Args:
            name: of the step.
            action: returns a result, and what the other ranks are told.
            sent: of the step that an exception has ended, if this is that step once more. The post
                that was sent then counts; the others may have ended it.
            may_differ: the call looks itself whether what an exception's call had sent still holds,
                if that is a single piece.
            failures: of the action, that the other ranks are told. Any other exception is one of a
                signal handler, and ends the step on this rank before it has sent anything.

        Returns:
            This rank's result, and by rank the report of each rank that is not dead.

        Raises:
            ConfigError: the action failed on a rank, which the message names; raised on every rank.
            DamagedError: a rank found that the data it read are damaged, and no rank had another
                failure; raised on every rank.
            TimeoutError: the ranks that the error names did not come.
        """
        failure: Exception | None = None
        try:
            result, report = action()
            post = _DONE + json.dumps(report).encode()
            if len(post) > pieces.MOST_GIVEN:
                raise ConfigError(
                    f"what the ranks compare takes {len(post):,} bytes here; at most "
                    f"{pieces.MOST_GIVEN:,} can be sent"
                )
        except DamagedError as error:
            failure, post = error, _DAMAGED + str(error).encode()[:_MOST_TOLD]
        except ConfigError as error:
            failure, post = error, _FAILED + str(error).encode()[:_MOST_TOLD]
        except failures as error:  # the other ranks must learn of every one
            text = f"{type(error).__name__}: {error}"
            failure, post = error, _FAILED + text.encode()[:_MOST_TOLD]
        with self.waiting():
            here = self._exchange(name, post, sent, may_differ)
        for mark, kind in ((_FAILED, ConfigError), (_DAMAGED, DamagedError)):
            failed = [rank for rank, post in here.items() if post[:1] == mark]
            if failed:
                self._fails_here = False
                text = here[failed[0]][1:].decode(errors="ignore")
                others = f" (and also {describe_ranks(failed[1:])})" if failed[1:] else ""
                raise kind(f"{self.call}: rank {failed[0]}: {text}{others}") from failure
        if failure is not None:  # the others have what this rank sent before the call timed out
            self._fails_here = True
            raise ConfigError(f"{self.call}: {failure}") from failure
        return result, {rank: self._report_of(rank, post) for rank, post in here.items()}

    def check_repeated(self, given: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Raise ConfigError if a call that is repeated differs from what it `told` the other ranks.

        Values told before an exception ended it hold for the repeated call. Within a step all ranks
        get the error.
        """
        for name, value in told.items():
            if given[name] != value:
                self._fails_here = True
                raise ConfigError(
                    f"{name} is {given[name]}, and was {value} in the call that timed out or was "
                    "interrupted, which the other ranks may still be in; repeat the call on all "
                    "ranks"
                )

    def _name_of(self, step: str) -> str:
        name = f"{self.call}, step {step}"
        if self._is_marked:
            jobs.current().unended.add(self.call)
        if self._repeats is None:  # the others may have yet to come to this step
            self._repeats = self.group.pending != name
        return name + ", repeated" * self._repeats

    def _report_of(self, rank: int, post: bytes) -> Report:
        try:
            report = json.loads(post[1:])
        except (ValueError, RecursionError):
            report = None
        if post[:1] != _DONE or not isinstance(report, dict):
            raise self._damaged(rank)
        return _Told(report)

    def _damaged(self, rank: int) -> DamagedError:
        return DamagedError(f"{self.call}: what rank {rank} sent is damaged")

    def _exchange(
        self, name: str, post: bytes, sent: Sent | None, may_differ: bool
    ) -> dict[int, bytes]:
        """Return the post of each rank that is not dead; long posts travel in pieces."""
        sent = Sent() if sent is None else sent
        if sent.post is None:
            sent.post = post
        here = sent.here

        def once(begin: int, piece: bytes) -> list[bytes | None]:
            number = begin // pieces.MOST_BYTES
            if number < len(here):
                return here[number]
            what = self._name_of(name) + (f" from byte {begin}" if begin else "")
            job = jobs.current()
            if job.is_resumable and (what, piece) in job.steps:  # see resuming()
                pending = self.group.pending.rpartition(", step ")[0]
                if pending not in ("", self.call):
                    return job.steps[what, piece]

            def step(group: Group) -> list[bytes | None]:
                there = group.exchange(what, piece, self._deadline_in(group), here)
                # The group may count a post of the call that an exception has ended.
                own = there[group.rank] or b""
                is_allowed = may_differ and pieces.is_whole(own) and pieces.is_whole(piece)
                if own != piece and not is_allowed:
                    self._fails_here = True
                    raise ConfigError(
                        f"{self.call}: an exception has ended this call before, and the other "
                        "ranks go by what this rank gave then, not by what it gives now; have all "
                        "ranks repeat the call"
                    )
                return there

            there = calls.call(self.call, step)
            if job.is_resumable:
                job.steps[what, piece] = there
            return there

        return pieces.exchange(sent.post, once, self._damaged)
