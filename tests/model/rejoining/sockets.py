"""Sockets between simulated processes, and what waits for them: bytes come in order, and late."""

from __future__ import annotations

import builtins
import errno
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from malt._rendezvous import wire
from malt._rendezvous.connection import Connection
from rejoining.machines import Process, Waiters, World


class Socket:
    """One end of a stream. What its process has not read when it dies is lost to nobody else."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self.peer: Socket = self
        self.who: Any = None  # what the end that called says about itself
        self.is_closed = False
        self._has_ended = False  # the other end has
        self._is_reset = False  # and will take no more, as this one knows
        self._inbox = bytearray()
        self._limit: float | None = None
        self._last = 0.0  # when what was sent last arrives
        self._waiting = Waiters(world)
        process.sockets.append(self)

    def setblocking(self, _: bool) -> None:
        self._limit = 0.0

    def settimeout(self, seconds: float) -> None:
        self._limit = seconds

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", id(self)

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def shake_hands(self) -> bytes:
        """All who call have the key."""
        return bytes(32)

    # Sending

    def send(self, data: memoryview | bytes) -> int:
        self._world.step()
        if self.is_closed:
            raise OSError(errno.EBADF, "closed")
        if self._is_reset:
            raise BrokenPipeError
        size = len(data)
        if size > 1 and self._world.random.random() < 0.01:
            size = self._world.random.randrange(1, size)
        if self.peer.is_closed:
            # What is sent to one who has gone is answered so.
            self._later(self._reset, 0.0 if self._world.random.random() < 0.7 else None)
        else:
            self._in_order(self.peer._arrive, bytes(data[:size]))
        return size

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]

    def _in_order(self, call: Callable[..., object], *args: object) -> None:
        self._last = max(self._last, self._world.now + self._world.delay())
        self._world.at(self._last - self._world.now, lambda: call(*args))

    def _later(self, call: Callable[[], object], seconds: float | None) -> None:
        if seconds == 0.0:
            call()
        else:
            self._world.at(self._world.delay(), call)

    def close(self) -> None:
        self._world.step()
        self.let_go()

    def let_go(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._in_order(self.peer._end)
        self._waiting.wake()

    def cut(self) -> None:
        """What is between the two ends resets both."""
        for end in (self, self.peer):
            end._later(end._reset, None)

    # What comes

    def _arrive(self, data: bytes) -> None:
        if not self.is_closed:
            self._inbox += data
            self._waiting.wake()

    def _end(self) -> None:
        self._has_ended = True
        self._waiting.wake()

    def _reset(self) -> None:
        self._is_reset = True
        self._waiting.wake()

    @property
    def is_readable(self) -> bool:
        return bool(self._inbox) or self._has_ended or self._is_reset or self.is_closed

    def await_change(self) -> None:
        """Have the thread that calls, and parks next, woken when something comes."""
        self._waiting.add()

    def recv(self, most: int) -> bytes:
        self._world.step()
        deadline = math.inf if self._limit is None else self._world.now + self._limit
        while True:
            if self.is_closed:
                raise OSError(errno.EBADF, "closed")
            if self._inbox:
                data = bytes(self._inbox[:most])
                del self._inbox[:most]
                return data
            if self._has_ended:
                return b""
            if self._is_reset:
                raise ConnectionResetError
            if self._limit == 0.0:
                raise BlockingIOError
            if self._world.now >= deadline:
                raise builtins.TimeoutError
            self.await_change()
            self._world.park(deadline)

    def recv_into(self, view: memoryview) -> int:
        data = self.recv(len(view))
        view[: len(data)] = data
        return len(data)


class Listener:
    """Where the launcher listens; it lets in all who call."""

    host, port, last_refusal = "127.0.0.1", 1, ""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._queue: list[Socket] = []
        self._waiting = Waiters(world)
        self.is_closed = False
        process.sockets.append(self)

    def expect(self, _: object) -> None:
        pass

    expect_from = expect

    def close(self) -> None:
        self.is_closed = True

    let_go = close

    def offer(self, theirs: Socket) -> None:
        ours = Socket(self._world, self._process)
        ours.peer, theirs.peer = theirs, ours
        self._queue.append(ours)
        self._waiting.wake()

    @property
    def is_readable(self) -> bool:
        return bool(self._queue)

    def await_change(self) -> None:
        self._waiting.add()

    def ready(self) -> list[Connection]:
        called, self._queue = self._queue, []
        return [
            Connection(one, "127.0.0.1", *one.peer.who, *wire.sealers(bytes(32))) for one in called
        ]


class SocketModule:
    """For `socket`, of processes that know one listener."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.listener: Listener | None = None

    def listen(self, selector: _Selector) -> Listener:
        """For the rendezvous' listener."""
        assert self.listener is not None
        selector.register(self.listener, SelectorsModule.EVENT_READ)
        return self.listener

    def create_connection(self, _: object, seconds: float) -> Socket:
        self._world.park(self._world.now + self._world.delay())
        if self.listener is None or self.listener.is_closed:
            raise ConnectionRefusedError
        return Socket(self._world, self._world.here().process)

    def call(self, connection: Socket, _: bytes, who: object, __: object) -> Socket:
        """For `channel.call`."""
        connection.who = who
        if self.listener is not None:
            self.listener.offer(connection)
        return connection

    def socketpair(self) -> tuple[Socket, Socket]:
        process = self._world.here().process
        ours, theirs = Socket(self._world, process), Socket(self._world, process)
        ours.peer, theirs.peer = theirs, ours
        return ours, theirs


class _Poll:
    def __init__(self, world: World) -> None:
        self._world = world
        self._events: list[tuple[Socket, int]] = []

    def register(self, connection: Socket, event: int) -> None:
        self._events.append((connection, event))

    def poll(self) -> None:
        (connection, event), *_ = self._events
        while event == SelectModule.POLLIN and not connection.is_readable:
            connection.await_change()
            self._world.park()
        self._world.step()


class SelectModule:
    """For `select`."""

    POLLIN, POLLOUT = 1, 4

    def __init__(self, world: World) -> None:
        self._world = world

    def poll(self) -> _Poll:
        return _Poll(self._world)


class Key(NamedTuple):
    fileobj: Any
    data: Any


class _Selector:
    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: dict[Any, tuple[int, Key]] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> None:
        self._keys[fileobj] = events, Key(fileobj, data)

    modify = register

    def unregister(self, fileobj: Any) -> None:
        del self._keys[fileobj]

    def close(self) -> None:
        self._keys.clear()

    @property
    def is_readable(self) -> bool:
        return any(self._found(fileobj) for fileobj in self._keys)

    def await_change(self) -> None:
        for fileobj in self._keys:
            fileobj.await_change()

    def _found(self, fileobj: Any) -> int:
        return (1 if fileobj.is_readable else 0) | (self._keys[fileobj][0] & 2)

    def select(self, seconds: float | None) -> list[tuple[Key, int]]:
        """In an order that nothing says anything about."""
        world = self._world
        deadline = math.inf if seconds is None else world.now + seconds
        while True:
            ready = [
                (key, found)
                for fileobj, (_, key) in self._keys.items()
                if (found := self._found(fileobj))
            ]
            if ready or world.now >= deadline:
                world.random.shuffle(ready)
                return ready
            self.await_change()
            world.park(deadline)


class SelectorsModule:
    """For `selectors`."""

    EVENT_READ, EVENT_WRITE = 1, 2

    def __init__(self, world: World) -> None:
        self._world = world

    def DefaultSelector(self) -> _Selector:
        return _Selector(self._world)
