"""What simulated processes have in the place of `threading` and `queue`, and interrupts.

An interrupt is an exception that another thread sends: SIGINT's, or malt's own Stop. It comes out
of the thread's next step of the simulation, or out of the wait that the thread is in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from rejoining import machines
from rejoining.machines import Waiters, World


class Interrupts:
    """Those of all threads; `at_steps`: they come at any step, and not in waits alone."""

    def __init__(self, world: World, *, at_steps: bool = True) -> None:
        self._world = world
        self._at_steps = at_steps
        self._sent: dict[Any, type[BaseException]] = {}

    def send(self, task: Any, kind: type[BaseException]) -> None:
        self._sent[task] = kind
        self._world.wake(task, 0.0)

    def forget(self, task: Any) -> None:
        self._sent.pop(task, None)

    def check_at_step(self) -> None:
        if self._at_steps:
            self.check()

    def check(self) -> None:
        """Raise what was sent to the thread that calls."""
        if kind := self._sent.pop(self._world.here(), None):
            raise kind


class Time(machines.Time):
    """For `time`."""

    def __init__(self, world: World, interrupts: Interrupts) -> None:
        super().__init__(world)
        self._interrupts = interrupts

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._interrupts.check()


class RLock:
    """A lock that its holder may take again."""

    def __init__(self, world: World, interrupts: Interrupts) -> None:
        self._world = world
        self._interrupts = interrupts
        self._holder: Any = None
        self._depth = 0
        self._queue = Waiters(world)

    def __enter__(self) -> None:
        self._world.step()
        self._interrupts.check_at_step()
        task = self._world.here()
        while self._holder not in (None, task):
            self._queue.add()
            self._world.park()
            self._interrupts.check_at_step()
        self._holder = task
        self._depth += 1

    def locked(self) -> bool:
        return self._holder is not None

    def acquire(self, timeout: float = math.inf) -> bool:
        """Acquire it as a lock that its holder may not take again, and any thread may release."""
        deadline = self._world.now + timeout
        self._world.step()
        while self._holder is not None and self._world.now < deadline:
            self._queue.add()
            self._world.park(deadline)
            self._interrupts.check()
        if self._holder is not None:
            return False
        self.__enter__()
        return True

    def release(self) -> None:
        self.__exit__()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            self._queue.wake()


class Event:
    def __init__(self, world: World, interrupts: Interrupts) -> None:
        self._world = world
        self._interrupts = interrupts
        self._is_set = False
        self._waiting = Waiters(world)

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiting.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, seconds: float | None = None) -> bool:
        deadline = math.inf if seconds is None else self._world.now + seconds
        while not self._is_set and self._world.now < deadline:
            self._waiting.add()
            self._world.park(deadline)
            self._interrupts.check()
        return self._is_set


class Thread:
    def __init__(
        self, world: World, target: Callable[[], object], name: str = "", daemon: bool = False
    ) -> None:
        self._world = world
        self._target = target
        self.name = name

    def start(self) -> None:
        self._world.here().process.start(self._run)

    def _run(self) -> None:
        self._world.here().thread = self  # type: ignore[attr-defined]
        self._target()

    def join(self, _: float | None = None) -> None:
        raise AssertionError("no program of the model ends its threads")


class Threading:
    """For `threading`."""

    def __init__(self, world: World, interrupts: Interrupts) -> None:
        self._world = world
        self._interrupts = interrupts

    def Lock(self) -> RLock:
        return RLock(self._world, self._interrupts)

    RLock = Lock

    def Event(self) -> Event:
        return Event(self._world, self._interrupts)

    def Thread(self, target: Callable[[], object], name: str = "", daemon: bool = False) -> Thread:
        return Thread(self._world, target, name, daemon)

    def current_thread(self) -> object:
        return getattr(self._world.here(), "thread", self)

    def main_thread(self) -> object:
        return None  # none of the model's is interrupted as Python's main thread is

    def get_ident(self) -> Any:
        return self._world.here()


class SimpleQueue:
    """For `queue.SimpleQueue`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiting = Waiters(world)

    def put(self, item: object) -> None:
        self._items.append(item)
        self._waiting.wake()

    def get(self) -> Any:
        self._world.step()
        while not self._items:
            self._waiting.add()
            self._world.park()
        return self._items.popleft()
