"""The books of a server that takes over, and what a rank says to it."""

from __future__ import annotations

import select
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from malt._launch.succession import Succession
from malt._rejoining.forming import Formed, Forming
from malt._rendezvous import wire
from malt._rendezvous.allgather_table import Frames, ProtocolError
from malt._rendezvous.generation_table import GenerationTable
from malt._rendezvous.held import Held
from malt._rendezvous.member_session import NewerError
from malt._rendezvous.node_session import Node
from malt._rendezvous.server import Server
from malt._rendezvous.wire import ToClient, ToServer


def hold(
    books: GenerationTable,
    rank: int,
    number: int,
    members: list[int],
    *,
    rounds: int = 2,
    is_due: bool = False,
) -> None:
    held = Held(rank)
    held.completed(number, rounds - 1)
    held.stands(number, members)
    books.join(rank)
    for frame in held.frames(number + 1, is_due):
        books.hear(rank, frame, 0.0)


def books_of(size: int) -> GenerationTable:
    books = GenerationTable(size)
    books.succeed()
    return books


def calls(frames: Frames) -> dict[int, list[int]]:
    return {
        rank: wire.unpack_members(payload)[1]
        for rank, payloads in frames
        for payload in payloads
        if payload[:1] == ToClient.GENERATION
    }


def want(books: GenerationTable, rank: int) -> Frames:
    return books.hear(rank, wire.WANT_FRAME.pack(ToServer.WANT, 5.0), 0.0)


def test_no_generation_is_begun_before_all_have_come() -> None:
    books = books_of(4)
    hold(books, 1, 3, [0, 1, 2])
    books.join(3)
    assert want(books, 3) == []
    assert books.next_deadline() is None
    hold(books, 2, 3, [0, 1, 2])
    assert calls(books.settle(0.0)) == {rank: [1, 2, 3] for rank in (1, 2, 3)}


def test_generation_that_the_last_server_was_about_to_form_is_formed() -> None:
    books = books_of(3)
    hold(books, 1, 1, [0, 1, 2], is_due=True)
    hold(books, 2, 1, [0, 1, 2])
    assert calls(books.settle(0.0)) == {1: [1, 2], 2: [1, 2]}


def test_numbers_go_on_after_the_newest_that_a_rank_knows() -> None:
    books = books_of(2)
    hold(books, 1, 7, [0, 1])
    books.settle(0.0)
    books.join(0)
    numbers = {wire.unpack_members(frames[0])[0] for _, frames in want(books, 0)}
    assert numbers == {9}


@pytest.mark.parametrize(("number", "rounds"), [(2, 2), (3, 1)])
def test_a_rank_that_is_behind_is_expelled(number: int, rounds: int) -> None:
    books = books_of(3)
    hold(books, 2, number, [1, 2], rounds=rounds)
    hold(books, 1, 3, [1, 2])
    books.settle(0.0)
    assert books.expelled == [2]


def test_without_a_survivor_the_job_is_over() -> None:
    books = books_of(2)
    books.join(1)
    want(books, 1)
    books.end(0, True, 0.0)
    books.settle(0.0)
    assert books.is_over


def test_nothing_is_held_later_or_twice() -> None:
    books = books_of(2)
    hold(books, 1, 1, [0, 1])
    with pytest.raises(ProtocolError):
        hold(books, 1, 1, [0, 1])
    books.settle(0.0)
    with pytest.raises(ProtocolError):
        hold(books, 0, 1, [0, 1])


def test_a_rank_says_again_what_has_no_answer() -> None:
    held = Held(0)
    held.stands(4, [0, 1])
    part = wire.GENERATION_PART.pack(ToServer.PART, 4, 0) + b"data"
    want_ = wire.WANT_FRAME.pack(ToServer.WANT, 5.0)
    absent = wire.pack_members(ToServer.ABSENT, 4, [1])
    for frame in (part, want_, absent):
        held.sent(frame)
    assert held.frames(4, False)[1:] == [want_, part, absent]
    held.completed(4, 0)
    assert held.frames(4, False)[1:] == [want_, absent]
    held.stands(5, [0])
    assert held.frames(5, False)[1:] == []


def test_a_rank_that_may_have_missed_that_its_group_stands_is_unsure() -> None:
    held = Held(0)
    held.stands(1, [0, 1])
    held.sent(wire.FORMED_FRAME.pack(ToServer.FORMED, 2))
    assert held.is_unsure(2)
    assert not held.is_unsure(3)  # which replaces it: it stands for nobody
    held.stands(2, [0, 1])
    assert not held.is_unsure(2)


def test_a_rank_joins_no_group_without_a_rank_that_its_own_has_not_evicted() -> None:
    """Else two servers, after a cut, would each call one part of the job."""
    alive = [0, 1, 2]
    made: list[list[int]] = []

    def await_done(number: int, limit: float, is_done: Any) -> bool:
        assert not is_done()
        if 2 in alive:
            alive.remove(2)  # it is evicted now
        if not is_done():
            raise NewerError
        return True

    def make_group(members: list[int], *_: Any) -> Any:
        assert 2 not in alive
        made.append(members)
        return SimpleNamespace()

    member: Any = SimpleNamespace(await_done=await_done, formed=lambda *_: None)
    forming = Forming(member, make_group, 5.0)
    group: Any = SimpleNamespace(alive=lambda: tuple(alive))
    forming._formed = Formed(1, group, {0, 1, 2})
    assert forming._form([0]) is None  # ranks 1 and 2 are not evicted, and another call follows
    alive.append(2)
    assert forming._form([0, 1]) is not None
    assert made == [[0, 1]]


def test_a_launcher_that_a_living_server_has_given_up_takes_over_nothing() -> None:
    key = bytes(wire.KEY_BYTES)
    server, standby = Server(2, key), Server(2, key)
    nodes = [Node(server.address, key, number, 2) for number in range(2)]
    coming = threading.Thread(
        target=nodes[1].start, args=(1, 5, None), kwargs={"stand_by": lambda _: standby.port}
    )
    coming.start()
    nodes[0].start(1, 5, server)
    coming.join()
    assert nodes[1].successors == [standby.address]
    server.start()
    nodes[1].abort()
    while not nodes[0].hear():  # that node 1 is lost
        select.select([nodes[0]], [], [], 5)
    search = Succession(nodes[1], standby, range(0), {0})
    select.select([search], [], [], 10)
    assert search.node is None
    assert "the job has started already, and its node 1 cannot rejoin" in search.refusal
    search.close()
    for each in (server, standby):
        each.close()
    nodes[0].abort()
