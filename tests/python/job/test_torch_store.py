"""The ranks of an attempt meet at torch's store, which has keys of earlier attempts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import malt
from malt._bootstrap import torch_store
from malt._bootstrap.torch_store import Patience

dist = pytest.importorskip("torch.distributed")


def meet(store: Any, rank: int, size: int, timeout: float = 20) -> str:
    return torch_store.meet(store, rank, size, Patience(timeout, set, "ask for more"))


def attempt(store: Any, size: int, meetings: int = 1) -> list[str]:
    """The names of the meetings of an attempt, which are the same on all ranks."""
    all_have_met = threading.Barrier(size)

    def live(rank: int) -> list[str]:
        names = []
        for _ in range(meetings):
            names.append(meet(store, rank, size))
            all_have_met.wait(20)
        return names

    with ThreadPoolExecutor(size) as pool:
        lists = list(pool.map(live, range(size)))
    assert all(each == lists[0] for each in lists)
    return lists[0]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_meetings_of_all_attempts_have_other_names(size: int) -> None:
    store = dist.HashStore()
    names = attempt(store, size, 5) + attempt(store, size, 3)
    names += attempt(store, max(size - 1, 1), 4) + attempt(store, size + 1)
    assert len(set(names)) == 13


def test_what_a_dead_rank_has_shown_does_not_count() -> None:
    """A rank of the next attempt waits for those that have not come, and then meets them."""
    store = dist.HashStore()
    with pytest.raises(malt.TimeoutError, match=r"rank 1 did not come within 0.1 s.*ask for more"):
        meet(store, 0, 2, 0.1)
    before = attempt(store, 3)
    with pytest.raises(malt.TimeoutError, match="ranks 1, 2 did not come"):
        meet(store, 0, 3, 0.2)
    assert attempt(store, 3) != before


def test_ranks_meet_though_one_of_them_has_not_seen_the_last_meeting() -> None:
    """Rank 1 was stopped for longer than its limit, after it had shown what rank 0 then saw."""
    store = dist.HashStore()
    shown = threading.Event()

    class Stopped(Patience):
        def nap(self, missing: set[int]) -> None:
            if store.check(["seen/1"]):
                shown.set()
                raise malt.TimeoutError("rank 0 did not come", [0])
            super().nap(missing)

    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(torch_store.meet, store, 1, 2, Stopped(20, set, ""))
        store.set("drawn/0", b"another number")  # of rank 0, which shows nothing yet
        assert shown.wait(20)
        with pytest.raises(malt.TimeoutError):
            late.result()
        first = pool.submit(meet, store, 0, 2)
        assert meet(store, 1, 2) == first.result()


@pytest.mark.parametrize("ranks", [60])
def test_a_late_rank_costs_the_others_an_operation_a_look(ranks: int) -> None:
    counted = 0

    class Store:
        def __getattr__(self, name: str) -> Any:
            nonlocal counted
            counted += 1
            return getattr(inner, name)

    inner = dist.HashStore()
    for rank in range(1, ranks - 1):
        inner.set(f"drawn/{rank}", b"a number")
    with pytest.raises(malt.TimeoutError, match=f"rank {ranks - 1} did not come"):
        meet(Store(), 0, ranks, 0.5)
    assert counted < 2 * ranks + 60  # the first look, the last one, and some 30 between


def test_a_rank_that_is_known_to_be_dead_is_not_waited_for() -> None:
    with pytest.raises(malt.PeerError, match="rank 1 died before joining") as caught:
        torch_store.meet(dist.HashStore(), 0, 2, Patience(60, lambda: {1}, ""))
    assert caught.value.ranks == (1,)
