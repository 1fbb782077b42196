"""Calls on a pool's ranks: a sum over chunks, and a job of all ranks.

1. Queues are empty, and no rank works, before and after a call. So a rank that empties queues does
   so for the call that it was asked for.
2. Each chunk is in the sum once. A rank's answer has the sum of chunks that the rank has done; what
   no answer has when all ranks have answered or ended is put into the queues, and nothing else is
   in them then.
3. The memory of arguments and of a rank's results is written over only when no rank, or the pool,
   reads it: arguments at the beginning of a call, results by the rank's answer in the next call.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from malt._errors import ConfigError, PeerError
from malt._launch import channel
from malt._pool import failures, planning
from malt._pool.local import packing, worker
from malt._pool.local.crew import LOOK_SECONDS, Crew, Event, Rank
from malt._pool.local.functions import KEPT, Functions
from malt._pool.memory import Parcel
from malt._pool.store import SharedData, Store
from malt._rendezvous.driver import Rendezvous
from malt._rendezvous.exit_code import describe_end
from malt._uninterrupted import uninterrupted

_GRACE_SECONDS = 2.0  # for a function that is interrupted
_SHOW_SECONDS = 0.1


class Calls:
    """Makes one call after the other.

    Attributes:
        store: of all data.
        count: how many were made.
        chunks_taken: how many chunks were done by another rank than the one they lie in wait for.
        chunks_sent, bytes_sent: none; the ranks read chunks in place.
    """

    chunks_sent = bytes_sent = 0

    def __init__(self, ranks: int) -> None:
        self.count = 0
        self.chunks_taken = 0
        self._crew = Crew(ranks)
        self.store = Store(packing.pack)
        self._functions = Functions()
        self._dropped = 0  # the store's changes that the ranks know of
        self._is_at_rest = True  # the last call has ended without an exception
        self._laid: dict[tuple[str, int], Parcel] = {}  # put into the arguments by this call

    def sum(
        self,
        function: Callable[..., Any],
        theta: object,
        data: SharedData,
        show: Callable[[int], object] | None,
    ) -> Any:
        """Return the sum of function(theta, *chunk) over the chunks.

        `show` is called ten times a second with the number of chunks that are done.
        """
        number = self._functions.number(function)
        argument = _pack(theta, "theta")
        with self._call() as call:
            parcel = self._crew.arguments.put(argument)
            plan = planning.Sum(data.chunks)
            while todo := plan.todo():
                self._deal(todo, data.chunks)
                self._crew.await_ready(1)
                message = channel.encode(("sum", call, number, parcel, data._number))
                for rank in self._crew.ready():
                    self._send_function(rank, number)
                    self._send_data(rank, data._number)
                    self._set_to_work(rank, call, message)
                has_ended = False
                for event in self._events(show):
                    if event.kind == "done":
                        nodes, taken = self._result(event)
                        self.chunks_taken += taken
                        plan.add(nodes)
                    elif event.kind == "failed":
                        raise self._exception(event)
                    else:
                        has_ended = True
                        code, chunk = event.detail
                        where = None if chunk == worker.NO_CHUNK else chunk
                        plan.count_death(where, event.rank.rank, describe_end(code))
                if has_ended:  # otherwise the ranks have answered because the queues are empty
                    self._clear_queues()  # of what a rank that has died may have left there
            return plan.total()

    def run(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        named: Mapping[str, Any],
    ) -> list[Any]:
        """Run a program of MALT on all ranks; return its results by rank."""
        number = self._functions.number(function)
        ranks = len(self._crew.ranks)
        packed = _pack_all(arguments, named)
        with Rendezvous(ranks) as rendezvous, self._call() as call:
            block = self.store.hold()
            try:
                parcel = self.store.blocks[block].put(packed)
                self._crew.await_ready(ranks)
                for rank in self._crew.ready():
                    self._send_function(rank, number)
                    self._send_block(rank, block)
                    environ = rendezvous.environ(rank.rank)
                    message = channel.encode(("run", call, number, block, parcel, environ))
                    self._set_to_work(rank, call, message)
                return self._results_of_run(ranks)
            finally:
                self.store.let_go(block)
                self._drop()

    def _results_of_run(self, ranks: int) -> list[Any]:
        results: list[Any] = [None] * ranks
        for event in self._events(None):
            rank = event.rank.rank
            if event.kind == "done":
                parts = _copies(self._parts(event))  # which the caller may write to
                results[rank] = packing.unpack(parts, clones_tensors=False)
            elif event.kind == "failed":
                raise self._first_cause(event)
            else:
                raise PeerError(
                    f"rank {rank} {describe_end(event.detail[0])} in pool.run(), and the others "
                    "were stopped; it is started again for the next call",
                    [rank],
                )
        return results

    def _first_cause(self, event: Event) -> BaseException:
        """Stop the others; return the exception of the rank that failed by itself.

        When a rank fails, others may fail because they miss it, and be heard of sooner.
        """
        failures = [self._exception(event)]
        for other in self._stop_all():
            if other.kind == "failed":
                failures.append(self._exception(other))
        for failure in failures:
            if not isinstance(failure, PeerError) and not hasattr(failure, "was_stopped"):
                return failure
        return failures[0]

    def close(self) -> None:
        """End the ranks, and free the memory. Idempotent."""
        self._crew.close()
        self.store.close()

    @property
    def restarts(self) -> int:
        """How many ranks were started again."""
        return self._crew.restarts

    # A call

    @contextlib.contextmanager
    def _call(self) -> Iterator[int]:
        """Number a call; whatever ends it, no rank works afterwards, and the queues are empty."""
        if not self._is_at_rest:
            for _ in self._stop_all():  # what was interrupted while it was being stopped
                pass
        self._is_at_rest = False
        self.store.drop_unused()
        self._drop()
        self._crew.arguments.reset()
        self._laid.clear()
        self.count += 1
        try:
            yield self.count
            self._is_at_rest = True
        except BaseException:
            for _ in self._stop_all():
                pass
            raise
        finally:
            self._crew.show_output()

    def _events(self, show: Callable[[int], object] | None) -> Iterator[Event]:
        """Yield what happens until no rank works any more."""
        while self._crew.busy():
            yield from self._crew.wait(LOOK_SECONDS if show is None else _SHOW_SECONDS)
            self._crew.kill_stopped()
            if show is not None:
                show(sum(rank.board[worker.DONE] for rank in self._crew.ranks))

    def _stop_all(self) -> list[Event]:
        """Interrupt the ranks that work, and kill those that go on; return what they answer."""
        answers: list[Event] = []
        self._crew.repair()
        self._clear_queues()
        if not (busy := self._crew.busy()):
            return answers
        for rank in busy:
            assert rank.call is not None
            rank.board[worker.GIVEN_UP] = rank.call
            self._crew.signal(rank, signal.SIGINT)
        deadline = time.monotonic() + _GRACE_SECONDS
        try:
            while self._crew.busy() and (left := deadline - time.monotonic()) > 0:
                answers += self._crew.wait(left)
        finally:
            self._crew.kill(self._crew.busy())
        return answers

    def _clear_queues(self) -> None:
        for queue in self._crew.queues:
            queue.clear()

    def _deal(self, chunks: Sequence[int], total: int) -> None:
        """Put chunks into queues."""
        queues = self._crew.queues
        for queue, numbers in zip(queues, planning.deal(chunks, total, len(queues)), strict=True):
            queue.put(numbers)

    @uninterrupted
    def _set_to_work(self, rank: Rank, call: int, message: bytes) -> None:
        rank.call = call
        rank.send_encoded(message)

    # Told to the ranks before the call

    def _send_function(self, rank: Rank, number: int) -> None:
        if number not in rank.functions:
            parcel = self._lay("function", number, lambda: self._functions.parts(number))
            self._note_function(rank, number, parcel)

    @uninterrupted
    def _note_function(self, rank: Rank, number: int, parcel: Parcel) -> None:
        rank.functions.append(number)
        del rank.functions[:-KEPT]
        rank.send("function", number, parcel)

    def _send_data(self, rank: Rank, number: int) -> None:
        if number in rank.datasets:
            return
        places = self.store.datasets[number]
        for block in sorted({block for block, _ in places}):
            self._send_block(rank, block)
        parcel = self._lay("data", number, lambda: packing.pack(places))
        self._note_data(rank, number, parcel)

    @uninterrupted
    def _note_data(self, rank: Rank, number: int, parcel: Parcel) -> None:
        rank.datasets.add(number)
        rank.send("dataset", number, parcel)

    @uninterrupted
    def _send_block(self, rank: Rank, number: int) -> None:
        if number not in rank.blocks:
            rank.blocks.add(number)
            memory = self.store.blocks[number]
            rank.send("block", number, descriptors=(memory.descriptor,))

    @uninterrupted
    def _drop(self) -> None:
        """Tell ranks what is no longer there."""
        if self._dropped == self.store.changes:
            return
        self._dropped = self.store.changes
        for rank in self._crew.ranks:
            for number in rank.datasets - self.store.datasets.keys():
                rank.datasets.remove(number)
                rank.send("drop_dataset", number)
            for number in rank.blocks - self.store.blocks.keys():
                rank.blocks.remove(number)
                rank.send("drop_block", number)

    def _lay(self, kind: str, number: int, parts: Callable[[], Any]) -> Parcel:
        if (parcel := self._laid.get((kind, number))) is None:
            parcel = self._laid[kind, number] = self._crew.arguments.put(parts())
        return parcel

    # Answers

    def _parts(self, event: Event) -> Sequence[bytes | memoryview]:
        parts: Sequence[bytes | memoryview] = event.detail[1]
        return parts

    def _result(self, event: Event) -> tuple[Any, int]:
        """Return the nodes that a rank has, and how many chunks it has taken from others.

        Of arrays in them nobody keeps a view: a tree adds them up. Other things are copies.
        """
        _, _, taken, is_plain = event.detail
        parts = self._parts(event)
        return packing.unpack(parts if is_plain else _copies(parts)), taken

    def _exception(self, event: Event) -> BaseException:
        """Return the exception that a rank raised, with the rank's traceback as its cause."""
        return failures.from_pickle(event.rank.rank, packing.unpack(self._parts(event)))


def _pack(argument: object, name: str) -> list[bytes | memoryview]:
    try:
        return packing.pack(argument)
    except Exception as error:
        raise ConfigError(
            f"argument {name} cannot be sent to the ranks: {error}; give what it is made from, and "
            "make it in the function"
        ) from error


def _pack_all(arguments: Sequence[Any], named: Mapping[str, Any]) -> list[bytes | memoryview]:
    try:
        return packing.pack((tuple(arguments), dict(named)))
    except Exception:
        for name, argument in [*enumerate(arguments, 1), *named.items()]:
            _pack(argument, str(name))
        raise


def _copies(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    return [memoryview(bytearray(part)) for part in parts]
