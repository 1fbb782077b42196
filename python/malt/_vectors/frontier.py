"""The frontier of several vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from malt._core_import import Deadline
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._vector_types import AnyVector


class Frontier:
    """The frontier of several vectors: the lowest of theirs.

    Source: Murray et al., Naiad: A Timely Dataflow System (SOSP 2013), which notifies a vertex when
    no earlier message can arrive.
    """

    def __init__(self, vectors: Sequence[AnyVector]) -> None:
        """Watch these vectors, at least one. Not collective.

        Raises:
            ConfigError: there is none, or one of these is no vector.
        """
        self._vectors = list(vectors)
        if not self._vectors or not all(hasattr(each, "frontier") for each in self._vectors):
            raise ConfigError(f"vectors is {vectors!r}; it is a list of at least one vector")

    def frontier(self) -> int:
        """Return the highest iteration of which the updates of all the vectors have arrived."""
        return min(vector.frontier() for vector in self._vectors)

    def wait_for(self, iteration: int, *, timeout: float | None = None) -> None:
        """Wait until frontier() is at least `iteration`, or no other rank is alive.

        Args:
            iteration: from 0 on.
            timeout: seconds to wait, for all vectors together; that of malt.init() if None.

        Raises:
            ConfigError: `iteration` is below 0.
            TimeoutError: the ranks that the error names did not scatter it.
        """
        deadline = jobs.current().deadline() if timeout is None else Deadline(timeout)
        for vector in self._vectors:
            vector.wait_for(iteration, timeout=deadline.left)

    def on_frontier(self, iteration: int, function: Callable[[int], object]) -> None:
        """Have function(iteration) called once, when frontier() has reached `iteration`.

        It is called in the thread of this rank's next scatter, gather, wait_for or frontier of the
        vector that comes last, when that call has done its work.

        Raises:
            ConfigError: `iteration` is below 0.
        """
        missing = len(self._vectors)

        def note(reached: int) -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                function(reached)

        for vector in self._vectors:
            vector.on_frontier(iteration, note)
