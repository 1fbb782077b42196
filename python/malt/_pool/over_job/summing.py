"""A sum over a job, on rank 0: deals the chunks out, and has idle ranks do those of slow ones.

1. Each chunk is in the sum once. A chunk is in the backlog of one live rank at a time, until that
   rank answers for it, gives it back, or dies. Chunks that no answer has when all backlogs are
   empty are dealt out again.
2. A rank answers once for all chunks in its backlog, with their sum. It gives back, when asked,
   chunks that it has not begun. Both come in the order in which the rank sent them, so a rank
   answers for no chunk that it has given back.
3. Messages of a rank that is no longer live are looked for after it was seen to be so, and are not
   missed; what comes later all the same is dropped. So are messages of another call.
4. A chunk of a dead rank is not done by rank 0, as long as there is another rank: the function may
   end the process that it is called in.
5. The inbox's thread may be in the middle of an answer, which is no longer in a backlog and not yet
   in the sum. So the rank's own thread looks at both with the lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from malt._errors import DamagedError
from malt._messages import values
from malt._pool import failures, planning
from malt._pool.over_job import naming
from malt._pool.over_job.backlog import Backlog
from malt._pool.over_job.copies import Copies
from malt._pool.over_job.inbox import Inbox
from malt._pool.over_job.messenger import Message, Messenger
from malt._pool.store import SharedData

# A chunk moves to an idle rank if it takes longer than this, and longer than its way there at a
# pace that most networks keep.
_MOVE_SECONDS = 0.005
_BYTES_A_SECOND = 200e6


class Summing:
    """One sum. Its methods but total() are for the thread that has the inbox's lock.

    Attributes:
        taken: how many chunks were moved to another rank than the one they are dealt to.
    """

    def __init__(
        self,
        messenger: Messenger,
        copies: Copies,
        call: int,
        name: naming.Name,
        argument: values.Parts,
        data: SharedData,
        ranks: int,
    ) -> None:
        self.taken = 0
        self._messenger = messenger
        self._copies = copies
        self._call = call
        self._name = name
        self._argument = argument
        self._data = data
        self._ranks = ranks
        self._plan = planning.Sum(data.chunks)
        self._own = Backlog()
        self._backlogs: dict[int, set[int]] = {}  # of ranks that have not answered, rank 0 included
        self._told: set[int] = set()  # ranks that have the argument
        self._asked: dict[int, int] = {}  # ranks that are asked to give back, and for which rank
        self._spent: set[int] = set()  # ranks that had nothing to give back
        self._seconds = math.inf  # the shortest chunk so far
        self._done = 0

    def total(
        self, inbox: Inbox, function: Callable[..., Any], show: Callable[[int], object] | None
    ) -> Any:
        """Make the sum, and return it.

        `show` is called with the number of chunks that are done whenever a rank has answered, and
        at the end.
        """
        with inbox.listening(self.attend):
            while True:
                with inbox.lock:  # rule 5
                    inbox.check()
                    if not self._backlogs:
                        if not (todo := self._plan.todo()):
                            break
                        self._deal(todo)
                if self._own:
                    self._compute(inbox, function)
                with inbox.lock:
                    inbox.check()
                    live = self.attend()
                    if self._backlogs and not self._own:
                        self._messenger.wait(live)
                if show is not None:
                    show(self._done)
            if show is not None:  # the last answer may have come in another thread since
                show(self._done)
            return self._plan.total()

    def attend(self) -> list[int]:
        """Take in the ranks' answers, and move chunks; return the ranks that were live before."""
        live = self._messenger.live()  # rule 3
        while message := self._messenger.receive():
            self._take(message)
        for rank in sorted(self._backlogs.keys() - set(live)):
            self._asked.pop(rank, None)
            for chunk in self._backlogs.pop(rank):
                self._plan.count_death(chunk, rank, "has died or left the job")
        self._move(live)
        return live

    def _take(self, message: Message) -> None:
        rank = message.sender
        if message.subject[1:2] != [self._call]:
            return  # rule 3
        match message.subject:
            case ["back", _, list(chunks)] if rank in self._asked:
                backlog = self._backlogs.get(rank, set())
                is_own = all(type(chunk) is int and chunk in backlog for chunk in chunks)
                if not is_own or len({*chunks}) < len(chunks):
                    raise DamagedError(f"rank {rank} gave back other chunks than it has")
                self._get_back(rank, chunks)
            case ["failed", _, *told] if rank in self._backlogs:
                raise failures.on_rank(rank, told)
            case ["done", _, float(seconds)] if rank in self._backlogs:
                nodes = values.unpack(message.parts)
                self._plan.check(nodes, self._backlogs[rank], rank)
                self._answer(rank, nodes, seconds)

    def _answer(self, rank: int, nodes: Any, seconds: float) -> None:
        self._done += len(self._backlogs.pop(rank))
        self._seconds = min(self._seconds, seconds)
        self._plan.add(nodes)

    def _deal(self, todo: Sequence[int]) -> None:
        live = self._messenger.live()
        heirs = [rank for rank in live if rank != self._messenger.rank] or live  # rule 4
        given: dict[int, list[int]] = {rank: [] for rank in live}
        for rank, dealt in enumerate(planning.deal(todo, self._data.chunks, self._ranks)):
            for chunk in dealt:
                is_risky = rank == self._messenger.rank and self._plan.has_ended_ranks(chunk)
                heir = heirs[chunk % len(heirs)] if rank not in given or is_risky else rank
                self.taken += heir != rank
                given[heir].append(chunk)
        for rank in reversed(live):  # so that the others work while rank 0 sends
            if given[rank]:
                self._give(rank, given[rank])
        self._messenger.flush()

    def _give(self, rank: int, chunks: Sequence[int]) -> None:
        self._backlogs[rank] = set(chunks)
        self._spent.discard(rank)
        if rank == self._messenger.rank:
            self._own.add(chunks)
            return
        for chunk in chunks:
            self._copies.send(rank, chunk, self._data)
        asked = [(chunk, *self._copies.key(chunk, self._data)) for chunk in chunks]
        argument = () if rank in self._told else self._argument
        self._told.add(rank)
        self._messenger.send(
            rank, "sum", self._call, *self._name, self._data.chunks, asked, parts=argument
        )

    # Chunks of slow ranks

    def _move(self, live: Sequence[int]) -> None:
        """Ask ranks that have many chunks left for some of them, for the idle ones."""
        if self._seconds < _MOVE_SECONDS:
            return
        for idle in live:
            if idle in self._backlogs or idle in self._asked.values():
                continue
            free = self._backlogs.keys() - self._asked.keys() - self._spent
            for rank in sorted(free, key=lambda each: -len(self._backlogs[each])):
                if len(self._backlogs[rank]) > 1 and (wanted := self._wanted(idle, rank)):
                    self._ask(rank, idle, wanted)
                    break

    def _wanted(self, idle: int, rank: int) -> list[int]:
        """Return the chunks of a rank that an idle one would do sooner, the best ones first."""
        wanted = []
        for chunk in sorted(self._backlogs[rank], reverse=True):
            missing = self._copies.missing_bytes(idle, chunk, self._data)
            if idle == self._messenger.rank and self._plan.has_ended_ranks(chunk):
                continue  # rule 4
            if self._seconds > missing / _BYTES_A_SECOND:
                wanted.append((missing, chunk))
        return [chunk for _, chunk in sorted(wanted, key=lambda each: each[0])]

    def _ask(self, rank: int, idle: int, wanted: list[int]) -> None:
        self._asked[rank] = idle
        if rank == self._messenger.rank:
            self._get_back(rank, self._own.give_back(wanted))
        else:
            self._messenger.send(rank, "back", self._call, wanted)

    def _get_back(self, rank: int, chunks: Sequence[int]) -> None:
        """Give an idle rank what another one has given back; if it has died, nobody for now."""
        idle = self._asked.pop(rank)
        if not chunks:
            self._spent.add(rank)
            return
        self._backlogs[rank].difference_update(chunks)
        if idle in self._messenger.live():
            self.taken += len(chunks)
            self._give(idle, chunks)
            self._messenger.flush()

    # Rank 0's own chunks

    def _compute(self, inbox: Inbox, function: Callable[..., Any]) -> None:
        read_only = [memoryview(part).toreadonly() for part in self._argument]
        theta = values.unpack(read_only)
        nodes = planning.add_up(function, theta, self._begin_own(inbox), self._data.chunks)
        with inbox.lock:
            self._answer(self._messenger.rank, nodes, self._own.seconds)

    def _begin_own(self, inbox: Inbox) -> Iterator[tuple[int, tuple[Any, ...]]]:
        while True:
            with inbox.lock:  # the inbox attends to the others meanwhile
                inbox.check()
                if (chunk := self._own.begin()) is None:
                    return
            yield chunk, self._copies.load(chunk, self._data)
