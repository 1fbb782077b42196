"""Rounds of a consensus: synchronous, by an allreduce, and asynchronous, by scatter and gather.

The asynchronous rounds rely on:

1. A rank scatters in each round, before it waits (again, if it has reached nobody), and waits for
   others' updates that came since its last round ended. Of ranks that all wait, the one that
   scattered first has an update of each other one. So some rank always goes on.
2. A rank that finds that all are done sends a mark, the number of the phase, and goes into the
   collective end of that phase. A rank that waits and receives a mark of the present phase stops
   waiting, sends a mark of its own, and goes there too. Marks, and the words by which a rank closes
   the consensus or gives up a round, are sent once; so they have a vector of their own whose policy
   loses nothing. (A newer update replaces an older one, and one that finds every slot being read is
   skipped.) If the sender of a mark dies, it has reached either nobody, or a rank that repeats it.
   So no rank waits for one that has stopped.
3. The end of a phase computes z and the residuals exactly, and alike on all ranks. If they are not
   small after all, because what a rank knew of others was old, the next phase begins.
"""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from malt import _errors as errors
from malt._consensus.arguments import Options
from malt._consensus.local import NOT_FINITE, Local, Norms, residuals_of
from malt._core_import import SUM, Update, Vector
from malt._errors import ConfigError, describe_ranks
from malt._job import job as jobs
from malt._uninterrupted import uninterrupted
from malt._vectors.vectors import vector

Array = npt.NDArray[Any]

# Constraints without a common solution: rho is too small again and again, and no x moves any more.
_STUCK_ROUNDS = 30
_STUCK = 1e-3  # of the primal residual
_ROUNDING = 1e-9  # of a share
_NEVER = 1 << 62
_DONE, _GIVEN_UP, _CLOSED = 1, 2, 3  # words of a rank: it ends the phase; its x is not finite
_WORDS = 8  # of a rank that others have yet to hear
_LOOK = 0.02  # seconds, between two looks for words while no update comes


class Rounds(abc.ABC):
    """Rounds of one kind.

    The other ranks have gone on once an allreduce has ended. So if an exception then ends this
    rank's call, its next call goes on with the sum.

    Attributes:
        count: how many this rank has made.
        ranks: those that were in the last one.
        residuals: of all ranks, as far as this one knows.
        has_converged: whether the last round met the tolerances.
    """

    def __init__(self, local: Local, options: Options, name: str) -> None:
        self.count = 0
        self.ranks: tuple[int, ...] = ()
        self.residuals = residuals_of(Norms(math.nan, math.nan), options)
        self.has_converged = False
        self._local, self._options, self._name = local, options, name
        self._layout = local.layout
        self._sum = np.zeros(self._layout.length, local.z.dtype)
        self._summed: Vector = vector(self._sum, name=name)
        self._before: int | None = None  # allreduces before the one whose sum is not used yet

    def begin(self) -> None:
        """Set z to the mean of x. Collective."""
        self._add_up(self._local.take_x, None)
        self._before = None
        self.ranks = self._layout.ranks(self._sum)
        self._local.begin(self._sum)

    @abc.abstractmethod
    def exchange(self, limit: float) -> None:
        """Make a round."""

    def close(self) -> None:
        self._summed.close()

    @property
    def is_closed(self) -> bool:
        return self._summed.is_closed

    def _add_up(self, take_x: Callable[[], bool], limit: float | None) -> None:
        """Add the payloads of all ranks up in _sum. Collective.

        Args:
            take_x: called before this rank's payload is written; whether its x is finite.
            limit: seconds to wait for other ranks; None: those of the call in progress.
        """
        if self._may_begin_sum():
            if take_x():
                self._local.write(self._sum)
            else:
                self._local.write_word(self._sum, NOT_FINITE)
            self._summed.allreduce(SUM, timeout=limit)
        if wrong := self._layout.ranks(self._sum, NOT_FINITE):
            self._before = None
            self._check_finite(wrong)

    def _may_begin_sum(self) -> bool:
        """Return whether the last sum has been used, or has not come."""
        allreduces = self._summed.uses.allreduces
        if self._before not in (None, allreduces):
            return False
        self._before = allreduces
        return True

    def _check_finite(self, wrong: Collection[int]) -> None:
        """Raise ConfigError if there are ranks whose x is not finite."""
        if wrong:
            raise ConfigError(
                f"consensus {self._name!r}: x has a value that is not finite on "
                f"{describe_ranks(sorted(wrong))}: the function there has no minimum, or its "
                "solver diverged (a larger rho or a shorter step may help)"
            )


