"""How the ranks of a process group find one another: through the store that torch gives them."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from malt._bootstrap.torch_store import Patience, TorchStore, meet

_LONGER = "init_process_group(timeout=...)"


def own_part(
    store: dist.Store, rank: int, size: int, timeout: float, find_dead: Callable[[], set[int]]
) -> dist.Store:
    """Return a part of `store` for these ranks, which earlier processes have not used."""
    store = dist.PrefixStore("malt", store)
    return dist.PrefixStore(meet(store, rank, size, Patience(timeout, find_dead, _LONGER)), store)


def bootstrap_over(
    store: dist.Store, rank: int, size: int, find_dead: Callable[[], set[int]] = set
) -> TorchStore:
    """Return a bootstrap over `store`, which these ranks alone use (a PrefixStore)."""
    return TorchStore(
        store,
        rank,
        size,
        "torch.distributed",
        _host_of(store),
        find_dead=find_dead,
        longer=_LONGER,
    )


def _host_of(store: dist.Store) -> str:
    """Return the host of the TCPStore that is behind `store`, or ""."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return str(store.host) if isinstance(store, dist.TCPStore) else ""
