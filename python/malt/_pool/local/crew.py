"""The ranks of a pool, as the pool's process sees them: starts them again, shows their output.

Ctrl-C may raise KeyboardInterrupt between any two steps here. Nothing that is half-done then is
mended piece by piece: `is_whole` is False, and `repair` starts all ranks anew.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from malt._errors import Error, TimeoutError  # noqa: A004
from malt._launch import channel
from malt._launch.output import Sink, Stream
from malt._pool.local import nursery, worker
from malt._pool.local.queues import Queue
from malt._pool.memory import Memory
from malt._pool.stopped import Stopped
from malt._rendezvous.exit_code import describe_end
from malt._uninterrupted import uninterrupted

_START_SECONDS = 60.0
_MOST_STARTS = 10  # of ranks that end before they are ready, one after the other
_MOST_NURSERIES = 3  # that end before a rank is ready, one after the other
_KILL_SECONDS = 10.0
LOOK_SECONDS = 1.0  # at whether ranks are stopped


class Event(NamedTuple):
    """A rank has answered or ended.

    "done", "failed": with its call, the parts of what it answered, how many chunks it has taken
    from others, and whether the answer is plain. "ended": with its code, and its last chunk.
    """

    rank: Rank
    kind: str
    detail: tuple[Any, ...]


class Rank:
    """One process of a rank.

    Attributes:
        call: the call that it works on, or None.
        is_ready: it has started, and not ended.
        functions, blocks, datasets: the numbers of those that it was sent; the oldest first.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.process = 0
        self.call: int | None = None
        self.is_ready = False
        self.functions: list[int] = []
        self.blocks: set[int] = set()
        self.datasets: set[int] = set()
        self.results = Memory.make(f"results-{rank}", start=worker.BOARD_BYTES)
        self.board = self.results.view[: worker.BOARD_BYTES].cast("q")
        self.board[worker.GIVEN_UP] = self.board[worker.CHUNK] = -1
        self.control, self._theirs = channel.pair()
        self.streams: list[Stream] = []

    def start(
        self, nursery_control: socket.socket, shared: Iterable[int], out: Sink, err: Sink
    ) -> None:
        """Have the nursery start it; `shared` are the descriptors of arguments and queues."""
        arguments, *queues = shared
        (our_out, their_out), (our_err, their_err) = os.pipe(), os.pipe()
        theirs = [self._theirs.fileno(), arguments, self.results.descriptor, their_out, their_err]
        try:
            message = channel.encode((nursery.START, self.rank))
            channel.send(nursery_control, message, [*theirs, *queues])
        finally:
            self._theirs.close()
            os.close(their_out)
            os.close(their_err)
            self.streams = [
                Stream(our_out, out, self.rank),
                Stream(our_err, err, self.rank),
            ]

    def send(self, *message: Any, descriptors: tuple[int, ...] = ()) -> None:
        self.send_encoded(channel.encode(message), descriptors)

    def send_encoded(self, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(OSError):  # it has ended, and the nursery says so
            channel.send(self.control, message, descriptors)

    def close(self) -> None:
        """Show the rest of its output, and let go of it. Idempotent."""
        while self.streams:
            self.streams[-1].drain(time.monotonic())
            self._finish_stream()
        self.control.close()
        self._theirs.close()
        self.board.release()
        self.results.close()

    @uninterrupted
    def _finish_stream(self) -> None:
        self.streams.pop().finish()


class _Shown(Sink):
    """The present output of the pool's process: in a notebook, the cell."""

    def __init__(self, name: str) -> None:
        super().__init__(-1)
        self._name = name

    def write(self, data: bytes) -> None:
        stream = getattr(sys, self._name)
        if stream is not None:
            stream.write(data.decode(errors="replace"))
            stream.flush()


class Crew:
    """All ranks of a pool. Used by one thread at a time.

    Attributes:
        ranks: the process of each rank that was started last.
        arguments: memory that this process writes, and all ranks read.
        queues: of chunks, by rank.
        restarts: how many ranks were started again.
        is_whole: the attributes say what is the case.
    """

    def __init__(self, ranks: int) -> None:
        self.is_whole = False
        self.ranks: list[Rank] = []
        self.arguments = Memory.make("arguments")
        self.queues = [Queue() for _ in range(ranks)]
        self.restarts = 0
        self._unready_ends = self._unready_nurseries = 0  # one after the other
        self._sinks = _Shown("stdout"), _Shown("stderr")
        self._nursery: subprocess.Popen[bytes] | None = None
        self._stopped, self._look_at = Stopped(), 0.0
        self._epoll = select.epoll()
        self._sources: dict[int, Rank | Stream | None] = {}  # None: the nursery
        try:
            self._start_all()
            self.await_ready(ranks)
        except BaseException:
            self.close()
            raise

    def busy(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.call is not None]

    def ready(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.is_ready]

    def await_ready(self, ranks: int) -> None:
        """Wait until so many ranks have started."""
        deadline = time.monotonic() + _START_SECONDS
        while len(self.ready()) < ranks:
            if time.monotonic() > deadline:
                missing = [rank.rank for rank in self.ranks if not rank.is_ready]
                raise TimeoutError(
                    f"malt.Pool: not all ranks have started within {_START_SECONDS:g} s", missing
                )
            self.wait(0.5)

    def signal(self, rank: Rank, number: int) -> None:
        with contextlib.suppress(OSError):
            channel.send(self._control, channel.encode((nursery.SIGNAL, rank.process, number)))

    def kill(self, ranks: Iterable[Rank]) -> None:
        """Kill ranks, and wait until they have ended. Others are started in their place."""
        left = list(ranks)
        for rank in left:
            self.signal(rank, signal.SIGKILL)
        self._await_end(left)
        if self._nursery is not None and any(rank in self.ranks for rank in left):
            self._nursery.kill()  # it does not hear the signals, as if stopped; the ranks end too
            self._await_end(left)

    def _await_end(self, ranks: Sequence[Rank]) -> None:
        deadline = time.monotonic() + _KILL_SECONDS
        while any(rank in self.ranks for rank in ranks) and time.monotonic() < deadline:
            self.wait(0.5)

    def kill_stopped(self) -> None:
        """Kill ranks that work, and the nursery, if they have been stopped for too long.

        That they have ended is heard of later, as if somebody else had killed them.
        """
        if (now := time.monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        at_work = {rank.process: rank for rank in self.busy()}
        nursery = self._nursery
        processes = [*at_work, *([] if nursery is None else [nursery.pid])]
        for process in self._stopped.beyond_silence(processes):
            if process in at_work:
                name = f"rank {at_work[process].rank}"
                self.signal(at_work[process], signal.SIGKILL)
            elif nursery is not None:
                name = "the process that starts the ranks"
                nursery.kill()
            warnings.warn(
                f"malt.Pool: {name} (process {process}) has been stopped for "
                f"{self._stopped.silence:g} s, and is started again; a longer limit: MALT_SILENCE",
                RuntimeWarning,
                stacklevel=5,
            )

    def wait(self, seconds: float) -> list[Event]:
        """Wait for events, for at most so long; show output that comes meanwhile."""
        events: list[Event] = []
        has_nursery_spoken = False
        for descriptor, _ in self._epoll.poll(self._until_show(seconds)):
            source = self._sources.get(descriptor)
            if isinstance(source, Rank):
                events += self._hear(source)
            elif isinstance(source, Stream):
                self._show(source)
            else:
                has_nursery_spoken = True
        if has_nursery_spoken:  # last: what a rank has said before its end comes before its end
            self.is_whole = False
            events += self._hear_nursery()
            self.is_whole = True
        return events

    def repair(self) -> None:
        """Start all ranks anew, if this object is not whole."""
        if not self.is_whole:
            self._end_all()
            self._epoll.close()
            self._epoll = select.epoll()
            self._sources.clear()
            self.restarts += len(self.queues)
            self._start_all()

    def show_output(self) -> None:
        """Show all that the ranks have written by now."""
        for descriptor, _ in self._epoll.poll(0):
            source = self._sources.get(descriptor)
            if isinstance(source, Stream):
                source.drain(time.monotonic())
        for rank in self.ranks:
            for stream in rank.streams:
                if stream.show_at() is not None:
                    stream.show()

    def close(self) -> None:
        """End all ranks. Idempotent."""
        self._end_all()
        self._free()

    @uninterrupted
    def _free(self) -> None:
        for queue in self.queues:
            queue.close()
        self.queues = []
        self.arguments.close()
        self._epoll.close()

    # Starts and ends

    def _start_all(self) -> None:
        self._start_nursery()
        self.ranks = [self._start(rank) for rank in range(len(self.queues))]
        self.is_whole = True

    def _end_all(self) -> None:
        if self._nursery is not None:
            self._control.close()
            try:
                self._nursery.wait(_KILL_SECONDS)
            except subprocess.TimeoutExpired:  # it is stopped
                self._nursery.kill()
                self._nursery.wait()
            self._nursery = None
        for rank in self.ranks:
            rank.close()
        self.ranks = []

    def _start_nursery(self) -> None:
        self._control, theirs = channel.pair()
        with theirs:
            self._nursery = nursery.start(theirs, len(self.queues))
        self._watch(self._control.fileno(), None)

    def _start(self, number: int) -> Rank:
        rank = Rank(number)
        try:
            shared = [self.arguments.descriptor, *(queue.source for queue in self.queues)]
            rank.start(self._control, shared, *self._sinks)
        except OSError:  # the nursery has ended, which will be heard
            pass
        self._watch(rank.control.fileno(), rank)
        for stream in rank.streams:
            self._watch(stream.descriptor, stream)
        return rank

    def _end(self, rank: Rank, code: int, *, by_nursery: bool = False) -> Iterator[Event]:
        """A process of a rank has ended: start another."""
        yield from self._hear(rank)
        if not by_nursery and not rank.is_ready:
            self._unready_ends += 1
            if self._unready_ends >= _MOST_STARTS:
                raise Error(
                    f"malt.Pool: rank {rank.rank} {describe_end(code)} before it was ready; so did "
                    f"{_MOST_STARTS - 1} before it"
                )
        yield Event(rank, "ended", (code, rank.board[worker.CHUNK]))
        for descriptor in (rank.control.fileno(), *(stream.descriptor for stream in rank.streams)):
            self._forget(descriptor)
        rank.close()
        rank.call, rank.is_ready = None, False
        self.restarts += 1
        self.ranks[rank.rank] = self._start(rank.rank)

    def _lose_nursery(self) -> Iterator[Event]:
        """The nursery has ended, and so have all ranks."""
        assert self._nursery is not None
        code = self._nursery.wait()
        self._unready_nurseries += 1
        if self._unready_nurseries >= _MOST_NURSERIES:
            raise Error(
                f"malt.Pool: the process that starts the ranks {describe_end(code)}; its output "
                "above says why"
            )
        self._forget(self._control.fileno())
        self._control.close()
        self._start_nursery()
        for rank in list(self.ranks):
            yield from self._end(rank, -signal.SIGKILL, by_nursery=True)

    # Their answers

    def _hear(self, rank: Rank) -> Iterator[Event]:
        """Hear all that a rank has said; its end is heard of by the nursery."""
        while True:
            try:
                (kind, *detail), _ = channel.receive(rank.control, channel.NOW)
            except BlockingIOError:
                return
            except EOFError:
                self._forget(rank.control.fileno())
                return
            if kind == "ready":
                rank.is_ready = True
                (rank.process,) = detail
                self._unready_ends = self._unready_nurseries = 0
            else:
                call, parcel, *rest = detail
                if call != rank.call:  # it was given up
                    continue
                rank.call = None
                # Views, which outlive the rank: it may have ended since.
                yield Event(rank, kind, (call, rank.results.get(parcel), *rest))
                return

    def _hear_nursery(self) -> Iterator[Event]:
        while True:
            try:
                (kind, *detail), _ = channel.receive(self._control, channel.NOW)
            except BlockingIOError:
                return
            except EOFError:
                yield from self._lose_nursery()
                return
            if kind == "started":
                number, process = detail
                self.ranks[number].process = process
            else:
                process, code = detail
                for rank in self.ranks:
                    if rank.process == process:
                        yield from self._end(rank, code)
                        break

    def _show(self, stream: Stream) -> None:
        if not stream.read(time.monotonic()):
            self._forget(stream.descriptor)

    def _until_show(self, seconds: float) -> float:
        """Return how long to wait, so that unfinished lines are shown in time."""
        now = time.monotonic()
        for rank in self.ranks:
            for stream in rank.streams:
                if (at := stream.show_at()) is not None:
                    if at <= now:
                        stream.show()
                    else:
                        seconds = min(seconds, at - now)
        return seconds

    def _watch(self, descriptor: int, source: Rank | Stream | None) -> None:
        self._sources[descriptor] = source
        self._epoll.register(descriptor, select.EPOLLIN)

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._sources:
            del self._sources[descriptor]
            self._epoll.unregister(descriptor)
