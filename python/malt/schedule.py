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

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from malt._core_import import SUM, Update, Vector
from malt._errors import ConfigError, PeerError
from malt._job import job as jobs
from malt._job import joining
from malt._job.vectors import vector
from malt._training.parameters import whole

__all__ = ["Program", "Result", "independent", "run"]

Array = npt.NDArray[Any]
_MARK = 1  # the last value of an update: 0, or _MARK if its sender has missed a rank


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
        """Return the update of this rank's part: at most `length` numbers. Changes no state."""

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
            there are ranks, or push() more values than `length`.
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
        self._counts = np.zeros(job.size + 1)
        self._agreement: Vector = vector(self._counts)
        self._flight: deque[_Begun] = deque()

    def close(self) -> None:
        for each in (*self._vectors, self._agreement):
            each.close()

    def run(self, rounds: int | None) -> int:
        ranks = self._agree(has_missed=False)
        begun = pulled = 0
        has_ended = False
        while True:
            if not has_ended:
                parts = None if begun == rounds else _parts(self._program, len(ranks))
                has_ended = parts is None
            if parts is not None:
                values = self._program.push(parts[ranks.index(self._rank)])
                own = _filled(values, self._length, self._buffers[0].dtype)
                self._send(begun, own, 0)
                self._flight.append(_Begun(parts, own))
                begun += 1
            elif not self._flight:
                break
            if has_ended or len(self._flight) == len(self._vectors):
                results = self._receive(pulled, ranks)
                if results is None:
                    # The others see the mark at the latest when they gather this round.
                    self._send(begun, np.zeros(self._length), _MARK)
                    break
                self._program.pull(results)
                pulled += 1
        left = self._agree(has_missed=bool(self._flight))
        lost = sorted(set(ranks) - set(left))
        if lost or self._counts[-1] > 0:
            raise PeerError(
                f"rank {', '.join(map(str, lost))} has died; round {pulled} and {len(self._flight)}"
                " rounds in flight were not pulled here: put back a state that all ranks have, and "
                "run the rest",
                lost,
            )
        return pulled

    def _agree(self, *, has_missed: bool) -> list[int]:
        """Return the ranks that take part: the same on all."""
        self._counts[:] = 0
        self._counts[self._rank] = 1
        self._counts[-1] = has_missed
        self._agreement.allreduce(SUM)
        return [rank for rank, count in enumerate(self._counts[:-1]) if count > 0]

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
