"""What the ranks of one group see of one another: messages and deaths, in order, and late.

Each rank has a host of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from rejoining.machines import Process, Waiters, World


class Network:
    """One group's.

    Attributes:
        live: by rank, the ranks that it takes for live.
        evicted: by rank, the ranks that it knows to be evicted.
        on_message: is called whenever something is sent.
    """

    def __init__(
        self,
        world: World,
        processes: dict[int, Process],
        on_message: Callable[[], object],
    ) -> None:
        self.world = world
        self.processes = processes
        self.on_message = on_message
        self.live = {rank: set(processes) for rank in processes}
        self.evicted: dict[int, set[int]] = {rank: set() for rank in processes}
        self.parts: dict[str, dict[int, Any]] = {}  # of what the group's ranks have made, by name
        self._bells = {rank: Waiters(world) for rank in processes}
        self._at_change: dict[int, list[Callable[[int], object]]] = {r: [] for r in processes}
        self._on_way: dict[tuple[int, int], deque[tuple[float, Callable[[], object]]]] = {}
        self._last: dict[tuple[int, int], float] = {}
        # What a dead rank had not sent to another one by then never comes.
        self._cut: dict[tuple[int, int], float] = {}
        for rank, process in processes.items():
            process.at_end.append(lambda _, rank=rank: self._die(rank))  # type: ignore[misc]
            if process.is_dead:
                self._die(rank)

    def send(self, sender: int, to: int, arrive: Callable[[], object]) -> None:
        """Have it done at rank `to`, later."""
        if self.processes[sender].is_dead:  # and leaves what it was doing
            return
        self.on_message()
        sent = self.world.now
        when = max(self._last.get((sender, to), 0.0), sent + self.world.delay())
        self._last[sender, to] = when

        self._on_way.setdefault((sender, to), deque()).append((sent, arrive))
        self.world.at(when - sent, lambda: self._bring(sender, to))

    def _bring(self, sender: int, to: int) -> None:
        """Bring the next message: times are rounded, and so are in order only nearly."""
        sent, arrive = self._on_way[sender, to].popleft()
        if sent <= self._cut.get((sender, to), sent) and not self.processes[to].is_dead:
            arrive()
            self.ring(to)

    def to_others(self, sender: int, arrive: Callable[[int], object]) -> None:
        for to in self.processes:
            if to != sender:
                self.send(sender, to, lambda to=to: arrive(to))  # type: ignore[misc]

    def ring(self, rank: int) -> None:
        self._bells[rank].wake()

    def await_ring(self, rank: int, deadline: float) -> None:
        self._bells[rank].add()
        self.world.park(deadline)

    def at_change(self, rank: int, call: Callable[[int], object]) -> None:
        """Have call(other) made when `rank` sees that another one lives no more."""
        self._at_change[rank].append(call)

    def _die(self, rank: int) -> None:
        """Some of what it sent last may never come, or to some ranks alone."""
        now = self.world.now
        for to in self.processes:
            if to != rank:
                self._cut[rank, to] = now - self.world.random.choice((0.0, self.world.delay()))
                last = max(self._last.get((rank, to), 0.0), now)
                self.world.at(
                    last - now + self.world.delay(),
                    lambda to=to: self.mark(to, rank),  # type: ignore[misc]
                )

    def mark(self, to: int, rank: int) -> None:
        if rank in self.live[to]:
            self.live[to].remove(rank)
            for call in self._at_change[to]:
                call(rank)
            self.ring(to)

    def evict(self, victim: int) -> None:
        def hear(to: int) -> None:
            self.evicted[to].add(victim)
            if to == victim:
                self.ring(to)
            else:
                self.mark(to, victim)

        for to in self.processes:
            self.world.at(self.world.delay(), lambda to=to: hear(to))  # type: ignore[misc]

    def others(self, rank: int) -> Iterable[int]:
        return [other for other in self.processes if other != rank]
