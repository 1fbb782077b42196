"""A limit on the processor time of some work, as `src/dstorm/remote/tcp/processor_budget.hpp`."""

from __future__ import annotations


class ProcessorBudget:
    """A bucket of seconds that fills at a steady rate, up to what it held at first.

    Time that is spent beyond that is owed.
    """

    def __init__(self, share: float, most_seconds: float, now: float) -> None:
        """The bucket is full, and gains `share` of each second."""
        self._share = share
        self._most = self._left = most_seconds
        self._filled = now

    def spend(self, seconds: float, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._filled) * self._share) - seconds
        self._filled = now

    def has_at(self, wanted: float) -> float:
        """Return when the bucket holds `wanted` seconds, if nothing is spent until then."""
        return self._filled + max(0.0, wanted - self._left) / self._share
