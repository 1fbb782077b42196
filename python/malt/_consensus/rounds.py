"""Rounds of a consensus: synchronous, by an allreduce, and asynchronous, by scatter and gather.

What the asynchronous rounds rely on:

1. A rank scatters once a round, before it waits, and waits for others' updates that came since its
   last round ended. Of ranks that all wait, the one that scattered first has an update of each
   other one. So some rank always goes on.
2. A rank that finds that all are done marks an update with the number of the phase and goes into
   the collective end of that phase. Who waits and receives a mark of the present phase stops
   waiting, marks an update of its own, and goes there too. A mark is a rank's last update of its
   phase, so none replaces it before all have gathered it; and if its sender dies, it has reached
   either nobody, or someone who repeats it. So no rank waits for one that has stopped.
3. The end of a phase computes z and the residuals exactly, and alike on all ranks. If they are not
   small after all, because what a rank knew of others was old, the next phase begins.
"""

from __future__ import annotations

import abc
import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from malt import _errors as errors
from malt._consensus.arguments import Options
from malt._consensus.local import (
    CLOSED,
    NOT_FINITE,
    Local,
    Norms,
    Residuals,
    residuals_of,
)
from malt._core_import import SUM, Update, Vector
from malt._errors import ConfigError, describe_ranks
from malt._job import job as jobs
from malt._job.vectors import vector

Array = npt.NDArray[Any]

# Constraints without a common solution: rho rises again and again, and no x moves any more.
_STUCK_ROUNDS = 30
_STUCK = 1e-3  # of the primal residual
_ROUNDING = 1e-9  # of a share
_NEVER = 1 << 62


