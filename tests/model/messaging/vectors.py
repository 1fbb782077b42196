"""Vectors among simulated ranks, with what a consensus uses of them.

Updates come in order, and late. A round of an allreduce is decided once for all of its members, as
src/dstorm/collective has it; how, is simulated and tested elsewhere.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from malt._errors import PeerError, TimeoutError  # noqa: A004
from messaging.network import Network
from messaging.threads import Interrupts

LIMIT = 60.0  # of a call; no fault takes longer
_FULL = 0.03  # how often every slot of the newest update is being read


class Studio:
    """The vectors of a job, from outside."""

    def __init__(self, network: Network, interrupts: Interrupts) -> None:
        self.network = network
        self.interrupts = interrupts
        self.rounds: dict[tuple[str, int], _Round] = defaultdict(_Round)
        # By vector and receiver.
        self.made: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.closed: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.come: dict[tuple[str, int, int], set[int]] = defaultdict(set)  # to a round
        self.updates: dict[tuple[str, int], list[Update]] = defaultdict(list)


class Update(NamedTuple):
    rank: int
    values: Any


class _Round:
    """What the ranks have given, and once it is decided, the sum and whose it is."""

    def __init__(self) -> None:
        self.given: dict[int, Any] = {}
        self.is_over = False
        self.total: Any = None  # None: it has failed
        self.ranks: list[int] = []


class Vector:
    """As `malt._core.Vector`."""

    def __init__(self, studio: Studio, rank: int, array: Any, name: str, policy: str) -> None:
        self._studio = studio
        self._network = studio.network
        self._rank = rank
        self._array = array
        self._name = name
        self._is_queue = policy == "queue"
        self._number = 0
        self._missed: _Round | None = None
        self.is_closed = False
        self.uses = SimpleNamespace(allreduces=0)
        made = studio.made[name, rank]
        self._network.to_others(rank, lambda to: studio.made[name, to].add(rank))
        self._wait(lambda: self._live() <= made | {rank}, math.inf)

    def allreduce(self, _: Any, *, timeout: float | None) -> None:
        self._begin()
        if (missed := self._missed) is None:
            missed = self._meet(LIMIT if timeout is None else timeout)
        self._missed = None
        self._array[:] = missed.total
        self.uses.allreduces += 1
        self._step()

    def scatter(self) -> list[int]:
        self._begin()
        world = self._network.world
        if not self._is_queue and world.random.random() < _FULL:
            return []
        others = sorted(self._live() - {self._rank})
        for to in others:
            update = Update(self._rank, self._array.copy())
            self._network.send(self._rank, to, lambda to=to, new=update: self._bring(to, new))  # type: ignore[misc]
        self._step()
        return others

    def gather(self, fold: Callable[[Any, list[Update]], object]) -> None:
        self._begin()
        updates = self._studio.updates.pop((self._name, self._rank), [])
        if updates:
            fold(self._array, updates)
        self._step()

    def await_update(self, live: int, timeout: float) -> bool:
        self._begin()
        updates = self._studio.updates
        deadline = self._network.world.now + timeout
        return self._wait(
            lambda: (
                bool(updates[self._name, self._rank]) or len(self._network.live[self._rank]) != live
            ),
            deadline,
        )

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            closed, name, rank = self._studio.closed, self._name, self._rank
            self._network.to_others(rank, lambda to: closed[name, to].add(rank))

    # Inside

    def _begin(self) -> None:
        self._step()
        self._check_standing()

    def _step(self) -> None:
        self._network.world.step()
        self._studio.interrupts.check_at_step()

    def _check_standing(self) -> None:
        if self._rank in self._network.evicted[self._rank]:
            raise PeerError(f"rank {self._rank} was evicted from the job", [])

    def _live(self) -> set[int]:
        live = self._network.live[self._rank] - self._studio.closed[self._name, self._rank]
        return live | {self._rank}

    def _wait(self, ready: Callable[[], bool], deadline: float) -> bool:
        while True:
            self._check_standing()
            if ready():
                return True
            self._studio.interrupts.check()
            if self._network.world.now >= deadline:
                return False
            self._network.await_ring(self._rank, deadline)

    def _bring(self, to: int, update: Update) -> None:
        updates = self._studio.updates[self._name, to]
        if not self._is_queue:
            updates[:] = [each for each in updates if each.rank != update.rank]
        updates.append(update)

    def _meet(self, timeout: float) -> _Round:
        """Make a round, which ends for all ranks alike."""
        self._number += 1
        name, rank, number = self._name, self._rank, self._number
        here, come = self._studio.rounds[name, number], self._studio.come
        here.given[rank] = self._array.copy()
        self._network.to_others(rank, lambda to: come[name, to, number].add(rank))
        own = come[name, rank, number]

        def missing() -> set[int]:
            return self._live() - own - {rank}

        try:
            self._wait(lambda: here.is_over or not missing(), self._network.world.now + timeout)
            late = missing()
            if not here.is_over and not late:
                here.ranks = sorted(self._live())
                here.total = np.sum([here.given[each] for each in here.ranks], axis=0)
            self._end(here)
        except BaseException:
            self._end(here)
            if here.total is not None and rank in here.ranks:
                self._missed = here
            raise
        if here.total is None:
            raise TimeoutError(f"allreduce of {name}: {late}, or another one gave up", late)
        if rank not in here.ranks:
            raise PeerError(f"rank {rank} is not in the round", [])
        return here

    def _end(self, here: _Round) -> None:
        if not here.is_over:
            here.is_over = True
            world = self._network.world
            for other in self._network.others(self._rank):
                world.at(world.delay(), lambda other=other: self._network.ring(other))  # type: ignore[misc]
