"""A pool over a job, on rank 0, which makes the calls; the other ranks serve (serving.py).

1. Rank 0 keeps all data, and sends a chunk to a rank before the first sum in which the rank does
   it. So a chunk goes to a rank once, and a chunk of a rank that has died can go to another.
2. Each chunk is in the sum once. A rank answers once, with the sum of all chunks that it was given;
   what no answer has when all ranks have answered or are no longer live is given out again. An
   answer is looked for after its rank was seen to be no longer live, so that it is not missed; if
   it comes later all the same, it is dropped.
3. A call that ends by an exception is given up. Answers name their call, and those of an earlier
   call are dropped.
4. A chunk of a dead rank is not done by rank 0, as long as there is another rank: the function may
   end the process that it is called in.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from malt._errors import ConfigError, DamagedError, Error
from malt._job.job import Job
from malt._pool import failures, naming, planning, serving, values
from malt._pool.chunks import Chunks, Key
from malt._pool.post import Message, Post
from malt._pool.store import SharedData, Store


class JobCalls:
    """Makes one call after the other.

    Attributes:
        store: of all data.
        count: how many calls were made.
        chunks_taken: how many chunks were done by another rank than the one they are dealt to.
        restarts: none; a rank that has died stays dead.
    """

    restarts = 0

    def __init__(self, job: Job) -> None:
        self.store = Store(lambda chunk: values.pack(chunk, "a chunk of pool.share()"))
        self.count = 0
        self.chunks_taken = 0
        self._size = job.size
        self._post = Post(job)
        self._own = Chunks()
        self._sent: list[set[Key]] = [set() for _ in range(job.size)]  # by rank
        self._dropped = 0  # the store's changes that the ranks know of

    def sum(
        self,
        function: Callable[..., Any],
        theta: object,
        data: SharedData,
        show: Callable[[int], object] | None,
    ) -> Any:
        """Return the sum of function(theta, *chunk) over the chunks.

        `show` is called with the number of chunks that are done whenever a rank has answered.
        """
        name = naming.name_of(function)
        argument = values.pack(theta, "theta")
        plan = planning.Sum(data.chunks)
        places = [(block, place[0]) for block, place in data._places]
        with self._call() as call:
            while todo := plan.todo():
                given = self._give(todo, data.chunks)
                for rank, chunks in given.items():
                    if rank != self._post.rank:
                        self._send_chunks(rank, chunks, data)
                        asked = [(chunk, *places[chunk]) for chunk in chunks]
                        self._post.send(
                            rank, "sum", call, *name, data.chunks, asked, parts=argument
                        )
                if own := given.get(self._post.rank):
                    mine = self._load(own, data)
                    read_only = [memoryview(part).toreadonly() for part in argument]
                    theta = values.unpack(read_only)
                    plan.add(planning.add_up(function, theta, mine, data.chunks))
                self._collect(call, given, plan, show)
            return plan.total()

    def close(self) -> None:
        """Let the other ranks go on."""
        with contextlib.suppress(Error):  # the job has ended for this rank
            for rank in self._others():
                self._post.send(rank, "close")
            self._post.flush()
        self._post.close()
        self.store.close()
        serving.end()

    @contextlib.contextmanager
    def _call(self) -> Iterator[int]:
        self.store.drop_unused()
        self._drop()
        self.count += 1
        try:
            yield self.count
        except BaseException:
            with contextlib.suppress(Error):
                for rank in self._others():
                    self._post.send(rank, "stop")
            raise

    def _others(self) -> list[int]:
        return [rank for rank in self._post.live() if rank != self._post.rank]

    def _give(self, chunks: Sequence[int], total: int) -> dict[int, list[int]]:
        """Return the chunks by the live rank that does them."""
        live = self._post.live()
        heirs = [rank for rank in live if rank != self._post.rank] or live
        given: dict[int, list[int]] = {rank: [] for rank in live}
        for rank, dealt in enumerate(planning.deal(chunks, total, self._size)):
            if rank in given:
                given[rank] += dealt
            else:
                self.chunks_taken += len(dealt)
                for chunk in dealt:
                    given[heirs[chunk % len(heirs)]].append(chunk)
        return {rank: dealt for rank, dealt in given.items() if dealt}

    def _collect(
        self,
        call: int,
        given: Mapping[int, Sequence[int]],
        plan: planning.Sum,
        show: Callable[[int], object] | None,
    ) -> None:
        """Add the answers of the ranks, until each has answered or died."""
        waiting = given.keys() - {self._post.rank}
        done = len(given.get(self._post.rank, ()))
        while True:
            if show is not None:
                show(done)
            if not waiting:
                return
            live = self._post.live()  # rule 2: before the answers are looked for
            while message := self._post.receive():
                if message.subject[1] != call or message.sender not in waiting:
                    continue  # rules 2 and 3
                if message.subject[0] == "failed":
                    raise _exception(message)
                plan.add(values.unpack(message.parts))
                waiting.discard(message.sender)
                done += len(given[message.sender])
            for rank in sorted(waiting.difference(live)):
                waiting.remove(rank)
                for chunk in given[rank]:
                    plan.count_death(chunk, rank, "has died or left the job")
            if waiting:
                self._post.wait(live)

    def _send_chunks(self, rank: int, chunks: Sequence[int], data: SharedData) -> None:
        sent = self._sent[rank]
        for chunk in chunks:
            block, place = data._places[chunk]
            if (key := (block, place[0])) not in sent:
                parts = self.store.blocks[block].get(place)
                self._post.send(rank, "chunk", *key, parts=parts)
                sent.add(key)

    def _load(
        self, chunks: Sequence[int], data: SharedData
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        for chunk in chunks:
            block, place = data._places[chunk]
            key = (block, place[0])
            if key not in self._own:
                self._own.keep(key, self.store.blocks[block].get(place))
            yield chunk, self._own[key]

    def _drop(self) -> None:
        """Tell ranks what is no longer there."""
        if self._dropped == self.store.changes:
            return
        self._dropped = self.store.changes
        there = self.store.blocks.keys()
        self._own.drop(there)
        for rank in self._others():
            sent = self._sent[rank]
            if any(block not in there for block, _ in sent):
                self._post.send(rank, "drop", sorted(there))
                sent.difference_update([key for key in sent if key[0] not in there])


def _exception(message: Message) -> BaseException:
    """Return the exception that a rank raised, with the rank's traceback as its cause."""
    _, _, kind, text, trace = message.subject
    if not all(isinstance(each, str) for each in (kind, text, trace)):
        raise DamagedError(f"an answer of rank {message.sender} is damaged")
    known = getattr(builtins, kind, None)
    error: BaseException = Error(f"rank {message.sender}: {kind}: {text}")
    if kind == "malt.ConfigError":
        error = ConfigError(f"rank {message.sender}: {text}")
    elif isinstance(known, type) and issubclass(known, Exception):
        with contextlib.suppress(TypeError):  # it wants other arguments
            error = known(text)
    return failures.caused_on(message.sender, error, trace)


def join(job: Job) -> JobCalls | None:
    """Return what makes calls, on rank 0; on the other ranks serve them, and return None.

    Collective over the live ranks of the job.

    Raises:
        malt.ConfigError: the job cannot have a pool, or has one.
        malt.TimeoutError: the ranks that the error names did not come.
        malt.PeerError: rank 0 has died.
    """
    serving.begin(job)
    try:
        if job.rank == 0:
            return JobCalls(job)
        serving.serve(job)
    except BaseException:
        serving.end()
        raise
    serving.end()
    return None
