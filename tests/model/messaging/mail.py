"""Mail among simulated ranks: as src/dstorm/collective/mail.hpp has it."""

from __future__ import annotations

from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

from malt._errors import PeerError
from messaging.network import Network
from messaging.threads import Interrupts


class Office:
    """The mail of a job, from outside."""

    def __init__(self, network: Network, interrupts: Interrupts) -> None:
        self.network = network
        self.interrupts = interrupts
        self.mails: dict[int, Mail] = {}
        # By receiver and sender: what has come.
        self.inbox: dict[int, dict[int, deque[bytes]]] = {
            to: {sender: deque() for sender in network.processes} for to in network.processes
        }
        self.left: dict[int, set[int]] = {rank: set() for rank in network.processes}
        self.made: dict[int, set[int]] = {rank: set() for rank in network.processes}


class Mail:
    """As `malt._core.Mail`; `group` has the office and the rank."""

    def __init__(self, group: SimpleNamespace, name: str, slot_bytes: int, depth: int) -> None:
        self._office: Office = group.office
        self._network = self._office.network
        self._world = self._network.world
        self.rank: int = group.rank
        self._slot_bytes = slot_bytes
        self._free = depth
        self._held: Counter[int] = Counter()  # slots, by receiver
        self._backlog: deque[tuple[int, bytes]] = deque()
        self._user: Any = None
        self._office.mails[self.rank] = self
        self._network.at_change(self.rank, self._free_slots)
        self._network.to_others(self.rank, lambda to: self._office.made[to].add(self.rank))
        while not {*self._live()} <= self._office.made[self.rank] | {self.rank}:
            self._network.await_ring(self.rank, float("inf"))

    def live(self) -> list[int]:
        self._world.step()
        return self._live()

    def _live(self) -> list[int]:
        here = self._network.live[self.rank] - self._office.left[self.rank]
        return sorted(here | {self.rank})

    def send(self, to: int, head: bytes, body: Any) -> None:
        self._begin()
        message = head + bytes(body)
        if len(message) > self._slot_bytes:
            raise ValueError("a message is longer than a slot")
        if to in self._live():
            if self._free and not self._backlog:
                self._publish(to, message)
            else:
                self._backlog.append((to, message))
        self._end()

    def pump(self) -> int:
        self._begin()
        while self._backlog and (self._free or self._backlog[0][0] not in self._live()):
            to, message = self._backlog.popleft()
            if to in self._live():
                self._publish(to, message)
        self._end()
        return len(self._backlog)

    def receive(self) -> list[tuple[int, bytes]]:
        self._begin()
        received = []
        for sender, came in self._office.inbox[self.rank].items():
            if sender in self._network.evicted[self.rank]:
                continue
            while came:
                received.append((sender, came.popleft()))
                self._network.send(
                    self.rank,
                    sender,
                    lambda sender=sender: self._taken(sender),  # type: ignore[misc]
                )
        self._end()
        if received:  # an interrupt here loses them
            self._world.step()
            self._office.interrupts.check()
        return received

    def wait(self, live: list[int], timeout: float) -> bool:
        self._begin()
        deadline = self._world.now + timeout
        try:
            while not (self._has_news() or self._live() != live):
                if self._world.now >= deadline:
                    return False
                self._network.await_ring(self.rank, deadline)
                self._office.interrupts.check()
                self._check_standing()
            return True
        finally:
            self._user = None

    def shut(self) -> None:
        self._network.to_others(self.rank, self._see_leave)

    def _see_leave(self, to: int) -> None:
        self._office.left[to].add(self.rank)
        if mail := self._office.mails.get(to):
            mail._free_slots(self.rank)

    @property
    def kept(self) -> int:
        """Messages that this rank has in memory."""
        return len(self._backlog)

    # Inside

    def _begin(self) -> None:
        self._world.step()
        self._office.interrupts.check()
        self._check_standing()
        task = self._world.here()
        if self._user not in (None, task):
            self._world.complain(f"P5: two threads of rank {self.rank} use the mail at once")
        self._user = task

    def _end(self) -> None:
        self._user = None

    def _check_standing(self) -> None:
        if self.rank in self._network.evicted[self.rank]:
            raise PeerError(f"rank {self.rank} was evicted from the job", [])

    def _has_news(self) -> bool:
        inbox = self._office.inbox[self.rank]
        evicted = self._network.evicted[self.rank]
        if any(came and sender not in evicted for sender, came in inbox.items()):
            return True
        return bool(self._backlog and self._free)

    def _publish(self, to: int, message: bytes) -> None:
        self._free -= 1
        self._held[to] += 1
        came = self._office.inbox[to][self.rank]
        self._network.send(self.rank, to, lambda: came.append(message))

    def _taken(self, sender: int) -> None:
        """A slot of the sender's is free again."""
        mail = self._office.mails[sender]
        if mail._held[self.rank] > 0:
            mail._held[self.rank] -= 1
            mail._free += 1

    def _free_slots(self, dead: int) -> None:
        self._free += self._held.pop(dead, 0)
