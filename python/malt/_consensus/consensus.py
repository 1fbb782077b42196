"""Ranks that minimise a sum of functions, each its own: `malt.optimize.Consensus`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from malt._arguments import seconds
from malt._consensus import arguments
from malt._consensus.arguments import Prox
from malt._consensus.local import Local
from malt._consensus.rounds import Asynchronous, Rounds, Synchronous
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job.agreement import resumed

Array = npt.NDArray[Any]

_UNMOVED_ROUNDS = 10  # without another x, after which there is a warning


class Consensus:
    """Consensus ADMM: minimise f_0(x) + f_1(x) + ... + g(x), where rank i alone knows f_i.

        c = malt.optimize.Consensus(x, rho=1.0)
        while not c.converged:
            x[:] = ...         # the minimum of f(x) + c.rho/2 |x - c.target|^2, with your solver
            c.exchange()
        c.z                    # the minimum of the sum: the same on all ranks

    Each rank has an x of its own, which the rounds draw together. The class keeps what pulls: the
    mean z, and the multipliers u of the constraints x = z, scaled by 1/rho as in Boyd et al. A
    minimum of f that is only approximate does too, if it comes closer from round to round.

    Synchronous rounds (quorum and max_delay are None) wait for all ranks, and the same job ends
    with the same bits. Asynchronous rounds go on with the newest x + u of the others. At a fixed
    point of these rounds, no rank's x + u changes. All ranks then have the same z; x = z, because u
    changes by x - z; and the multipliers add up to 0, because z is the mean of x + u. Each rank's
    gradient of f is -rho u, so the gradients add up to 0 as well, however old the updates were on
    the way, and whatever rho each rank has come to. Synchronous rounds have the same fixed points.

    A rank that dies or leaves also leaves the sum. The others go on to the minimum of what is left.

    Threads: as for malt.vector().

    Sources: Boyd et al. 2011, Distributed Optimization and Statistical Learning via ADMM, sections
    7.1 (consensus; 7.1.1: with g), 7.2 (rows that only some ranks hold) and 3.3 (stopping);
    Wohlberg 2017, ADMM Penalty Parameter Selection by Residual Balancing (rho); Zhang & Kwok 2014,
    Asynchronous Distributed ADMM for Consensus Optimization (quorum and max_delay); Peng et al.
    2016, ARock (x + u as the only state).

    Attributes:
        x: the array that was given.
    """

    @resumed
    def __init__(
        self,
        x: Any,
        rho: float = 1.0,
        *,
        quorum: float | None = None,
        max_delay: int | None = None,
        prox: Prox | None = None,
        ids: npt.ArrayLike | None = None,
        adapt: bool = True,
        rtol: float = 1e-4,
        atol: float = 1e-6,
        name: str | None = None,
    ) -> None:
        """Begin, with z as the mean of the ranks' x. Collective.

        Args:
            x: an array as malt.vector() takes it, float32 or float64, in which each rank puts its
                own solution. All ranks' have the same shape; with ids, the same but for the rows.
            rho: the penalty at the beginning, above 0.
            quorum: asynchronous: the share of the other live ranks (above 0, at most 1; rounded up)
                whose updates must have come since the last round, for this rank to go on.
            max_delay: asynchronous: the most rounds of this rank for which it goes on without
                an update of another live rank; 10 if there is only a quorum.
            prox: prox(v, step) returns the minimum of g(z) + |z - v|^2 / (2 step), for a g that all
                ranks share. It must return the same on all ranks. Not with ids.
            ids: (len(x),) whole numbers: the row of the whole problem that each row of x is. A row
                of only one rank has no constraint: leave it out of the penalty, by is_shared. To
                find the others, ranks exchange 4 bytes for each id up to the largest, in pieces.
            adapt: change rho, at most 50 times. It doubles where the primal residual, by its bound,
                is more than 4 times the dual one by its own, and is halved where the dual one is
                more than 10 times the primal one. If the primal residual is small enough
                already, it falls only as long as x moves further for it. It stays if rtol and atol
                are 0.
            rtol: the primal residual may be rtol times the norm of x or z (the larger), the dual
                one rtol times that of rho u, and the last change of x rtol times that of x.
            atol: each may be larger by atol times the square root of the number of elements.
            name: for error messages.

        Raises:
            ConfigError: on all ranks: an argument is out of range, the ranks' arguments differ, x
                is not finite, no id is held by two ranks; or this rank is rejoining.
            TimeoutError: the ranks that the error names did not come.
        """
        job = jobs.current()
        if job.is_rejoining:
            raise ConfigError(
                "malt.optimize.Consensus on a rejoining rank: the others have left this rank's "
                "function out of the sum, and go on without it"
            )
        call = "making a malt.optimize.Consensus"
        with job.turns.hold(call), job.within(job.deadline()):
            array, options, rows = arguments.agree(
                x,
                ids,
                lambda: arguments.checked(rho, quorum, max_delay, adapt, rtol, atol, prox),
            )
            name = f"consensus-{job.vectors + 1}" if name is None else name
            self.x, self._name, self._has_warned = x, name, False
            self._local = Local(array, options, rows, job.rank, job.size)
            kind = Synchronous if options.max_delay is None else Asynchronous
            self._rounds: Rounds = kind(self._local, options, name)
            try:
                self._rounds.begin()
            except BaseException:
                self._rounds.close()
                raise

    def __repr__(self) -> str:
        return f"<malt.optimize.Consensus {self._name!r}, {self.rounds} rounds>"

    def exchange(self, *, timeout: float | None = None) -> None:
        """Make a round: send x + u, and compute z and the multipliers from the ranks' newest.

        Synchronous: collective. Asynchronous: as quorum and max_delay say; when the newest
        residuals that a rank knows meet the tolerances, all ranks end their present round together,
        with the exact z. After it has converged, a further exchange goes on from there.

        Args:
            timeout: seconds to wait for other ranks; that of malt.init() if None.

        Raises:
            ConfigError: on all ranks: x is not finite on some (asynchronous: the other ranks hear
                of it in their next round, unless all have converged before); or the constraints in
                the ranks' functions have no common solution (found in synchronous rounds, with
                adapt). Or, on this one: an argument is wrong, it is closed, or prox() returned
                another shape or a value that is not finite.
            TimeoutError: the ranks that the error names did not come. Nothing has changed: call it
                again.

        If another exception ends the call (Ctrl-C, one out of prox()), `rounds` says whether the
        round has been made. If not, call it again: it goes on with that round.
        """
        limit = seconds(timeout)
        if limit is None:
            limit = jobs.current().settings.timeout
        if self.is_closed:
            raise ConfigError(f"consensus {self._name!r} has been closed")
        with jobs.current().turns.hold("malt.optimize.Consensus.exchange"):
            self._rounds.exchange(limit)
        self._warn_unmoved()

    def _warn_unmoved(self) -> None:
        """Warn, once, if no round has brought another x."""
        is_time = self.converged or self.rounds == _UNMOVED_ROUNDS
        if is_time and not self._local.has_moved and not self._has_warned:
            self._has_warned = True
            jobs.log.warning(
                "no round of consensus '%s' has changed x: was it rebound (x = solve(...))? Change "
                "it in place (x[:] = ...), or use the consensus's .x; if x was right from the "
                "beginning, nothing is wrong",
                self._name,
            )

    @property
    def target(self) -> Array:
        """Like x, z - u: what the penalty draws x to."""
        return self._local.z - self._local.u

    @property
    def z(self) -> Array:
        """Like x: the value that the ranks agree on, as of the last round."""
        return self._local.z

    @property
    def u(self) -> Array:
        """Like x: this rank's scaled multipliers."""
        return self._local.u

    @property
    def rho(self) -> float:
        """The present penalty. Asynchronous ranks each adapt their own."""
        return self._local.rho

    @property
    def is_shared(self) -> npt.NDArray[np.bool_]:
        """(len(x),): which rows of x another live rank holds too."""
        return self._local.is_shared

    @property
    def rounds(self) -> int:
        """How many rounds this rank has made."""
        return self._rounds.count

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in the last round, sorted."""
        return self._rounds.ranks

    @property
    def converged(self) -> bool:
        """Whether the residuals met the tolerances and x stayed, on all ranks.

        A synchronous round judges the round before it, an asynchronous one itself.
        """
        return self._rounds.has_converged

    @property
    def primal_residual(self) -> float:
        """The norm of x - z over all ranks, in the round that was judged last. NaN at first.

        Asynchronous: as far as this rank knows. Rows that only one rank holds do not count.
        """
        return self._rounds.residuals.primal

    @property
    def dual_residual(self) -> float:
        """The norm of rho (z - the z before), of the same ranks, round and rows."""
        return self._rounds.residuals.dual

    @property
    def is_closed(self) -> bool:
        """Whether this rank has closed it."""
        return self._rounds.is_closed

    def close(self) -> None:
        """Leave the consensus: the other ranks no longer wait for this one. Idempotent."""
        self._rounds.close()
