"""A rank's part of a table when it moves: what ends an attempt, and the edition it is then in."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

import malt
from malt._checkpoint import spread
from malt._checkpoint.spread import Range
from malt._core_import import Deadline
from malt.ps._saving import TableRows
from malt.ps._seat import Seat


@pytest.mark.parametrize(("alive", "dead"), [((0, 1, 2), [1]), ((0, 2, 3), [1]), ((1, 2, 3), [0])])
def test_a_move_ends_when_a_client_or_server_has_died_though_all_ranges_have_come(
    alive: tuple[int, ...], dead: list[int]
) -> None:
    """Members 0 and 1 are the clients of ranks 0 and 1, members 2 and 3 their servers."""
    job: Any = SimpleNamespace(size=2)
    core: Any = SimpleNamespace(movers=list)
    formed: Any = SimpleNamespace(ranks=[0, 1], clients=SimpleNamespace(alive=lambda: alive))
    seat = Seat(job, "t", "", core, 1.0)
    with pytest.raises(malt.PeerError, match="died while the table moved") as caught:
        seat._await_ranges(formed)
    assert list(caught.value.ranks) == dead


def test_a_move_ends_well_when_all_ranges_have_come_and_all_members_live() -> None:
    job: Any = SimpleNamespace(size=1)
    core: Any = SimpleNamespace(movers=list)
    formed: Any = SimpleNamespace(ranks=[0], clients=SimpleNamespace(alive=lambda: (0, 1)))
    Seat(job, "t", "", core, 1.0)._await_ranges(formed)


def test_a_move_that_takes_too_long_names_the_ranks_whose_ranges_have_not_come() -> None:
    job: Any = SimpleNamespace(size=2)
    core: Any = SimpleNamespace(movers=lambda: [1])
    formed: Any = SimpleNamespace(ranks=[0, 1], clients=SimpleNamespace(alive=lambda: (0, 1, 2, 3)))
    with pytest.raises(malt.TimeoutError, match="ranges of rank 1 did not come") as caught:
        Seat(job, "t", "", core, 0.01)._await_ranges(formed)
    assert list(caught.value.ranks) == [1]


def test_a_rank_that_has_moved_once_more_than_another_is_in_another_edition() -> None:
    job: Any = SimpleNamespace(size=2)
    core: Any = SimpleNamespace(commit=lambda: None)
    formed: Any = SimpleNamespace(ranks=[0, 1], clients=None)
    seats = [Seat(job, "t", "", core, 1.0) for _ in range(2)]
    rows = [TableRows(seat, {"rows": 1}, [], 2, 1.0, placing=None, is_bsp=False) for seat in seats]

    def can_be_saved() -> bool:
        reports = {rank: {"editions": spread.editions_of({"t": rows[rank]})} for rank in (0, 1)}
        return spread.are_of_one_edition(reports)

    assert can_be_saved()
    for brought in ([b"Bclock 3", b"N"], [b"Bclock 7", b"Bclock 5"], [b"N", b"Bclock 8"]):
        seats[0]._commit(formed, brought)
        assert not can_be_saved()
        seats[1]._commit(formed, brought)
        assert can_be_saved()


def test_all_waits_for_rows_that_are_saved_have_one_limit() -> None:
    """The server is slow, but answers each question within the whole limit."""

    def read(_: int, __: int, ___: Any, deadline: Deadline) -> None:
        if deadline.left < 0.3:
            raise malt.TimeoutError("rank 0 did not answer", [0])
        time.sleep(0.3)

    seat: Any = SimpleNamespace(core=SimpleNamespace(read=read))
    facts = {"rows": 160, "width": None, "dtype": "float32"}
    rows = TableRows(seat, facts, [], 1, 1.0, placing=None, is_bsp=False)
    ranges = [Range(number, 16 * number, 16 * number + 16) for number in range(10)]
    since = time.monotonic()
    with pytest.raises(malt.TimeoutError):
        _ = [rows.read(each, 0) for each in ranges]
    assert time.monotonic() - since < 2
