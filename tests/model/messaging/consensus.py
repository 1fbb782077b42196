"""A malt.optimize.Consensus over simulated ranks that are killed, stopped, slow and interrupted.

The rounds are the real ones (`_consensus/rounds.py`). Each rank has a function c/2 |x - a|^2, so
the minimum of a sum is the mean of their a, weighted by c.

    C1  All ranks that are well converge, to the same bits, with the same ranks.
    C2  What they converge to is the minimum of these ranks' functions.
    C3  An exchange makes one round, however often it times out or is interrupted and repeated.
    C4  Only a rank that was evicted gets another error than a time-out or an interrupt.
    C5  No call waits for ever.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from rejoining.machines import Process, World

from malt import _uninterrupted as uninterrupted
from malt._consensus import rounds
from malt._consensus.arguments import Options, Rows
from malt._consensus.local import Local
from malt._errors import PeerError, TimeoutError  # noqa: A004
from messaging.network import Network
from messaging.threads import Interrupts, Time
from messaging.vectors import LIMIT, Studio, Vector

SILENCE = 1.0
_LATEST_END = 5000.0
_MOST_ROUNDS = 2000
_SHORT_ONES = 3  # time limits of a round before one of LIMIT
_NEAR = 0.02  # of the minimum


class _Rank:
    def __init__(self, rank: int, process: Process, job: Any) -> None:
        self.rank = rank
        self.process = process
        self.job = job
        self.slowness = 1.0
        self.has_begun = self.has_ended = self.is_lost = False
        self.is_interrupted = False
        self.outcome: tuple[tuple[int, ...], list[float]] | None = None
        self.rounds: Any = None


class ConsensusJob:
    """One job, from a seed."""

    def __init__(self, seed: int, say: Callable[[str], object] | None = None) -> None:
        self.world = World(seed, say)
        self._draw = draw = self.world.random
        self.interrupts = Interrupts(self.world)
        self.size = draw.choice((2, 2, 3, 3, 4))
        is_async = draw.random() < 0.6
        self._options = Options(
            rho=draw.choice((0.3, 1.0, 3.0)),
            quorum=draw.choice((None, 0.3, 0.5, 1.0)) if is_async else None,
            max_delay=draw.choice((0, 1, 3, 10)) if is_async else None,
            adapt=draw.random() < 0.7,
            rtol=1e-4,
            atol=1e-6,
            prox=None,
        )
        self._weights = [draw.uniform(0.5, 2.0) for _ in range(self.size)]
        self._minima = [np.array([draw.uniform(-1, 1) for _ in range(3)]) for _ in range(self.size)]
        self._armed = draw.choice((0, 1, 2, 4))
        self._rate = draw.choice((0.002, 0.01, 0.03))
        self._short = draw.choice((0.01, 0.1, LIMIT))
        self._pace = draw.choice((0.0, 0.01, 0.05))
        self.ranks: list[_Rank] = []
        self.right = 0  # ranks that have converged
        self.errors = 0

    def run(self) -> str:
        """What is wrong, or nothing."""
        with self._in_the_place_of_modules():
            processes = {
                rank: Process(self.world, rank, f"rank {rank}") for rank in range(self.size)
            }
            self.network = Network(self.world, processes, self._on_message)
            self.studio = Studio(self.network, self.interrupts)
            for rank, process in processes.items():
                group = SimpleNamespace(alive=lambda rank=rank: sorted(self.network.live[rank]))
                settings = SimpleNamespace(timeout=LIMIT)
                job = SimpleNamespace(rank=rank, size=self.size, group=group, settings=settings)
                me = _Rank(rank, process, job)
                self.ranks.append(me)
                process.start(lambda me=me: self._live(me))  # type: ignore[misc]
            try:
                self.world.run(_LATEST_END)
                self._check_end()
            finally:
                self.world.end()
        return self.world.wrong

    @contextlib.contextmanager
    def _in_the_place_of_modules(self) -> Iterator[None]:
        jobs = SimpleNamespace(
            current=lambda: self._rank_here().job, present=lambda: self._rank_here().job
        )
        instead: list[tuple[Any, dict[str, Any]]] = [
            (
                rounds,
                {
                    "jobs": jobs,
                    "time": Time(self.world, self.interrupts),
                    "vector": self._make_vector,
                },
            ),
            # Interrupts come where threads wait, and such a step does not wait.
            (uninterrupted, {"_now": SimpleNamespace(_handlers=True)}),
        ]
        before = [(module, {n: getattr(module, n) for n in names}) for module, names in instead]
        for module, names in instead:
            vars(module).update(names)
        try:
            yield
        finally:
            for module, names in before:
                vars(module).update(names)

    def _make_vector(
        self, array: Any, *, name: str, policy: str = "latest", depth: int = 4
    ) -> Vector:
        return Vector(self.studio, self._rank_here().rank, array, name, policy)

    def _rank_here(self) -> _Rank:
        return self.ranks[self.world.here().process.host]

    # Ranks

    def _live(self, me: _Rank) -> None:
        try:
            self._agree(me)
        except PeerError as error:
            self.world.say(f"rank {me.rank} ends: {error!r}")
            if not me.is_lost:
                self.world.complain(f"C4: rank {me.rank}, which was well, ends by {error!r}")
        except Exception as error:
            self.world.say("".join(traceback.format_exception(error)))
            self.world.complain(f"C4: rank {me.rank} ends by {error!r}")
        finally:
            me.has_ended = True

    def _agree(self, me: _Rank) -> None:
        """As a program does: see malt.optimize.Consensus."""
        draw, options = self._draw, self._options
        weight, minimum = self._weights[me.rank], self._minima[me.rank]
        x = minimum.copy()
        every = np.arange(len(x))
        local = Local(x, options, Rows(every, every, len(x), False), me.rank, self.size)
        kind = rounds.Synchronous if options.max_delay is None else rounds.Asynchronous
        me.rounds = kind(local, options, "c")
        me.rounds.begin()
        me.has_begun = True
        while not me.rounds.has_converged:
            x[:] = (weight * minimum + local.rho * (local.z - local.u)) / (weight + local.rho)
            self.world.park(self.world.now + self._pace * me.slowness * draw.random())
            self._exchange(me)
            if me.rounds.count == _MOST_ROUNDS:
                self.world.complain(f"C1: rank {me.rank} has not converged")
                return
        self.interrupts.forget(self.world.here())
        me.outcome = me.rounds.ranks, local.z.tolist()
        self.right += 1
        self.world.say(f"rank {me.rank} has converged in {me.rounds.count} rounds: {me.outcome}")
        self.world.park(self.world.now + draw.choice((0.0, 0.1)))
        me.rounds.close()

    def _exchange(self, me: _Rank) -> None:
        before, attempts = me.rounds.count, 0
        while me.rounds.count == before:
            attempts += 1
            try:
                me.rounds.exchange(self._short if attempts <= _SHORT_ONES else LIMIT)
            except TimeoutError as error:
                self.errors += 1
                if me.rank in error.ranks:
                    self.world.complain(f"C4: rank {me.rank} waits for itself: {error!r}")
            except KeyboardInterrupt:
                self.errors += 1
                if not me.is_interrupted:
                    self.world.complain(f"C4: rank {me.rank} was not interrupted")
                me.is_interrupted = False
        if me.rounds.count != before + 1:
            self.world.complain(f"C3: rank {me.rank} is at {me.rounds.count} after {before}")

    # Faults

    def _on_message(self) -> None:
        """Between two messages, which is where faults are worth most."""
        if self._armed and self._draw.random() < self._rate and self._may_fail():
            self._armed -= 1
            self.world.at(1e-4 * 1e3 ** self._draw.random(), self._fault)

    def _may_fail(self) -> bool:
        return all(me.has_begun or me.is_lost for me in self.ranks)

    def _fault(self) -> None:
        draw, world = self._draw, self.world
        well = [me for me in self.ranks if not me.is_lost and me.outcome is None]
        if not well or not self._may_fail():
            return
        me = draw.choice(well)
        kind = draw.choice(("kill", "stop", "stop long", "slow", "interrupt", "interrupt"))
        is_last = sum(not each.is_lost for each in self.ranks) == 1
        if kind == "kill" and not is_last:
            world.say(f"rank {me.rank} is killed")
            me.is_lost = True
            me.process.end(-9)
        elif kind == "stop":
            seconds = draw.random() * SILENCE * 0.7
            world.say(f"rank {me.rank} is stopped for {seconds:.3f} s")
            me.process.stop(seconds)
        elif kind == "stop long" and not is_last:
            seconds = SILENCE * (1.1 + 5 * draw.random())
            world.say(f"rank {me.rank} is stopped for {seconds:.3f} s")
            me.is_lost = True
            me.process.stop(seconds)
            world.at(SILENCE, lambda: self.network.evict(me.rank))
        elif kind == "slow":
            me.slowness = 20.0
        elif kind == "interrupt":
            world.say(f"rank {me.rank} is interrupted")
            me.is_interrupted = True
            self.interrupts.send(me.process.tasks[0], KeyboardInterrupt)

    # Checks

    def _check_end(self) -> None:
        if self.world.wrong:
            return
        outcomes = {me.rank: me.outcome for me in self.ranks if me.outcome is not None}
        for me in self.ranks:
            if not me.has_ended and not me.process.is_dead:
                self.world.complain(f"C5: rank {me.rank} waits for ever")
            elif me.outcome is None and not me.is_lost:
                self.world.complain(f"C1: rank {me.rank} has not converged")
        if len({str(outcome) for outcome in outcomes.values()}) > 1:
            self.world.complain(f"C1: the ranks have converged to {outcomes}")
        for ranks, z in outcomes.values():
            total = sum(self._weights[rank] for rank in ranks)
            minimum = sum(self._weights[rank] * self._minima[rank] for rank in ranks) / total
            if np.abs(minimum - z).max() > _NEAR:
                self.world.complain(f"C2: {z} of {ranks} is not {minimum}")
