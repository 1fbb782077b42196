"""A rank's part of a table when it moves: what ends an attempt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import malt
from malt.ps._seat import Seat


@pytest.mark.parametrize(("alive", "dead"), [((0, 1, 2), [1]), ((0, 2, 3), [1]), ((1, 2, 3), [0])])
def test_a_move_ends_when_a_client_or_server_has_died_though_all_ranges_have_come(
    alive: tuple[int, ...], dead: list[int]
) -> None:
    """Members 0 and 1 are the clients of ranks 0 and 1, members 2 and 3 their servers."""
    job: Any = SimpleNamespace(size=2)
    core: Any = SimpleNamespace(has_moved=lambda: True)
    formed: Any = SimpleNamespace(ranks=[0, 1], clients=SimpleNamespace(alive=lambda: alive))
    seat = Seat(job, "t", "", core, 1.0)
    with pytest.raises(malt.PeerError, match="died while the table moved") as caught:
        seat._await_ranges(formed)
    assert list(caught.value.ranks) == dead


def test_a_move_ends_well_when_all_ranges_have_come_and_all_members_live() -> None:
    job: Any = SimpleNamespace(size=1)
    core: Any = SimpleNamespace(has_moved=lambda: True)
    formed: Any = SimpleNamespace(ranks=[0], clients=SimpleNamespace(alive=lambda: (0, 1)))
    Seat(job, "t", "", core, 1.0)._await_ranges(formed)
