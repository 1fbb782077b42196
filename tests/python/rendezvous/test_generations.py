"""The launcher's books of groups that follow one another: what overlaps in time. See also
test_rejoining.py, which found each of these.
"""

from __future__ import annotations

from malt._rendezvous import wire
from malt._rendezvous.allgather_table import Frames
from malt._rendezvous.generation_table import GenerationTable
from malt._rendezvous.wire import ToClient, ToServer

LIMIT = 5.0


def called(frames: Frames) -> dict[int, list[int]]:
    """Whom the ranks are called together with, by rank: nobody if they are to wait."""
    return {
        rank: wire.unpack_members(payload)[1]
        for rank, payloads in frames
        for payload in payloads
        if payload[:1] == ToClient.GENERATION
    }


def told_that_it_stands(frames: Frames) -> list[int]:
    return [r for r, payloads in frames for payload in payloads if payload[:1] == ToClient.STANDS]


class Books:
    """Those of a job, and what its ranks say."""

    def __init__(self, size: int) -> None:
        self.books = GenerationTable(size)
        for rank in range(size):
            self.books.join(rank)
        self.called = [called(self.want(rank)) for rank in range(size)][-1]
        self.number = 1

    def want(self, rank: int) -> Frames:
        return self.books.hear(rank, wire.WANT_FRAME.pack(ToServer.WANT, LIMIT), 0.0)

    def exchange(self, ranks: list[int]) -> None:
        for rank in ranks:
            part = wire.GENERATION_PART.pack(ToServer.PART, self.number, 0)
            self.books.hear(rank, part, 0.0)

    def form(self, *ranks: int) -> Frames:
        frames: Frames = []
        for rank in ranks:
            said = wire.FORMED_FRAME.pack(ToServer.FORMED, self.number)
            frames += self.books.hear(rank, said, 0.0)
        return frames

    def restart(self, rank: int) -> Frames:
        frames = self.books.leave(rank, 0.0)
        frames += self.books.end(rank, False, 0.0)
        frames += self.books.join(rank)
        return frames + self.want(rank)


def test_a_group_stands_when_all_have_formed_it() -> None:
    job = Books(3)
    assert job.called == {rank: [0, 1, 2] for rank in range(3)}
    job.exchange([0, 1, 2])
    assert told_that_it_stands(job.form(0, 1)) == []
    assert told_that_it_stands(job.form(2)) == [0, 1, 2]


def test_those_who_have_formed_a_group_are_not_expelled_with_one_that_has_not() -> None:
    job = Books(3)
    job.exchange([0, 1, 2])
    job.form(0, 1, 2)
    job.restart(2)
    job.number = 2
    job.exchange([0, 1, 2])
    job.form(0, 2)
    frames = job.books.expire(2 * LIMIT)
    assert job.books.expelled == [1]
    assert called(frames) == {0: [0, 2], 2: [0, 2]}


def test_a_rank_that_dies_before_the_first_group_stands_is_waited_for() -> None:
    """Even if it had formed it: its successor begins with the others."""
    job = Books(2)
    job.exchange([0, 1])
    job.form(0)
    frames = job.books.leave(0, 0.0)
    assert called(frames) == {1: []}
    assert told_that_it_stands(job.form(1)) == []
    job.books.end(0, False, 0.0)
    job.books.join(0)
    assert called(job.want(0)) == {0: [0, 1], 1: [0, 1]}


def test_a_rank_that_is_added_while_the_first_group_is_formed_begins_with_the_others() -> None:
    books = GenerationTable(3)
    books.end(2, True, 0.0)
    job = Books.__new__(Books)
    job.books, job.number = books, 1
    for rank in range(2):
        books.join(rank)
        job.want(rank)
    job.exchange([0, 1])
    books.start(2)
    assert called(books.join(2)) == {0: [], 1: []}
    assert called(job.want(2)) == {rank: [0, 1, 2] for rank in range(3)}
