"""A rank of a pool: takes calls from the pool, and chunks from queues.

Each rank has a queue of chunks: a pipe of chunk numbers, which every rank can read. A rank empties
its own queue, and then takes from those of the others. The kernel hands out each number once.

1. A rank reads queues only between a call's message and its own answer, so a number in a queue is
   always of the call that is being made.
2. A rank adds up what it has done, and answers once, when all queues are empty. The work
   of a killed rank is therefore in nobody's sum, and the pool has it done again.
3. SIGINT raises KeyboardInterrupt only in the function of the call that the board says is given
   up, so a late signal does not hit the next call.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from malt._errors import ConfigError
from malt._launch import channel
from malt._pool import failures, planning, starting
from malt._pool.local import functions, nursery, packing
from malt._pool.local.queues import take
from malt._pool.memory import Memory, Parcel, Place

# The board, at the beginning of a rank's results: what the pool and the rank tell one another.
BOARD_BYTES = 64
GIVEN_UP, CHUNK, DONE = range(3)  # the pool writes GIVEN_UP: a call; the rank the others
NO_CHUNK = -1


def serve(rank: int, descriptors: Sequence[int]) -> None:
    """Be this rank until the pool ends."""
    _Worker(rank, descriptors).serve()


def _packed(result: object, is_plain: bool) -> list[bytes | memoryview]:
    try:
        return packing.pack_known(result, is_plain)
    except Exception as error:
        raise ConfigError(
            f"a result of type {type(result).__name__} cannot be sent to the caller: {error}"
        ) from error


class _Worker:
    def __init__(self, rank: int, descriptors: Sequence[int]) -> None:
        self._control = socket.socket(fileno=descriptors[nursery.CONTROL])
        self._arguments = Memory(descriptors[nursery.ARGUMENTS])
        self._results = Memory(descriptors[nursery.RESULTS], start=BOARD_BYTES)
        self._board = self._results.view[:BOARD_BYTES].cast("q")
        queues = descriptors[nursery.QUEUES :]
        self._queues = [*queues[rank:], *queues[:rank]]  # its own one first
        self._functions: dict[int, Callable[..., Any]] = {}
        self._blocks: dict[int, Memory] = {}
        self._data: dict[int, list[tuple[int, Place]]] = {}
        self._chunks: dict[tuple[int, int], tuple[Any, ...]] = {}  # by block and offset
        self._call = -1
        self._is_in_function = False
        self._taken = 0  # chunks of this call from the queues of other ranks

    def serve(self) -> None:
        signal.signal(signal.SIGINT, self._interrupt)
        self._tell("ready", os.getpid())
        while True:
            try:
                message, descriptors = channel.receive(self._control)
            except EOFError:
                return
            getattr(self, f"_{message[0]}")(*message[1:], *descriptors)

    # Messages of the pool

    def _function(self, number: int, parcel: Parcel) -> None:
        """Keep a function. It is loaded by the first call of it, whose error a failure is."""
        # Copies: the pool writes over the arguments, and the function may write to its arrays.
        parts = [memoryview(bytearray(part)) for part in self._arguments.get(parcel)]
        loaded: list[Callable[..., Any]] = []

        def function(*arguments: object, **named: object) -> Any:
            if not loaded:
                loaded.append(packing.unpack(parts))
            return loaded[0](*arguments, **named)

        self._functions[number] = function
        if len(self._functions) > functions.KEPT:
            del self._functions[next(iter(self._functions))]

    def _block(self, number: int, descriptor: int) -> None:
        self._blocks[number] = Memory(descriptor, copies=True)

    def _drop_block(self, number: int) -> None:
        self._blocks.pop(number).close()
        for key in [key for key in self._chunks if key[0] == number]:
            del self._chunks[key]

    def _dataset(self, number: int, parcel: Parcel) -> None:
        self._data[number] = packing.unpack(self._arguments.get(parcel))

    def _drop_dataset(self, number: int) -> None:
        del self._data[number]

    def _sum(self, call: int, function: int, theta: Parcel, data: int) -> None:
        chunks = self._data[data]

        def todo() -> Iterator[tuple[int, tuple[Any, ...]]]:
            for chunk in self._take():
                self._board[CHUNK] = chunk
                yield chunk, self._load(chunks[chunk])
                self._board[DONE] += 1

        def work() -> object:
            argument = packing.unpack(self._arguments.get(theta))
            return planning.add_up(
                self._functions[function], argument, todo(), len(chunks), keeps=False
            )

        self._answer(call, work)

    def _run(self, call: int, function: int, block: int, parcel: Parcel, environ: Any) -> None:
        def work() -> object:
            arguments, named = packing.unpack(self._blocks[block].get(parcel))
            return starting.run_program(environ, self._functions[function], arguments, named)

        self._answer(call, work)

    # How it is done

    def _take(self) -> Iterator[int]:
        for queue in self._queues:
            while (chunk := take(queue)) is not None:
                self._taken += queue != self._queues[0]
                yield chunk

    def _load(self, place: tuple[int, Place]) -> tuple[Any, ...]:
        block, (offset, _) = place
        key = block, offset
        if (chunk := self._chunks.get(key)) is None:
            chunk = packing.unpack(self._blocks[block].get(place[1]), clones_tensors=False)
            self._chunks[key] = chunk
        return chunk

    def _answer(self, call: int, work: Callable[[], object]) -> None:
        if call != self._call:  # else the pool still reads the answer before
            self._results.reset()
        self._call = call
        self._board[CHUNK] = NO_CHUNK
        self._board[DONE] = self._taken = 0
        is_plain = False
        try:
            try:
                self._is_in_function = True
                if self._board[GIVEN_UP] == call:  # before the function began
                    raise KeyboardInterrupt
                value = work()
                is_plain = packing.is_plain(value)
                parcel = self._results.put(_packed(value, is_plain))
            finally:
                self._is_in_function = False
            kind = "done"
        except BaseException as error:  # the pool raises it
            parcel = self._results.put(packing.pack(failures.describe_with_pickle(error)))
            kind = "failed"
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._tell(kind, call, parcel, self._taken, is_plain)

    def _tell(self, *message: object) -> None:
        try:
            channel.send(self._control, channel.encode(message))
        except OSError:  # the pool has ended, and this process soon does
            os._exit(1)

    def _interrupt(self, _number: int, _frame: object) -> None:
        if self._is_in_function and self._board[GIVEN_UP] == self._call:
            raise KeyboardInterrupt
