"""The ranks of an attempt meet at torch's store, which has keys of earlier attempts."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import malt
from malt._bootstrap import torch_store
from malt._bootstrap.torch_store import Patience

dist = pytest.importorskip("torch.distributed")
_processes = itertools.count()


@pytest.fixture(name="process")
def _a_thread_is_a_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes the calling thread another process of its rank."""
    of_thread = threading.local()
    monkeypatch.setattr(torch_store, "os", SimpleNamespace(getpid=lambda: of_thread.number))

    def begin() -> None:
        of_thread.number = next(_processes)

    return begin


def meet(store: Any, rank: int, size: int, timeout: float = 20) -> str:
    return torch_store.meet(store, rank, size, Patience(timeout, set, "ask for more"))


def attempt(store: Any, size: int, begin: Any, meetings: int = 1) -> list[str]:
    """The names of the meetings of a new attempt, which are the same on all ranks."""

    def live(rank: int) -> list[str]:
        begin()
        return [meet(store, rank, size) for _ in range(meetings)]

    with ThreadPoolExecutor(size) as pool:
        lists = list(pool.map(live, range(size)))
    assert all(each == lists[0] for each in lists)
    return lists[0]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_meetings_of_all_attempts_have_other_names(process: Any, size: int) -> None:
    store = dist.HashStore()
    names = attempt(store, size, process, 5) + attempt(store, size, process, 3)
    names += attempt(store, max(size - 1, 1), process, 4) + attempt(store, size + 1, process)
    assert len(set(names)) == 13


def test_what_a_dead_rank_has_shown_does_not_count(process: Any) -> None:
    """A rank of the next attempt waits for those that have not come, and then meets them."""
    store = dist.HashStore()
    process()
    with pytest.raises(malt.TimeoutError, match=r"rank 1 did not come within 0.1 s.*ask for more"):
        meet(store, 0, 2, 0.1)
    before = attempt(store, 3, process)
    process()
    with pytest.raises(malt.TimeoutError, match="ranks 1, 2 did not come"):
        meet(store, 0, 3, 0.2)
    assert attempt(store, 3, process) != before


def test_a_rank_that_is_known_to_be_dead_is_not_waited_for(process: Any) -> None:
    process()
    with pytest.raises(malt.PeerError, match="rank 1 died before joining") as caught:
        torch_store.meet(dist.HashStore(), 0, 2, Patience(60, lambda: {1}, ""))
    assert caught.value.ranks == (1,)
