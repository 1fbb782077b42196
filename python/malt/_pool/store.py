"""Data in shared memory, each chunk once, known by the hash of its content."""

from __future__ import annotations

import hashlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from malt._errors import ConfigError
from malt._pool import cutting
from malt._pool.local.queues import MOST_CHUNKS
from malt._pool.memory import Memory, Place
from malt._uninterrupted import uninterrupted

CHUNKS_A_RANK = 4  # so that an idle rank finds some of a slow one's to take


class SharedData:
    """Rows that pool.share() has cut into chunks. They stay in memory as long as this object does.

    Attributes:
        rows: how many there are.
        chunks: how many chunks they make.
        nbytes: how much memory the chunks take.
    """

    def __init__(self, number: int, rows: int, places: list[tuple[int, Place]]) -> None:
        self.rows = rows
        self.chunks = len(places)
        self.nbytes = sum(sum(lengths) for _, (_, lengths) in places)
        self._number = number
        self._places = places  # the very object that the store has

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"<malt shared data: {self.rows} rows in {self.chunks} chunks, {self.nbytes} bytes>"


class Store:
    """The blocks of memory that chunks are in. A call of share() makes at most one block.

    `pack` returns the parts of a chunk, a tuple of what cutting.cut() returns.

    Attributes:
        blocks: by number.
        datasets: where the chunks of each dataset are, by its number.
        chunks_copied, bytes_copied: what was put into shared memory.
        chunks_found: how many chunks were there already.
        changes: grows whenever a dataset or a block goes.
    """

    def __init__(self, pack: Callable[[object], list[bytes | memoryview]]) -> None:
        self._pack = pack
        self.changes = 0
        self.blocks: dict[int, Memory] = {}
        self.datasets: dict[int, list[tuple[int, Place]]] = {}
        self.chunks_copied = self.bytes_copied = self.chunks_found = 0
        self._place_of: dict[bytes, tuple[int, Place]] = {}  # by digest
        self._digests: dict[int, list[bytes]] = {}  # of each dataset's chunks
        self._uses: dict[bytes, int] = {}  # how many chunks of datasets it is
        self._held: set[int] = set()
        self._next = 0
        self._unused: deque[int] = deque()  # datasets that nobody has any more

    def share(self, arrays: Sequence[Any], chunks: int | None, ranks: int) -> SharedData:
        """Put what is new of these arrays into shared memory.

        Raises:
            malt.ConfigError: they have no rows, or not equally many; there is no memory.
        """
        data = [cutting.prepare(array, at + 1) for at, array in enumerate(arrays)]
        rows, chunks = _check(data, chunks, ranks)
        number, self._next = self._next, self._next + 1
        block = Memory.make("data")
        digests: list[bytes] = []
        new: dict[bytes, tuple[int, Place]] = {}
        try:
            for begin, end in cutting.bounds(rows, chunks):
                parts = self._pack(tuple(cutting.cut(each, begin, end) for each in data))
                digest = _digest(parts)
                digests.append(digest)
                if digest in self._place_of or digest in new:
                    self.chunks_found += 1
                else:
                    new[digest] = number, block.place(parts)
                    self.chunks_copied += 1
                    self.bytes_copied += sum(map(len, parts))
            return self._keep(number, rows, block, digests, new)
        except BaseException:
            if number not in self.blocks:
                block.close()
            raise

    @uninterrupted
    def _keep(
        self,
        number: int,
        rows: int,
        block: Memory,
        digests: list[bytes],
        new: dict[bytes, tuple[int, Place]],
    ) -> SharedData:
        if new:
            self.blocks[number] = block
        else:
            block.close()
        self._place_of.update(new)
        for digest in digests:
            self._uses[digest] = self._uses.get(digest, 0) + 1
        self._digests[number] = digests
        self.datasets[number] = [self._place_of[digest] for digest in digests]
        shared = SharedData(number, rows, self.datasets[number])
        weakref.finalize(shared, self._unused.append, number)
        return shared

    @uninterrupted
    def hold(self) -> int:
        """Make a block that holds no chunks; return its number."""
        number, self._next = self._next, self._next + 1
        self.blocks[number] = Memory.make("run")
        self._held.add(number)
        return number

    @uninterrupted
    def let_go(self, number: int) -> None:
        self.changes += 1
        self._held.remove(number)
        self.blocks.pop(number).close()

    @uninterrupted
    def drop_unused(self) -> None:
        """Let go of data that nobody has any more, and of memory that holds nothing else.

        Between two calls: what is held then was left by a call that was interrupted.
        """
        for number in list(self._held):
            self.let_go(number)
        while self._unused:
            number = self._unused.popleft()
            self.changes += 1
            del self.datasets[number]
            for digest in self._digests.pop(number):
                self._uses[digest] -= 1
                if not self._uses[digest]:
                    del self._uses[digest], self._place_of[digest]
            used = self._held | {block for block, _ in self._place_of.values()}
            for block in self.blocks.keys() - used:
                self.blocks.pop(block).close()

    @uninterrupted
    def close(self) -> None:
        for block in self.blocks.values():
            block.close()
        self.blocks.clear()


def _check(data: Sequence[Any], chunks: int | None, ranks: int) -> tuple[int, int]:
    """Return how many rows there are, and how many chunks to cut them into."""
    if not data:
        raise ConfigError("pool.share() got nothing: give it the arrays, as in pool.share(X, y)")
    rows = cutting.rows_of(data[0])
    for at, each in enumerate(data):
        if cutting.rows_of(each) != rows:
            raise ConfigError(
                f"pool.share(): argument 1 has {rows} rows and argument {at + 1} has "
                f"{cutting.rows_of(each)}; row i of each must belong together"
            )
    if rows == 0:
        raise ConfigError("pool.share() got no rows; it takes at least one")
    if chunks is None:
        return rows, min(rows, MOST_CHUNKS, CHUNKS_A_RANK * ranks)
    most = min(rows, MOST_CHUNKS)
    if not is_count(chunks, most):
        raise ConfigError(
            f"pool.share(chunks={chunks!r}): {rows} rows can be cut into 1 to {most} chunks "
            f"(at most {MOST_CHUNKS})"
        )
    return rows, chunks


def is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _digest(parts: Sequence[bytes | memoryview]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
