"""Time limits of calls, as the time.monotonic() at which they end."""

from __future__ import annotations

import time


def deadline_in(seconds: float) -> float:
    """Return the time.monotonic() at which a call ends that begins now."""
    return time.monotonic() + seconds


def time_left(deadline: float) -> float:
    """Return the seconds until then."""
    return max(0.0, deadline - time.monotonic())
