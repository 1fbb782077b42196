"""A launcher's side: `malt run` as it is, but that its ranks are simulated processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from malt._launch import launcher
from malt._rendezvous import node_session, server
from rejoining.machines import Process, Waiters, World

KEY = bytes(32)
START_SECONDS = 30.0


class Rank:
    """As `malt._launch.rank_process.Rank`."""

    def __init__(self, launcher: Launcher, rank: int, local_rank: int, process: Process) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.process = process
        self.started = process.world.now
        self.has_group = False
        self.streams: list[Any] = []
        self.leftovers: list[tuple[float, int]] = []
        self.ended: float | None = None
        self._launcher = launcher

    def signal(self, number: int) -> None:
        if number == signal.SIGCONT:
            self.process.stopped_until = 0.0
        elif not self.process.is_dead:
            if self._launcher.is_stopping:
                self.process.blame = self.process.blame or "the launcher stops all"
            self._launcher.on_kill(self)
            self.process.end(-number)


class Launcher(launcher.Launcher):
    """The launcher of one node, in a process of its own."""

    def __init__(
        self,
        world: World,
        options: launcher.Options,
        start: Callable[[int, int], Process],
        on_kill: Callable[[Rank], object],
    ) -> None:
        super().__init__([], options)
        self.on_kill = on_kill
        self.has_started = False
        self.server: server.Server | None = None
        self._world = world
        self._start_process = start
        self._ended: list[tuple[Rank, int]] = []
        self._news = Waiters(world)
        self._err: Any = SimpleNamespace(say=world.say)
        self._relay: Any = SimpleNamespace(interrupted=None)
        self._selector: Any = SimpleNamespace(unregister=lambda _: None)

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def run_all(self) -> None:
        """Instead of `run`."""
        options, world = self._options, self._world
        if options.node == 0:
            self.server = server.Server(options.nnodes, KEY)
        self._node = node_session.Node("127.0.0.1:1", KEY, options.node, options.nnodes)
        self._node.start(options.ranks, START_SECONDS, self.server, come_back=True)
        first = self._node.first
        self._start_all((first + local, local) for local in range(options.ranks))
        self.has_started = True
        if self.server is not None:
            self.server.start()
        while not self._is_over or any(rank.ended is None for rank in self._ranks):
            world.step()
            if not self._is_over and self._node.fileno().is_readable:
                self._hear()
            while self._ended:
                self._rank_ended(*self._ended.pop(0))
            self._advance_stop(world.now)
            if self._ended or (not self._is_over and self._node.fileno().is_readable):
                continue
            if self._is_over and all(rank.ended is not None for rank in self._ranks):
                break
            self._news.add()
            if not self._is_over:
                self._node.fileno().await_change()
            world.park(self._stop[0][0] if self._stop else world.now + 1000)
        world.say(f"node {options.node} ends with code {self._exit_code}")

    def _start_all(self, ranks: Iterable[tuple[int, int]]) -> None:
        for rank, local_rank in ranks:
            process = self._start_process(rank, self._starts[rank])
            started = Rank(self, rank, local_rank, process)
            self._ranks.append(started)
            process.at_end.append(lambda code, started=started: self._reap_soon(started, code))

    def _reap_soon(self, rank: Rank, code: int) -> None:
        def reap() -> None:
            self._ended.append((rank, code))
            self._news.wake()

        self._world.at(self._world.delay(), reap)


class Node(node_session.Node):
    """As it is, but for the selector."""

    def fileno(self) -> Any:
        return self._socket
