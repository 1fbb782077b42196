"""Machines in miniature: processes with a clock of their own, in one thread, from a seed.

The code under test runs as it is, with modules of this package's in the place of `time`,
`threading`, `socket`, `select` and `selectors`. Each of its threads is a greenlet. It goes on until
it waits, or until the seed has it descheduled where it might be: at a lock, a message, a look at
shared memory. A process may be stopped there, and die there.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

# How long a thread is kept from its core, at most, where the seed has it so.
_LONGEST_ABSENCE = 0.02


class Process:
    """One process of a host. `blame` is what has been done to it: it may fail from then on."""

    def __init__(self, world: World, host: int, name: str) -> None:
        self.world = world
        self.host = host
        self.name = name
        self.pid = len(world.processes) + 1
        self.tasks: list[_Task] = []
        self.sockets: list[Any] = []
        self.is_dead = False
        self.stopped_until = 0.0
        self.blame = ""
        self.at_end: list[Callable[[int], None]] = []
        world.processes.append(self)

    def start(self, run: Callable[[], object]) -> None:
        """A thread more."""
        task = _Task(self, run)
        self.tasks.append(task)
        self.world.wake(task, self.world.delay())

    def stop(self, seconds: float) -> None:
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)

    def end(self, code: int) -> None:
        """Soon; at once for this process itself."""
        if self.world.process is self:
            self.world.at(0.0, lambda: self._end(code))
            raise GreenletExit
        self.world.at(0.0, lambda: self._end(code))

    def _end(self, code: int) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self.world.process = self
        for task in self.tasks:
            if not task.dead:
                task.throw(GreenletExit)
        for socket in self.sockets:
            socket.let_go()
        for tell in self.at_end:
            tell(code)


class _Task(greenlet):
    def __init__(self, process: Process, run: Callable[[], object]) -> None:
        super().__init__(run, process.world.hub)
        self.process = process
        self.turn = 0  # counts its waits, so that what ends one of them ends no later one


class World:
    """The clock, what happens at which time, and the seed."""

    def __init__(self, seed: int, say: Callable[[str], object] | None) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.processes: list[Process] = []
        self.hub = getcurrent()
        self.process: Process | None = None  # that runs now
        self.wrong = ""  # the first thing that is
        self.is_traced = say is not None
        self._say = say
        self._events: list[tuple[float, int, Any, int]] = []
        self._count = 0
        self.pace = self.random.choice((0.0, 0.02, 0.2))  # how often a thread loses its core

    def say(self, text: str) -> None:
        if self._say is not None:
            self._say(f"{self.now:9.4f} {text}")

    def complain(self, text: str) -> None:
        """An invariant does not hold."""
        self.say(text)
        self.wrong = self.wrong or text

    def delay(self) -> float:
        """Of a message, or until a thread runs: mostly short, at times long."""
        draw = self.random.random()
        return draw * 0.001 if draw < 0.9 else (draw - 0.9) * (draw - 0.9) * 10

    def at(self, seconds: float, call: Callable[[], object]) -> None:
        """Have it done so many seconds from now, outside all processes."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, call, -1))

    def run(self, limit: float) -> None:
        """Until nothing is to happen any more, something is wrong, or it is so late."""
        events = self._events
        while events and not self.wrong and self.now < limit:
            self.now, _, what, turn = heapq.heappop(events)
            if turn < 0:
                self.process = None
                what()
            elif not what.dead and what.turn == turn:
                process = what.process
                if process.stopped_until > self.now:
                    self._wake_at(process.stopped_until, what)
                    continue
                what.turn += 1
                self.process = process
                what.switch()

    def end(self) -> None:
        """End all processes, so that nothing of them is left."""
        for process in self.processes:
            process._end(-9)

    # For threads

    def wake(self, task: _Task, seconds: float) -> None:
        self._wake_at(self.now + seconds, task)

    def _wake_at(self, when: float, task: _Task) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, task, task.turn))

    def here(self) -> _Task:
        """The thread that calls."""
        task: _Task = getcurrent()  # type: ignore[assignment]
        if task.process.is_dead:
            raise GreenletExit
        return task

    def park(self, deadline: float = math.inf) -> None:
        """Wait to be woken, or until then."""
        task = self.here()
        if deadline < math.inf:
            self._wake_at(max(deadline, self.now), task)
        self.hub.switch()

    def step(self) -> None:
        """Something else may happen here, for however long."""
        if self.random.random() < self.pace:
            draw = self.random.random()
            self.park(self.now + draw * draw * draw * _LONGEST_ABSENCE)
        elif self.process is not None and self.process.stopped_until > self.now:
            self.park(self.process.stopped_until)


class Waiters:
    """Threads that wait for one thing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._turns: dict[_Task, int] = {}

    def add(self) -> None:
        """The thread that calls, and parks next."""
        task = self._world.here()
        self._turns[task] = task.turn

    def wake(self) -> None:
        for task, turn in self._turns.items():
            if task.turn == turn:
                self._world.wake(task, self._world.delay())
        self._turns.clear()


# In the place of modules


class Time:
    """For `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def thread_time(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self._world.park(self._world.now + seconds)


class Deadline:
    """For `malt._core.Deadline`."""

    def __init__(self, world: World, limit: float, left: float | None = None) -> None:
        self._world = world
        self._end = world.now + (limit if left is None else left)
        self.limit = limit

    @property
    def left(self) -> float:
        return max(0.0, self._end - self._world.now)


class Lock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._holder: _Task | None = None
        self._queue = Waiters(world)

    def acquire(self) -> None:
        self._world.step()
        task = self._world.here()
        while self._holder is not None:
            self._queue.add()
            self._world.park()
        self._holder = task

    def release(self) -> None:
        self._holder = None
        self._queue.wake()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._waiting = Waiters(world)

    def wait(self, seconds: float) -> None:
        self.release()
        self._waiting.add()
        self._world.park(self._world.now + seconds)
        self.acquire()

    def notify_all(self) -> None:
        self._waiting.wake()


class _Thread:
    def __init__(self, world: World, target: Callable[[], object]) -> None:
        self._world = world
        self._target = target

    def start(self) -> None:
        self._world.here().process.start(self._target)

    def is_alive(self) -> bool:
        return False


class Threading:
    """For `threading`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Lock(self) -> Lock:
        return Lock(self._world)

    def Condition(self) -> Condition:
        return Condition(self._world)

    def Thread(self, target: Callable[[], object], name: str, daemon: bool) -> _Thread:
        return _Thread(self._world, target)