class Synchronous(Rounds):
    """Each round adds up the payloads of all live ranks.

    The residuals of a round travel with the payloads of the next one, so that a round has one
    allreduce. A round in which a rank is missing judges none.
    """

    def __init__(self, local: Local, options: Options, name: str) -> None:
        super().__init__(local, options, name)
        self._judged = False  # the next round can judge the residuals of the last one
        self._stuck = 0  # rounds on end
        self._at_first = (0.0, 0.0)  # of these: the square of x's movement, and rho

    def exchange(self, limit: float) -> None:
        self._add_up(self._local.take_x, limit)
        self._local.take_sum(self._sum)
        self._end_round()

    @uninterrupted
    def _end_round(self) -> None:
        self._before = None
        norms = Norms(*map(float, self._layout.norms(self._sum)))
        ranks = self._layout.ranks(self._sum)
        can_judge = self._judged and ranks == self.ranks
        self._local.end_round()
        self.ranks, self._judged = ranks, True
        self.count += 1
        self.has_converged = False
        if not can_judge:
            self._stuck = 0
            return
        self.residuals = residuals_of(norms, self._options)
        self.has_converged = self.residuals.are_small
        if self.has_converged:
            self._judged = False  # rounds after it are judged anew
        elif self._options.adapt:
            self._adapt(norms)

    def _adapt(self, norms: Norms) -> None:
        """Adapt rho, on all ranks alike; it rises for nothing where there is no solution."""
        primal = self.residuals.primal
        is_too_small = self._local.adapt(self.residuals)
        is_still = norms.moved <= (_STUCK * primal) ** 2
        if not (is_too_small and is_still and primal > self.residuals.primal_bound):
            self._stuck = 0
            return
        if self._stuck == 0:
            self._at_first = norms.moved, self._local.rho
        self._stuck += 1
        if self._stuck < _STUCK_ROUNDS:
            return
        self._stuck = 0
        moved, rho = self._at_first
        if norms.moved > 2 * moved * self._local.rho / rho:
            return  # x follows as rho rises: functions far steeper than rho, not constraints
        raise ConfigError(
            f"consensus {self._name!r} is infeasible: for {_STUCK_ROUNDS} rounds rho was too "
            f"small, at last {self._local.rho:.3g}, and the ranks' x stay as they are, "
            f"{primal:.3g} from their mean (norm of the differences): no x meets the constraints "
            "of all ranks. Check the constraints in the ranks' functions, and that each x is "
            "changed in place (x[:] = ...); if there are no constraints, begin with a far larger "
            "rho"
        )


