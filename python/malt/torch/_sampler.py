"""A sampler for DataLoader over the ledger of malt.shard(chunk=)."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from torch.utils.data import Sampler as TorchSampler

from malt._data.shard import Shard, shard


class Sampler(TorchSampler[int]):  # type: ignore[misc] # PyTorch is no dependency
    """Shares the samples of a dataset out among the ranks, which may die, join and restart.

        sampler = malt.torch.Sampler(dataset, chunk=256, shuffle=1)
        for x, y in DataLoader(dataset, batch_size=32, sampler=sampler): ...

    A loop is one pass: each sample goes to one rank. The samples come in chunks. A chunk counts as
    seen when the loop asks for a sample after it; the chunks that a dead rank had not finished go
    to the others (malt.shard has the details). This takes a job: `malt.init()`.

    Let `chunk` be a multiple of the DataLoader's batch_size, and its num_workers be 0: workers ask
    for samples before the loop has trained on the ones before, which a death then loses. Ranks may
    get unequal numbers of batches: put a loop of DistributedDataParallel into `with model.join():`.

    Args:
        data: the dataset, or anything with a length, the same on all ranks.
        chunk: samples that a rank takes at a time.
        shuffle: a seed, for another order in each pass.

    Raises:
        ConfigError: an argument is wrong, or the ranks disagree.
        TimeoutError: the ranks that the error names did not make the sampler.
    """

    def __init__(self, data: Sized, *, chunk: int, shuffle: int | None = None) -> None:
        self._shard: Shard = shard(range(len(data)), chunk=chunk, shuffle=shuffle)

    @property
    def passes(self) -> int:
        """How many passes this rank has ended, including those before it was started again."""
        return self._shard.passes

    @property
    def repeated(self) -> list[tuple[int, int]]:
        """(pass, chunk) of each chunk that this rank has got after another one died with it."""
        return self._shard.repeated

    def __iter__(self) -> Iterator[int]:
        for part in self._shard:
            yield from part
