"""Which rank of a job has a copy of which chunk. Rank 0 has all, and sends each once a rank."""

from __future__ import annotations

from typing import Any

from malt._pool.over_job.chunks import Chunks, Key
from malt._pool.over_job.messenger import Messenger
from malt._pool.store import SharedData, Store


class Copies:
    """Rank 0's record.

    Attributes:
        chunks_sent, bytes_sent: to other ranks.
    """

    def __init__(self, store: Store, messenger: Messenger, ranks: int) -> None:
        self.chunks_sent = self.bytes_sent = 0
        self._store = store
        self._messenger = messenger
        self._own = Chunks()
        self._sent: list[set[Key]] = [set() for _ in range(ranks)]  # by rank
        self._dropped = 0  # the store's changes that the ranks know of

    def key(self, chunk: int, data: SharedData) -> Key:
        """Return by what the ranks know a chunk of the data."""
        block, (offset, _) = data._places[chunk]
        return block, offset

    def missing_bytes(self, rank: int, chunk: int, data: SharedData) -> int:
        """Return how much has to be sent before the rank can do the chunk."""
        if rank == self._messenger.rank or self.key(chunk, data) in self._sent[rank]:
            return 0
        _, (_, lengths) = data._places[chunk]
        return sum(lengths)

    def send(self, rank: int, chunk: int, data: SharedData) -> None:
        """Send a chunk, unless the rank has it."""
        sent = self._sent[rank]
        if (key := self.key(chunk, data)) not in sent:
            block, place = data._places[chunk]
            parts = self._store.blocks[block].get(place)
            self._messenger.send(rank, "chunk", *key, parts=parts)
            sent.add(key)
            self.chunks_sent += 1
            self.bytes_sent += sum(map(len, parts))

    def load(self, chunk: int, data: SharedData) -> tuple[Any, ...]:
        """Return the arrays of a chunk on rank 0."""
        if (key := self.key(chunk, data)) not in self._own:
            block, place = data._places[chunk]
            self._own.keep(key, self._store.blocks[block].get(place))
        return self._own[key]

    def drop(self) -> None:
        """Tell ranks what is no longer there."""
        if self._dropped == self._store.changes:
            return
        changes = self._store.changes
        there = self._store.blocks.keys()
        self._own.drop(there)
        for rank in self._messenger.others():
            # Even if nothing of it was sent: an interrupt may have come before send() noted that.
            self._messenger.send(rank, "drop", sorted(there))
            sent = self._sent[rank]
            sent.difference_update([key for key in sent if key[0] not in there])
        self._dropped = changes  # at last: an interrupt before has it done again