class Asynchronous(Rounds):
    """Each round uses the newest payload of each live rank.

    After the payload of an update comes the phase of whose rounds the norms in it are (0: none
    yet).
    """

    def __init__(self, local: Local, options: Options, name: str) -> None:
        super().__init__(local, options, name)
        job = jobs.current()
        self._job, self._rank = job, job.rank
        self._newest = np.zeros((job.size, self._layout.length + 1), local.z.dtype)
        self._payloads = self._newest[:, :-1]
        self._fresh: set[int] = set()  # ranks of which an update has come in this round
        self._missed = [_NEVER] * job.size  # by rank: rounds on end without an update of it
        self._phase = 1
        self._has_norms = False  # of the present phase
        self._is_sent = self._is_ending = self._is_exact = False  # how far this round has come
        self._is_out = False  # the last update has reached those that are alive
        self._own = np.zeros_like(self._newest[0])
        self._updates: Vector = vector(self._own, name=f"{name} updates")
        self._word = np.zeros(2, np.int64)  # and the phase
        self._words: Vector = vector(self._word, name=f"{name} words", policy="queue", depth=_WORDS)
        self._is_marked = False  # another rank has ended the present phase
        self._closed: set[int] = set()
        self._gave_up: set[int] = set()  # a round, because of their x

    def exchange(self, limit: float) -> None:
        if not self._is_sent:
            self.has_converged = False
            self._begin_round()
        if not self._is_ending:
            if not self._await_updates(limit) and not self._make_round():
                self._end_round()
                return
            self._say(_DONE)
            self._send()  # the last norms, and it wakes those that wait
            self._is_ending = True
        self._end_phase(limit)

    def close(self) -> None:
        try:
            if not self.is_closed and jobs.present() is self._job:
                self._say(_CLOSED)
        finally:
            super().close()
            self._updates.close()
            self._words.close()

    def _begin_round(self) -> None:
        if not self._local.take_x():
            self._say(_GIVEN_UP)
            self._check_finite([self._rank])
        self._local.write(self._own[:-1])
        self._send()
        self._is_sent = True

    @uninterrupted
    def _end_round(self) -> None:
        self._local.end_round()
        self._missed = [
            0 if rank in self._fresh else missed + 1 for rank, missed in enumerate(self._missed)
        ]
        self._fresh.clear()
        self._is_sent = self._is_ending = False
        self.count += 1

    def _send(self) -> None:
        self._own[-1] = self._phase if self._has_norms else 0
        self._newest[self._rank] = self._own
        self._is_out = bool(self._updates.scatter())

    def _say(self, word: int) -> None:
        self._word[:] = word, self._phase
        self._words.scatter()

    def _keep(self, _: Array, updates: list[Update]) -> None:
        for update in updates:
            self._newest[update.rank] = update.values
            self._fresh.add(update.rank)

    def _hear(self, _: Array, words: list[Update]) -> None:
        for word in words:
            said, phase = map(int, word.values)
            if said == _CLOSED:
                self._closed.add(word.rank)
            elif phase == self._phase:
                self._is_marked |= said == _DONE
                if said == _GIVEN_UP:
                    self._gave_up.add(word.rank)

    def _await_updates(self, limit: float) -> bool:
        """Wait as quorum and max_delay say; return whether a rank has ended the phase instead."""
        deadline = time.monotonic() + limit
        while True:
            if not self._is_out:  # every slot was being read: of ranks that wait, some lack it
                self._send()
            alive = jobs.current().group.alive()  # first: what they have sent before is received
            self._words.gather(self._hear)
            self._refuse_round()
            self._updates.gather(self._keep)
            if self._is_marked:
                return True
            live = tuple(rank for rank in alive if rank not in self._closed)
            missing = self._missing(live)
            if not missing:
                self.ranks = live
                return False
            left = deadline - time.monotonic()
            if left <= 0:
                raise errors.TimeoutError(
                    f"consensus {self._name!r}: {describe_ranks(missing)} sent no update within "
                    f"{limit:g} s, and round {self.count + 1} needs one (quorum="
                    f"{self._options.quorum}, max_delay={self._options.max_delay}); a longer limit:"
                    " exchange(timeout=), malt.init(timeout=) or MALT_TIMEOUT",
                    missing,
                )
            self._updates.await_update(len(alive), min(left, _LOOK))

    def _refuse_round(self) -> None:
        """Give up this round if another rank has given up one, and say so once.

        The next round needs an update that this rank sends when it goes on.
        """
        wrong, self._gave_up = self._gave_up, set()
        if not wrong:
            return
        self._fresh -= wrong
        for rank in wrong:
            self._missed[rank] = _NEVER
        self._is_sent = False
        self._check_finite(wrong)

    def _missing(self, live: tuple[int, ...]) -> list[int]:
        """The ranks without whose updates this round does not go on."""
        assert self._options.max_delay is not None
        absent = [rank for rank in live if rank != self._rank and rank not in self._fresh]
        needed = math.ceil((self._options.quorum or 0) * (len(live) - 1) - _ROUNDING)
        if len(live) - 1 - len(absent) < needed:
            return absent
        return [rank for rank in absent if self._missed[rank] >= self._options.max_delay]

    def _make_round(self) -> bool:
        """Compute z and the multipliers; return whether all are done, as far as is known here."""
        self._local.take_sum(self._payloads[list(self.ranks)].sum(axis=0))
        self._has_norms = True
        own = self._local.norms
        others = self._newest[[rank for rank in self.ranks if rank != self._rank]]
        known = Norms(*(own + self._layout.norms(others[:, :-1].T).sum(axis=1)))
        self.residuals = residuals_of(known, self._options)
        if self.residuals.are_small and (others[:, -1] == self._phase).all():
            return True
        if self._options.adapt:
            self._local.adapt(residuals_of(own, self._options))
        return False

    def _end_phase(self, limit: float) -> None:
        """Compute z and the residuals exactly, and end the round. Collective."""
        if not self._is_exact:
            self._add_up(lambda: True, limit)
            self._local.take_sum(self._sum)
            self._take_exact()
        if self._may_begin_sum():
            self._sum[:] = 0
            self._local.write_norms(self._sum)
            self._summed.allreduce(SUM, timeout=limit)
        self._judge()

    @uninterrupted
    def _take_exact(self) -> None:
        self._before = None
        self.ranks = self._layout.ranks(self._sum)
        self._is_exact = True

    @uninterrupted
    def _judge(self) -> None:
        self._before = None
        self.residuals = residuals_of(
            Norms(*map(float, self._layout.norms(self._sum))), self._options
        )
        is_whole = self._layout.ranks(self._sum) == self.ranks
        self.has_converged = is_whole and self.residuals.are_small
        self._phase += 1
        self._is_exact = self._has_norms = self._is_marked = False
        self._end_round()
