"""What `malt.ps.Shared` uses of dStorm, over the groups of `groups`, and ranks that add to an
array.

H1  After a drain, the ranks that were in it have the same array.
H2  It has all that these ranks had added before, once.
H3  Of a rank that has died or left it has what some number of its exchanges had sent: no less
    than it knew to be acknowledged, and no part of an exchange.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from malt._errors import TimeoutError  # noqa: A004
from malt._shared.shared import Shared
from rejoining.groups import Group, Vector

_LIVES = 24  # of a rank
_SLOTS = 2  # of the array that a life adds to at a time, far from one another
_SHORT = (0.01, 0.1, None)  # seconds, of calls that are made again


class Messages(Vector):
    """As `malt._core.Messages`."""

    def __init__(self, group: Group, name: str, _bytes: int, depth: int, rejoins: bool) -> None:
        self._resumed: dict[int, int] = {}
        self._old: list[tuple[int, bytes, bool]] = []  # received in earlier groups
        super().__init__(
            group=group, name=name, rejoins=rejoins, own_count=0, policy="queue", depth=depth
        )

    def _open(self, group: Group) -> None:
        if self._group is not None and self._group is not group:
            self._old += [(rank, data, True) for rank, data, _ in self._arrived()]
        super()._open(group)

    def try_send(self, message: bytes) -> bool:
        group = self._begin()
        if self.blockers():
            return False
        self.iteration += 1
        iteration, key = self.iteration, (self.name, group.rank)

        def arrive(there: Any) -> None:
            there.updates.setdefault(key, []).append(message)
            there.clocks[key] = iteration

        group._meeting.change(group.rank, arrive)
        return True

    def receive(self) -> list[tuple[int, bytes, bool]]:
        self._begin()
        old, self._old = self._old, []
        return old + self._arrived()

    def _arrived(self) -> list[tuple[int, bytes, bool]]:
        return [
            (each.rank, each.values, False)
            for each in self._take()
            if self._group is not None and each.rank != self._group.rank
        ]

    def live(self) -> list[int]:
        group = self._begin()
        closed = group._host.closed
        return [
            r
            for r in group.members
            if r == group.rank or (group._is_live(r) and (self.name, r) not in closed)
        ]

    def blockers(self) -> list[int]:
        group = self._begin()
        meeting, sent = group._meeting, len(self._sent())
        return [
            r
            for r in self.live()
            if r != group.rank
            and sent
            - meeting.hosts[meeting.processes[r].host].taken.get((self.name, group.rank, r), 0)
            >= self._depth
        ]

    def _sent(self) -> list[Any]:
        group = self._group
        assert group is not None
        found: list[Any] = group._host.updates.get((self.name, group.rank), [])
        return found

    def wait(self, for_room: bool, live: Sequence[int], _: str, timeout: float) -> bool:
        group = self._begin()
        host = group._host

        def is_news() -> bool:
            has_message = bool(self._old) or any(
                len(host.updates.get((self.name, r), []))
                > host.taken.get((self.name, r, group.rank), 0)
                for r in group.members
                if r != group.rank
            )
            is_room = for_room and not self.blockers()
            return has_message or is_room or self.live() != [*live]

        return group.until(is_news, timeout)

    def shut(self) -> None:
        if not self.is_closed:
            self.close()

    def stats(self) -> Any:
        return SimpleNamespace()


class Reducer:
    """As `malt._core.Reducer`: all ranks that go on get the sum of the same ranks' values.

    How dStorm brings that about is simulated elsewhere; here the first that has all live ranks'
    values decides for all.
    """

    def __init__(self, group: Group, dtype: str, count: int, name: str) -> None:
        group.exchange(f"shape of reducer {name}", b"")
        self._group, self._name, self._dtype, self._count = group, name, np.dtype(dtype), count
        self.count = 0

    def allreduce(self, data: int, count: int, mean: bool, timeout: float) -> list[int]:
        group, meeting = self._group, self._group._meeting
        group._on_step("a reduction")
        group.world.step()
        group.check_standing()
        memory = (ctypes.c_byte * (count * self._dtype.itemsize)).from_address(data)
        here = np.frombuffer(memory, self._dtype)
        key = self._name, self.count
        given, decided = meeting.given.setdefault(key, {}), meeting.decided
        values = here.copy()
        given[group.rank] = values
        host = group._host

        def post(there: Any) -> None:
            there.reduced.setdefault(key, set()).add(group.rank)

        if group.rank not in host.reduced.get(key, ()):
            meeting.change(group.rank, post)

        def is_decided() -> bool:
            if key not in decided:
                come = host.reduced.get(key, set())
                if any(group._is_live(r) and r not in come for r in group.members):
                    return False
                ranks = sorted(r for r in given if r in come)
                total = np.sum([given[r] for r in ranks], axis=0, dtype=self._dtype)
                decided[key] = ranks, total / len(ranks) if mean else total
                for there in meeting.hosts.values():
                    group.world.at(group.world.delay(), there.ring)
            return True

        if not group.until(is_decided, timeout):
            come = host.reduced.get(key, set())
            missing = [r for r in group.members if group._is_live(r) and r not in come]
            raise TimeoutError(f"allreduce of {self._name}: {missing}", missing)
        group.check_standing()
        ranks, total = decided[key]
        here[:] = total
        self.count += 1
        return [r for r in ranks if r != group.rank]

    def shut(self) -> None:
        pass


class Adding:
    """One life's part: it adds ones to places of its own of an array that all ranks share."""

    def __init__(self, draw: Any, size: int, rank: int, restarts: int, dtype: Any) -> None:
        self._draw = draw
        self._rank = rank
        self._place = rank * _LIVES + restarts % _LIVES
        self._size = size
        self.shared = Shared(np.zeros(_SLOTS * size * _LIVES, dtype), name="s")
        self.added = 0
        self.in_exchange: list[int] = [0]  # what it had added, by exchange
        self.acknowledged = 0
        self.in_drain = 0  # what it had added at its last drain

    def add(self) -> None:
        for slot in range(_SLOTS):
            self.shared.array[slot * self._size * _LIVES + self._place] += 1
        self.added += 1

    def exchange(self) -> None:
        staleness = self._draw.choice((None, None, 4))
        while True:
            try:
                self.shared.exchange(staleness=staleness, timeout=self._draw.choice(_SHORT))
                break
            except TimeoutError:
                pass
        self.note()
        if self._draw.random() < 0.3:
            self.shared.poll()

    def note(self) -> None:
        self.acknowledged = max(self.acknowledged, self.shared.acknowledged)

    def drain(self) -> list[int]:
        self.in_drain = self.added
        while True:
            try:
                return self.shared.drain(timeout=self._draw.choice(_SHORT))
            except TimeoutError:
                pass

    def of(self, other: Adding) -> list[int]:
        """What this rank's array has of another life's, by slot."""
        step = self._size * _LIVES
        return [int(self.shared.array[slot * step + other._place]) for slot in range(_SLOTS)]
