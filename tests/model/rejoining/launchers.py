"""A launcher's side: `malt run` as it is, but that its ranks are simulated processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from malt._launch import host_ranks, launcher
from malt._launch.options import Options
from malt._launch.recorders import Recorders
from malt._rendezvous import node_session, server
from rejoining.machines import Process, Waiters, World

KEY = bytes(32)
START_SECONDS = 30.0


class Rank:
    """As `malt._launch.rank_process.Rank`."""

    def __init__(self, host: HostRanks, rank: int, local_rank: int, process: Process) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.process = process
        self.started = process.world.now
        self.has_group = False
        self.streams: list[Any] = []
        self.leftovers: list[tuple[float, int]] = []
        self.ended: float | None = None
        self.stopped: float | None = None
        self._host = host

    def signal(self, number: int) -> None:
        if number == signal.SIGCONT:
            self.process.stopped_until = 0.0
        elif not self.process.is_dead:
            if self._host.is_stopping:
                self.process.blame = self.process.blame or "the launcher stops all"
            self._host.on_kill(self)
            self.process.end(-number)


class HostRanks(host_ranks.HostRanks):
    """The ranks of one host; `start_process` makes each one's process."""

    def __init__(
        self,
        world: World,
        options: Options,
        start_process: Callable[[int, int], Process],
        on_kill: Callable[[Rank], object],
    ) -> None:
        super().__init__([], options)
        self.on_kill = on_kill
        self.err: Any = SimpleNamespace(say=world.say)
        self.relay: Any = SimpleNamespace(interrupted=None)
        self.selector: Any = SimpleNamespace(unregister=lambda _: None)
        self.news = Waiters(world)
        self._world = world
        self._start_process = start_process
        self.unreaped: list[tuple[Any, int]] = []

    def start(
        self,
        ranks: Iterable[tuple[int, int, Mapping[str, str]]],
        size: int,
        limits: tuple[int, int],
    ) -> None:
        for rank, local_rank, environ in ranks:
            process = self._start_process(rank, int(environ["MALT_RESTARTS"]))
            started: Any = Rank(self, rank, local_rank, process)
            self.ranks.append(started)
            process.at_end.append(lambda code, started=started: self._end_soon(started, code))

    def _end_soon(self, rank: Rank, code: int) -> None:
        def end() -> None:
            self.unreaped.append((rank, code))
            self.news.wake()

        self._world.at(self._world.delay(), end)

    def reap(self) -> Iterator[tuple[Any, int]]:
        while self.unreaped:
            rank, code = self.unreaped.pop(0)
            rank.ended = self._world.now
            yield rank, code


class Launcher(launcher.Launcher):
    """The launcher of one node, in a process of its own."""

    def __init__(
        self,
        world: World,
        options: Options,
        start_process: Callable[[int, int], Process],
        on_kill: Callable[[Rank], object],
    ) -> None:
        super().__init__([], options)
        self._host: HostRanks = HostRanks(world, options, start_process, on_kill)
        self._world = world
        self._limits = (0, 0)

    def run_all(self) -> None:
        """Instead of `run`."""
        options, world, host = self._options, self._world, self._host
        running = None
        if options.node == 0:
            running = server.Server(options.nnodes, KEY)
        self._node = node_session.Node("127.0.0.1:1", KEY, options.node, options.nnodes)
        self._node.start(options.ranks, START_SECONDS, running, rejoins=True)
        self._recorders = Recorders(options, [], self._node)
        first = self._node.first
        self._start_all((first + local, local) for local in range(options.ranks))
        if running is not None:
            running.start()
        while not self._is_over or host.running():
            world.step()
            if not self._is_over and self._node.fileno().is_readable:
                self._hear()
            for rank, code in host.reap():
                self._rank_ended(rank, code)
            host.advance()
            if host.unreaped or (not self._is_over and self._node.fileno().is_readable):
                continue
            if self._is_over and not host.running():
                break
            host.news.add()
            if not self._is_over:
                self._node.fileno().await_change()
            seconds = host.seconds_to_next()
            world.park(world.now + (1000 if seconds is None else seconds))
        world.say(f"node {options.node} ends with code {self._exit_code}")


class Node(node_session.Node):
    """As it is, but for the selector."""

    def fileno(self) -> Any:
        return self._socket
