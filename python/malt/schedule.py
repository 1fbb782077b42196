"""Model parallelism by schedule: in each round every rank updates parameters of its own.

    class Program:
        def schedule(self, ranks): ...       # the parts of a round, one for each rank; None: done
        def push(self, part): ...            # this rank's: compute the update of a part
        def pull(self, results): ...         # of all ranks: take what was pushed

    rounds = malt.schedule.run(Program(), length=100, staleness=1)

All ranks hold the same state and change it in pull() alone, so that they draw up the same schedule,
and no rank needs to send it. What is sent are the results of push().

The three calls: Petuum's STRADS (Lee et al. 2014, On Model Parallelization and Scheduling
Strategies for Distributed Machine Learning).
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from malt._arguments import whole
from malt._core_import import SUM, Update, Vector
from malt._errors import ConfigError, PeerError
from malt._job import job as jobs
from malt._job import joining
from malt._job.agreement import Report, Together
from malt._job.vectors import vector

__all__ = ["Program", "Result", "independent", "run"]

Array = npt.NDArray[Any]
_MARK = 1  # the last value of an update: 0, or _MARK if its sender has ended early


class Result(NamedTuple):
    """What one rank's push() returned for one part.

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
        """Return the update of this rank's part: at most `length` numbers.

        It changes nothing that another rank's push() or any schedule() reads.
        """

    def pull(self, results: Sequence[Result], /) -> None:
        """Change the state by the results of a round, one a rank, in the order of ranks."""


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
    More hides longer waits; the state that a push() sees is older.

    Args:
        program: the three calls. Alone, a process is a job of one rank.
        length: how many numbers push() returns at most; shorter results are filled up with zeros.
        rounds: the most rounds; None: until schedule() returns None.
        staleness: rounds in flight beside the present one; at least 0.
        dtype: of the results: float32, float64, int32 or int64.

    Returns:
        How many rounds were pulled.

    Raises:
        ConfigError: an argument is out of range, schedule() returned another number of parts than
            there are ranks, or push() more values than `length`. In a job also: schedule(), push()
            or pull() raised an exception on a rank, which the message names. Raised on every rank.
            Ranks may have pulled different numbers of rounds, as after a PeerError.
        TimeoutError: the ranks that it names did not push for longer than malt.init()'s timeout, or
            their schedule() ended in another round.
        PeerError: a rank has died, on all ranks that are left. Some of them may have pulled up to
            `staleness` + 1 rounds more than others: put a state back that all have (malt.restore,
            or a broadcast of one rank's), and run the rest on the ranks that are left.
    """
    whole("length", length, 1)
    whole("staleness", staleness, 0)
    if rounds is not None:
        whole("rounds", rounds, 0)
    if joining.company() is None:
        return _run_alone(program, length, rounds, np.dtype(dtype))
    running = _Running(program, length, staleness, np.dtype(dtype))
    try:
        return running.run(rounds)
    finally:
        running.close()


def _filled(values: npt.ArrayLike, length: int, dtype: np.dtype[Any]) -> Array:
    """Return `length` values, of which the first are those given."""
    given = np.asarray(values, dtype).ravel()
    if len(given) > length:
        raise ConfigError(
            f"push() returned {len(given)} values; length={length} is the most: give run() more"
        )
    filled = np.zeros(length, dtype)
    filled[: len(given)] = given
    return filled


def _parts(program: Program, ranks: int) -> Sequence[Any] | None:
    parts = program.schedule(ranks)
    if parts is not None and len(parts) != ranks:
        raise ConfigError(
            f"schedule() returned {len(parts)} parts for {ranks} ranks: return one for each (an "
            "empty one for a rank that has nothing to do)"
        )
    return parts


def _run_alone(program: Program, length: int, rounds: int | None, dtype: np.dtype[Any]) -> int:
    for done in itertools.count():
        parts = None if done == rounds else _parts(program, 1)
        if parts is None:
            return done
        values = _filled(program.push(parts[0]), length, dtype)
        program.pull([Result(0, parts[0], values)])
    raise AssertionError("unreachable")


def _raise_together(failure: Exception | None) -> None:
    """Raise ConfigError on every rank, with what some of them failed with."""

    def report() -> tuple[None, Report]:
        if failure is not None:
            raise failure
        return None, {}

    Together("malt.schedule.run()", None).step("end", report)


class _Begun(NamedTuple):
    """A round in flight."""

    parts: Sequence[Any]
    own: Array


class _Running:
    """A program that this rank of a job runs.

    Rounds take turns on `staleness` + 1 vectors. A rank scatters each round's results once, and
    gathers them `staleness` rounds later, before it scatters on the same vector again. So each
    gather waits for this very round of all others.
    """

    def __init__(self, program: Program, length: int, staleness: int, dtype: np.dtype[Any]) -> None:
        job = jobs.current()
        self._program, self._length = program, length
        self._rank, self._size = job.rank, job.size
        self._buffers = [np.zeros(length + 1, dtype) for _ in range(staleness + 1)]
        self._vectors = [vector(buffer) for buffer in self._buffers]
        self._counts = np.zeros(job.size + 2)
        self._agreement: Vector = vector(self._counts)
        self._flight: deque[_Begun] = deque()
        self._begun = self._pulled = 0  # rounds
        self._failure: Exception | None = None  # of the program, on this rank

    def close(self) -> None:
        for each in (*self._vectors, self._agreement):
            each.close()

    def run(self, rounds: int | None) -> int:
        ranks, _, _ = self._agree(False, False)
        try:
            self._run(ranks, rounds)
        except Exception:
            if self._failure is None:
                raise
            self._send(self._begun, np.zeros(self._length), _MARK)
        left, missed, failed = self._agree(bool(self._flight), self._failure is not None)
        if failed:
            _raise_together(self._failure)
        lost = sorted(set(ranks) - set(left))
        if lost or missed:
            raise PeerError(
                f"rank {', '.join(map(str, lost))} has died or left the job; round "
                f"{self._pulled} and {len(self._flight)} rounds in flight were not pulled here: "
                "put back a state that all ranks have, and run the rest",
                lost,
            )
        return self._pulled

    def _run(self, ranks: list[int], rounds: int | None) -> None:
        """Run all rounds, or until a rank has died or failed."""
        has_ended = False
        while True:
            if not has_ended:
                with self._in_program():
                    parts = None if self._begun == rounds else _parts(self._program, len(ranks))
                has_ended = parts is None
            if parts is not None:
                with self._in_program():
                    values = self._program.push(parts[ranks.index(self._rank)])
                    own = _filled(values, self._length, self._buffers[0].dtype)
                self._send(self._begun, own, 0)
                self._flight.append(_Begun(parts, own))
                self._begun += 1
            elif not self._flight:
                return
            if has_ended or len(self._flight) == len(self._vectors):
                results = self._receive(self._pulled, ranks)
                if results is None:
                    # The others see the mark at the latest when they gather this round.
                    self._send(self._begun, np.zeros(self._length), _MARK)
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

    def _agree(self, has_missed: bool, has_failed: bool) -> tuple[list[int], bool, bool]:
        """Return the ranks that take part, and whether any of them has missed one or has failed.

        These are the same on all ranks.
        """
        self._counts[:] = 0
        self._counts[self._rank] = 1
        self._counts[-2:] = has_missed, has_failed
        self._agreement.allreduce(SUM)
        *counts, missed, failed = self._counts.tolist()
        return [rank for rank, count in enumerate(counts) if count > 0], missed > 0, failed > 0

    def _send(self, count: int, values: Array, mark: int) -> None:
        turn = count % len(self._vectors)
        self._buffers[turn][:-1] = values
        self._buffers[turn][-1] = mark
        self._vectors[turn].scatter()

    def _receive(self, count: int, ranks: list[int]) -> list[Result] | None:
        """Return the results of the oldest round in flight, or None if a rank's are missing."""
        begun = self._flight[0]
        values = {self._rank: begun.own}
        marks = 0

        def keep(_: Array, updates: list[Update]) -> None:
            nonlocal marks
            for update in updates:
                values[update.rank] = np.array(update.values[:-1])
                marks += int(update.values[-1])

        self._vectors[count % len(self._vectors)].gather(keep, staleness=0)
        if marks > 0 or any(rank not in values for rank in ranks):
            return None
        self._flight.popleft()
        return [
            Result(rank, part, values[rank]) for rank, part in zip(ranks, begun.parts, strict=True)
        ]


def independent(
    priorities: npt.ArrayLike, correlations: npt.ArrayLike, *, bound: float, most: int
) -> Array:
    """Pick parameters that may be updated at the same time, those of highest priority first.

    A parameter is left out if it is correlated above the bound with one that was picked before.
    Updates of the picked ones then hardly disturb one another.

    Args:
        priorities: (candidates,), say the size of each one's last change.
        correlations: (candidates, candidates), of which the sizes count.
        bound: the largest size of a correlation between two that are picked; from 0 to 1.
        most: how many to pick at most.

    Returns:
        The picked candidates' places, in the order in which they were picked.

    Raises:
        ConfigError: an argument is out of range, or the shapes do not fit.
    """
    order = np.asarray(priorities, np.float64)
    sizes = np.abs(np.asarray(correlations, np.float64))
    if order.ndim != 1 or sizes.shape != (len(order), len(order)):
        raise ConfigError(
            f"priorities have the shape {order.shape} and correlations {sizes.shape}; they must be "
            "(candidates,) and (candidates, candidates)"
        )
    if not 0 <= bound <= 1:
        raise ConfigError(f"bound is {bound!r}; it must be from 0 to 1")
    if most < 0:
        raise ConfigError(f"most is {most!r}; it must be at least 0")
    if not (np.isfinite(order).all() and np.isfinite(sizes).all()):
        raise ConfigError("a priority or a correlation is not finite; give constant columns 0")
    picked: list[int] = []
    is_free = np.ones(len(order), bool)
    for each in np.argsort(-order, kind="stable"):
        if len(picked) == most:
            break
        if is_free[each]:
            picked.append(int(each))
            is_free &= sizes[each] <= bound
    return np.array(picked, np.intp)
