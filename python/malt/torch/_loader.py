"""A DataLoader over the ledger of malt.shard(chunk=)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from malt._alike import check_alike
from malt._arguments import whole
from malt._data.shard import Shard, shard
from malt._job import job as jobs
from malt._job.agreement import Report, Together

_CALL = "malt.torch.Loader"


class Loader:
    """Batches of a dataset, shared out among the ranks, which may die, join and restart.

        loader = malt.torch.Loader(dataset, batch_size=32, chunk=256, shuffle=1)
        for x, y in loader: ...

    A loop is one pass: each sample goes to one rank. A rank takes the samples in chunks, and its
    batches end where a chunk ends, so the last batch of a chunk may be smaller. A chunk counts as
    seen when the loop comes back after the chunk's last batch. If a rank dies, the chunks that it
    has not finished go to the others (malt.shard has the details). This takes a job: `malt.init()`.

    The batches come from one PyTorch DataLoader, which loads one chunk at a time. Its workers (with
    `num_workers`) load ahead within the chunk, so give a chunk several batches. They go on from
    chunk to chunk and from pass to pass, unless `persistent_workers` is False.

    Args:
        data: a map-style dataset with a length, the same on all ranks.
        batch_size: samples in a batch, the same on all ranks.
        chunk: samples that a rank takes at a time; best a multiple of `batch_size`.
        shuffle: a seed, for another order in each pass.
        lockstep: the loops of all ranks get equally many batches. This is needed where a step waits
            for the other ranks' steps, as in DistributedDataParallel. A rank that has no samples
            left while others have gets its last batch again (if it had none, the first samples).
        options: of the DataLoader, such as num_workers, collate_fn and pin_memory.

    Raises:
        ConfigError: on every rank: an argument is wrong on one, or the ranks disagree.
        TimeoutError: the ranks that the error names did not make the loader.
        ValueError: from PyTorch: one of the options is wrong.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int,
        chunk: int,
        shuffle: int | None = None,
        lockstep: bool = False,
        **options: Any,
    ) -> None:
        options.setdefault("persistent_workers", options.get("num_workers", 0) > 0)
        self._batches: list[list[int]] = []  # of the present chunk
        self._loader = DataLoader(data, batch_sampler=self._batches, **options)
        self._batch_size = _agreed(batch_size)
        self._shard: Shard = shard(
            range(len(data)), chunk=chunk, shuffle=shuffle, lockstep=lockstep
        )
        self._spare = list(range(min(self._batch_size, len(data))))  # given in lockstep
        self._least = -(-min(chunk, len(data)) // self._batch_size) if lockstep else 0

    @property
    def passes(self) -> int:
        """How many passes this rank has ended, including those before it was started again."""
        return self._shard.passes

    @property
    def repeated(self) -> list[tuple[int, int]]:
        """(pass, chunk) of each chunk that this rank has got after another one died with it."""
        return self._shard.repeated

    def __iter__(self) -> Iterator[Any]:
        size = self._batch_size
        for part in self._shard:
            batches = [list(part[at : at + size]) for at in range(0, len(part), size)]
            if batches:
                self._spare = batches[-1]
            self._batches[:] = batches + [self._spare] * (self._least - len(batches))
            yield from self._loader


def _agreed(batch_size: int) -> int:
    """Check the batch size on all ranks. Collective, but not on a rejoining rank."""

    def check() -> tuple[None, Report]:
        return None, {"batch_size": whole("batch_size", batch_size, 1)}

    if jobs.current().makes_due():
        check()
    else:
        check_alike(_CALL, Together(_CALL, None).step("the batch size", check)[1])
    return int(batch_size)
