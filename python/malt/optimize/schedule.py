"""Model parallelism by schedule: in each round every rank updates parameters of its own.

    class Program:
        def schedule(self, ranks): ...       # the parts of a round, one for each rank; None: done
        def push(self, part): ...            # this rank's: compute the update of a part
        def pull(self, results): ...         # of all ranks: take what was pushed

    rounds = malt.optimize.schedule.run(Program(), length=100, staleness=1)

All ranks hold the same state and change it in pull() alone, so that they draw up the same schedule,
and no rank needs to send it. Only the results of push() are sent.

The three calls: Petuum's STRADS (Lee et al. 2014, On Model Parallelization and Scheduling
Strategies for Distributed Machine Learning).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from malt._alike import check_alike
from malt._core_import import SUM, Update, Vector
from malt._errors import ConfigError, Error, PeerError, TimeoutError, describe_ranks  # noqa: A004
from malt._job import job as jobs
from malt._job import joining
from malt._job.agreement import Report, Together, resumed
from malt._mistakes import missed
from malt._vectors.vectors import vector
from malt.optimize import _schedule_arguments as arguments
from malt.optimize._independent import independent
from malt.optimize._schedule_arguments import Array, Options

__all__ = ["Program", "Result", "independent", "run"]

_CALL = "malt.optimize.schedule.run()"
# The last value of an update: 0 of a round, or why its sender begins no further one.
_ENDS, _ENDED = 1, 2  # it meets the others in the agreement at the end, or has raised its error


class Result(NamedTuple):
    """One rank's result of push() for one part.

    Attributes:
        rank: the rank.
        part: its part of the round, as schedule() returned it.
        values: (length,) what push() returned.
    """

    rank: int
    part: Any
    values: Array


class Program(Protocol):
    """A computation whose parameters are divided anew in each round."""

    def schedule(self, ranks: int, /) -> Sequence[Any] | None:
        """Return the parts of the next round, one for each of so many ranks, or None to end.

        All ranks call it with the same state and must return the same. It may draw random numbers
        from a generator that has the same seed on all ranks. Parts of rounds in flight have not
        been pulled yet: leave their parameters out.
        """

    def push(self, part: Any, /) -> npt.ArrayLike:
        """Return the update of this rank's part: at most `length` numbers, or an empty list.

        It changes nothing that another rank's push() or any schedule() reads.
        """

    def pull(self, results: Sequence[Result], /) -> None:
        """Change the state by the results of a round, one a rank, in the order of ranks."""


@resumed
def run(
    program: Program,
    *,
    length: int,
    rounds: int | None = None,
    staleness: int = 0,
    dtype: npt.DTypeLike = np.float64,
) -> int:
    """Run rounds of a program until its schedule ends, or for so many. Collective.

    Rounds begin and are pulled in the same order on all ranks: the same job ends with the same
    bits. With a staleness of s a rank begins up to s rounds before it waits for the results of the
    first of them, and each push() sees a state that is exactly s rounds old, fewer at the start.
    More hides longer waits; the state that a push() sees is older. A process alone has the same
    rounds in flight.

    Args:
        program: the three calls. Alone, a process is a job of one rank.
        length: how many numbers push() returns at most; shorter results are filled up with zeros.
        rounds: the most rounds; None: until schedule() returns None.
        staleness: rounds in flight beside the present one; at least 0.
        dtype: of the results: float32, float64, int32 or int64.

    Returns:
        How many rounds were pulled.

    Raises:
        ConfigError: an argument is out of range or differs between ranks, schedule() returned
            another number of parts than there are ranks, or push() None, more values than `length`
            or values that `dtype` does not hold, such as fractions for an int64. In a job also:
            schedule(), push() or pull() raised an exception on a rank, which the message names, or
            a rank has ended the call early, by an interrupt or at the time limit of a wait. Raised
            on every rank; one that has ended early raises its own error instead. Ranks may have
            pulled different numbers of rounds, as after a PeerError.
        TimeoutError: the ranks that it names did not push for longer than malt.init()'s timeout, or
            their schedule() ended in another round.
        PeerError: a rank has died, on all ranks that are left. Some of them may have pulled up to
            `staleness` + 1 rounds more than others: put a state back that all have (malt.restore,
            or a broadcast of one rank's), and run the rest on the ranks that are left.
    """
    if joining.company() is None:
        return _Running(program, arguments.check(program, length, rounds, staleness, dtype)).run()
    together = Together(_CALL, None)

    def check() -> tuple[Options, Report]:
        options = arguments.check(program, length, rounds, staleness, dtype)
        return options, options._replace(dtype=str(options.dtype))._asdict()

    options, told = together.step("the arguments", check)
    check_alike(_CALL, told)
    running = _RunningInJob(program, options, told.keys())
    try:
        return running.run()
    finally:
        running.close()


def _raise_together(failure: Exception | None) -> None:
    """Raise ConfigError on every rank, with what some of them failed with."""

    def report() -> tuple[None, Report]:
        if failure is not None:
            raise failure
        return None, {}

    Together(_CALL, None).step("end", report)


class _Begun(NamedTuple):
    """A round in flight."""

    parts: Sequence[Any]
    own: Array


class _Agreed(NamedTuple):
    """The answer of an agreement."""

    ranks: list[int]  # those that take part
    ended: set[int]  # others that have told one of these that they ended the call early
    has_missed: bool  # one of `ranks` lacks results of a round
    has_failed: bool  # the program of one of them has raised an exception


class _Running:
    """A program that this process runs, alone. The same rounds are in flight as in a job."""

    def __init__(self, program: Program, options: Options, rank: int = 0) -> None:
        self._program, self._options, self._rank = program, options, rank
        self._flight: deque[_Begun] = deque()
        self._begun = self._pulled = 0  # rounds
        self._failure: Exception | None = None  # of the program, on this rank

    def run(self) -> int:
        self._run([self._rank])
        return self._pulled

    def _run(self, ranks: list[int]) -> None:
        """Run all rounds, or until a rank has died or failed."""
        length, rounds, staleness, dtype = self._options
        has_ended = False
        while True:
            if not has_ended:
                with self._in_program():
                    has_ended = self._begun == rounds
                    draw = self._program.schedule
                    parts = None if has_ended else arguments.parts(draw, len(ranks))
                has_ended = parts is None
            if parts is not None:
                with self._in_program():
                    values = self._program.push(parts[ranks.index(self._rank)])
                    own = arguments.filled(values, length, dtype)
                self._send(own, 0)
                self._flight.append(_Begun(parts, own))
                self._begun += 1
            elif not self._flight:
                return
            if has_ended or len(self._flight) > staleness:
                results = self._receive(ranks)
                if results is None:
                    # The others see the mark at the latest when they gather this round.
                    self._send(np.zeros(length), _ENDS)
                    return
                with self._in_program():
                    self._program.pull(results)
                self._pulled += 1

    @contextlib.contextmanager
    def _in_program(self) -> Iterator[None]:
        """Remember an exception of the program: the other ranks must learn of it."""
        try:
            yield
        except Exception as error:
            self._failure = error
            raise

    def _receive(self, ranks: list[int]) -> list[Result] | None:
        """Return the results of the oldest round in flight, or None if a rank's are missing."""
        parts, own = self._flight[0]
        values = {self._rank: own, **self._gather()}
        if any(rank not in values for rank in ranks):
            return None
        self._flight.popleft()
        return [Result(rank, part, values[rank]) for rank, part in zip(ranks, parts, strict=True)]

    def _send(self, values: Array, mark: int) -> None:
        """Send the update of the round that begins to the other ranks."""

    def _gather(self) -> dict[int, Array]:
        """Return by rank what other ranks have pushed for the oldest round in flight."""
        return {}


class _RunningInJob(_Running):
    """A program that this rank of a job runs.

    Rounds take turns on `staleness` + 1 vectors. A rank scatters each round's results once, and
    gathers them `staleness` rounds later, before it scatters on the same vector again. So each
    gather waits for this very round of all others.
    """

    def __init__(self, program: Program, options: Options, callers: Collection[int]) -> None:
        """`callers`: the ranks that have made the call."""
        job = jobs.current()
        super().__init__(program, options, job.rank)
        self._size, self._limit = job.size, job.settings.timeout
        self._callers = set(callers)
        self._ended: set[int] = set()  # ranks that have told so
        turns = range(options.staleness + 1)
        self._buffers = [np.zeros(options.length + 1, options.dtype) for _ in turns]
        self._counts = np.zeros(2 * job.size + 2)
        self._made: list[Vector] = []
        try:
            for array in (*self._buffers, self._counts):
                self._made.append(vector(array))
                missed.excuse_departures(self._made[-1])  # the PeerError tells of them
        except BaseException:
            self.close()  # the other ranks do not wait for this one
            raise
        *self._vectors, self._agreement = self._made

    def close(self) -> None:
        for each in self._made:
            each.close()

    def run(self) -> int:
        try:
            end = start = self._agree_at_start()
            if self._callers == set(start.ranks):
                try:
                    self._run(start.ranks)
                except Exception:
                    if self._failure is None:
                        raise
                    self._send(np.zeros(self._options.length), _ENDS)
                end = self._agree_at_end()
        except BaseException:
            # The others cannot tell a rank that closes its vectors from one that has died.
            with contextlib.suppress(Error):  # this rank was evicted, or has left
                self._send(np.zeros(self._options.length), _ENDED)
            raise
        lost = sorted(self._callers - set(end.ranks))
        dead = sorted(set(lost) - end.ended - self._told_since()) if lost else []
        if end.has_failed and dead == lost:
            _raise_together(self._failure)
        if lost and not dead:
            raise ConfigError(
                f"{_CALL}: {_have(lost)} ended this call early, by an interrupt or at the time "
                f"limit of a wait; this rank has pulled {_rounds(self._pulled)}: put back a state "
                "that all ranks have, and run the rest"
            ) from self._failure
        if dead or end.has_missed:
            who, in_flight = _have(dead) if dead else "a rank has", len(self._flight)
            raise PeerError(
                f"{who} died or left the job; this rank has pulled {_rounds(self._pulled)}; "
                f"{_rounds(in_flight)} that had begun {'is' if in_flight == 1 else 'are'} lost: "
                "put back a state that all ranks have, and run the rest",
                dead,
            )
        return self._pulled

    def _agree_at_start(self) -> _Agreed:
        """Agree on which ranks have made the call, and which of them take part.

        A rank that was interrupted before it came here has ended the call, and may not go unseen.
        """
        self._ended = self._callers
        start = self._agree(False, False)
        self._ended = set()
        self._callers = {*start.ranks, *start.ended}
        return start._replace(ended=start.ended.intersection(jobs.alive()))

    def _agree_at_end(self) -> _Agreed:
        try:
            return self._agree(bool(self._flight), self._failure is not None)
        except TimeoutError as error:
            raise TimeoutError(
                f"{_CALL}: this rank ended after {_rounds(self._pulled)}, and "
                f"{_have(error.ranks)} not ended within {self._limit:g} s: let schedule() end in "
                "the same round on all ranks, or give malt.init() a longer timeout",
                error.ranks,
            ) from (self._failure or error)

    def _told_since(self) -> set[int]:
        """Return the ranks that have told that they ended the call early."""
        for each in self._vectors:
            each.gather(lambda _, updates: self._note_ended(updates))
        return self._ended

    def _agree(self, has_missed: bool, has_failed: bool) -> _Agreed:
        """Tell the other ranks how this one fares. All that take part get the same answer."""
        self._counts[:] = 0
        told = self._counts[:-2].reshape(2, self._size)
        told[0, self._rank] = 1
        told[1, list(self._ended)] = 1
        self._counts[-2:] = has_missed, has_failed
        self._add_counts()
        here, ended = (np.flatnonzero(row).tolist() for row in told)
        missed_any, failed_any = (self._counts[-2:] > 0).tolist()
        return _Agreed(here, set(ended) - set(here), missed_any, failed_any)

    def _add_counts(self) -> None:
        late = time.monotonic() + self._limit
        while True:
            try:
                self._agreement.allreduce(SUM, timeout=max(late - time.monotonic(), 0.0))
                return
            except TimeoutError:
                # One rank that gives up ends the wait of all; the others go on without it.
                if time.monotonic() >= late:
                    raise

    def _send(self, values: Array, mark: int) -> None:
        turn = self._begun % len(self._vectors)
        self._buffers[turn][:-1] = values
        self._buffers[turn][-1] = mark
        self._vectors[turn].scatter()

    def _gather(self) -> dict[int, Array]:
        values: dict[int, Array] = {}

        def keep(_: Array, updates: list[Update]) -> None:
            values.update({u.rank: np.array(u.values[:-1]) for u in updates if u.values[-1] == 0})
            self._note_ended(updates)

        try:
            self._vectors[self._pulled % len(self._vectors)].gather(keep, staleness=0)
        except TimeoutError as error:
            raise TimeoutError(
                f"{_CALL}: {_have(error.ranks)} not pushed round {self._pulled + 1} within "
                f"{self._limit:g} s: give malt.init() a longer timeout, or let schedule() end in "
                "the same round on all ranks",
                error.ranks,
            ) from error
        return values

    def _note_ended(self, updates: list[Update]) -> None:
        self._ended |= {update.rank for update in updates if update.values[-1] == _ENDED}


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count != 1)}"


def _have(ranks: Sequence[int]) -> str:
    return f"{describe_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"