class Rounds(abc.ABC):
    """Rounds of one kind.

    Attributes:
        count: how many this rank has made.
        ranks: those that were in the last one.
        residuals: of all ranks, as far as this one knows.
        has_converged: whether the last round met the tolerances.
    """

    def __init__(self, local: Local, options: Options, name: str) -> None:
        self.count = 0
        self.ranks: tuple[int, ...] = ()
        self.residuals = Residuals(math.nan, math.nan, 0, 0)
        self.has_converged = False
        self._local, self._options, self._name = local, options, name
        self._layout = local.layout
        self._sum = np.zeros(self._layout.length, local.z.dtype)
        self._summed: Vector = vector(self._sum, name=name)

    def begin(self) -> None:
        """Set z to the mean of x. Collective."""
        self._add_up(self._local.take_x(), jobs.current().settings.timeout)
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

    def _add_up(self, is_finite: bool, limit: float) -> None:
        """Add the payloads of all ranks up in _sum. Collective."""
        if is_finite:
            self._local.write(self._sum)
        else:
            self._local.write_word(self._sum, NOT_FINITE)
        self._summed.allreduce(SUM, timeout=limit)
        self._check_words(self._sum)

    def _check_words(self, payload: Array) -> None:
        """Raise what a rank has found."""
        wrong = self._layout.ranks(payload, NOT_FINITE)
        if wrong:
            raise ConfigError(
                f"consensus {self._name!r}: x has a value that is not finite on "
                f"{describe_ranks(wrong)}: the function there has no minimum, or its solver "
                "diverged (a larger rho or a shorter step may help)"
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

    def exchange(self, limit: float) -> None:
        self._add_up(self._local.take_x(), limit)
        norms = Norms(*map(float, self._layout.norms(self._sum)))
        ranks = self._layout.ranks(self._sum)
        can_judge = self._judged and ranks == self.ranks
        self._local.take_sum(self._sum)
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
        primal, dual = self.residuals[:2]
        has_risen = self._local.adapt(primal, dual)
        is_stuck = primal > self.residuals.primal_bound and norms.moved <= (_STUCK * primal) ** 2
        self._stuck = self._stuck + 1 if has_risen and is_stuck else 0
        if self._stuck == _STUCK_ROUNDS:
            self._stuck = 0
            raise ConfigError(
                f"consensus {self._name!r} is infeasible: in {_STUCK_ROUNDS} rounds rho has risen "
                f"to {self._local.rho:.3g}, and the ranks' x stay as they are, {primal:.3g} from "
                "their mean (norm of the differences): no x meets the constraints of all ranks. "
                "Check the constraints in the ranks' functions; if there are none, begin with a "
                "far larger rho"
            )


class Asynchronous(Rounds):
    """Each round uses the newest payload of each live rank.

    After the payload of an update come the phase of whose rounds the norms in it are (0: none yet),
    and the mark: the phase that its sender ends, or 0.
    """

    def __init__(self, local: Local, options: Options, name: str) -> None:
        super().__init__(local, options, name)
        job = jobs.current()
        self._rank = job.rank
        self._newest = np.zeros((job.size, self._layout.length + 2), local.z.dtype)
        self._payloads = self._newest[:, :-2]
        self._fresh: set[int] = set()  # ranks of which an update has come in this round
        self._since: set[int] = set()  # likewise, since rho was judged
        self._missed = [_NEVER] * job.size  # by rank: rounds on end without an update of it
        self._phase = 1
        self._has_norms = False  # of the present phase
        self._is_sent = self._is_ending = self._is_exact = False  # how far this round has come
        self._own = np.zeros_like(self._newest[0])
        self._updates: Vector = vector(self._own, name=f"{name} updates")

    def exchange(self, limit: float) -> None:
        if not self._is_sent:
            self.has_converged = False
            self._begin_round()
        if not self._is_ending:
            if not self._await_updates(limit) and not self._make_round():
                self._end_round()
                return
            self._send(mark=self._phase)
            self._is_ending = True
        self._end_phase(limit)
        self._end_round()

    def close(self) -> None:
        if not self.is_closed:
            self._local.write_word(self._own[:-2], CLOSED)
            self._send(mark=0)
        super().close()
        self._updates.close()

    def _begin_round(self) -> None:
        if not self._local.take_x():
            self._local.write_word(self._own[:-2], NOT_FINITE)
            self._send(mark=0)
            self._refuse()
        self._local.write(self._own[:-2])
        self._send(mark=0)
        self._is_sent = True

    def _end_round(self) -> None:
        self._local.end_round()
        self._missed = [
            0 if rank in self._fresh else missed + 1 for rank, missed in enumerate(self._missed)
        ]
        self._fresh.clear()
        self._is_sent = self._is_ending = False
        self.count += 1

    def _send(self, mark: int) -> None:
        self._own[-2:] = self._phase if self._has_norms else 0, mark
        self._newest[self._rank] = self._own
        self._updates.scatter()

    def _keep(self, _: Array, updates: list[Update]) -> None:
        for update in updates:
            self._newest[update.rank] = update.values
            self._fresh.add(update.rank)

    def _await_updates(self, limit: float) -> bool:
        """Wait as quorum and max_delay say; return whether a rank has marked the phase instead."""
        deadline = time.monotonic() + limit
        while True:
            alive = jobs.current().group.alive()  # first: what they have sent before is received
            self._updates.gather(self._keep)
            self._refuse()
            has_closed = self._layout.words(self._payloads.T).max(axis=0) == CLOSED
            live = tuple(rank for rank in alive if not has_closed[rank])
            if (self._newest[:, -1] == self._phase).any():
                return True
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
            self._updates.await_update(len(alive), left)

    def _refuse(self) -> None:
        """Raise what a rank has given up for, once; its next update has to come before a round."""
        words = self._layout.words(self._payloads.T).max(axis=0)
        wrong = np.flatnonzero(words >= NOT_FINITE)
        if len(wrong) == 0:
            return
        found = self._newest[wrong].sum(axis=0)
        self._newest[wrong] = 0
        self._fresh.difference_update(map(int, wrong))
        for rank in wrong:
            self._missed[rank] = _NEVER
        self._is_sent = False
        self._check_words(found)

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
        known = Norms(*(own + self._layout.norms(others[:, :-2].T).sum(axis=1)))
        self.residuals = residuals_of(known, self._options)
        if self.residuals.are_small and (others[:, -2] == self._phase).all():
            return True
        primal, dual = math.sqrt(own.primal), math.sqrt(own.dual)
        self._since |= self._fresh
        if self._options.adapt and self._since.issuperset(set(self.ranks) - {self._rank}):
            self._since.clear()
            self._local.adapt(primal, dual)
        return False

    def _end_phase(self, limit: float) -> None:
        """Compute z and the residuals exactly. Collective; goes on after a TimeoutError."""
        if not self._is_exact:
            self._add_up(True, limit)
            self._local.take_sum(self._sum)
            self.ranks = self._layout.ranks(self._sum)
            self._is_exact = True
        self._sum[:] = 0
        self._local.write_norms(self._sum)
        self._summed.allreduce(SUM, timeout=limit)
        self.residuals = residuals_of(
            Norms(*map(float, self._layout.norms(self._sum))), self._options
        )
        is_whole = self._layout.ranks(self._sum) == self.ranks
        self.has_converged = is_whole and self.residuals.are_small
        self._phase += 1
        self._is_exact = self._has_norms = False
