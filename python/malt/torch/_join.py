"""Loops with unequal numbers of batches whose exchanges wait for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from malt._core_import import SUM, Vector
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._vectors.averaging import Averaging
from malt._vectors.progress import Progress
from malt._vectors.vectors import vector


class Join:
    """Lets ranks that have finished their loop take part in the exchanges of the others.

    PyTorch's Join does the same for DistributedDataParallel. Before each exchange of such a loop
    the ranks tell one another who is still in the loop, by one more small allreduce.

    Attributes:
        last: the lowest of the ranks that made the last exchange in their loops; None: none has.
    """

    def __init__(self, averaging: Averaging) -> None:
        self.last: int | None = None
        self._can_wait = averaging.staleness == 0
        self._active: Vector | None = None
        self._is_on = False

    @contextmanager
    def loop(self, take_part: Callable[[], None]) -> Iterator[None]:
        """Run the loop; then call `take_part` for each exchange that other ranks still make."""
        if not self._can_wait:
            raise ConfigError(
                "join() is for staleness=0, where an exchange waits for all ranks; with None none "
                "does, and otherwise a rank that is done calls close()"
            )
        if self._active is None:
            self._active = vector(jobs.size(), dtype="float64")
        self._is_on = True
        try:
            yield
            while self._tell(Progress(), is_active=False):
                take_part()
        finally:
            self._is_on = False

    def before_exchange(self, progress: Progress) -> None:
        """Note that this rank is about to exchange, in a step of its loop."""
        if self._is_on:
            self._tell(progress, is_active=True)

    def close(self) -> None:
        if self._active is not None:
            self._active.close()

    def _tell(self, progress: Progress, *, is_active: bool) -> bool:
        assert self._active is not None
        ranks = self._active.array
        if not progress.has_exchanged(self._active):
            ranks[:] = 0
            ranks[jobs.rank()] = is_active
        progress.allreduce(self._active, SUM)
        if not ranks.any():
            return False
        self.last = int(ranks.argmax())
        return True
