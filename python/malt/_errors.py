"""The exceptions that MALT raises. Every message names the value, the limit and the way out."""

from __future__ import annotations

import builtins
from collections.abc import Iterable


class Error(Exception):
    """The base class of all of MALT's own errors."""


class ConfigError(Error, ValueError):
    """Misuse, or a set-up that cannot work: shapes that differ, no space, a bad graph."""


class DamagedError(ConfigError):
    """The data read are not the data that were written, or are incomplete."""


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - the name that is promised
    """A wait reached its time limit.

    Attributes:
        ranks: the ranks for which it was still waiting, sorted.
    """

    ranks: tuple[int, ...]

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(ranks))


class PeerError(Error, ConnectionError):
    """This rank was evicted or cut off, or a rank that the call needs is dead or has left.

    Attributes:
        ranks: the ranks that are dead or have left, sorted; all others if it is this rank that was
            evicted or cut off.
    """

    ranks: tuple[int, ...]

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(ranks))


class SupersededError(Error):
    """The ranks move to another group, in which the interrupted call must be made again.

    The package handles this error itself; users never see it.
    """


class OtherCallError(ConfigError):
    """Another rank made another call of an exchange at the same time; all ranks have this error.

    The package handles this error itself; users never see it.
    """


# Tracebacks show the names that users write.
for _public in (Error, ConfigError, TimeoutError, PeerError):
    _public.__module__ = "malt"


def describe_ranks(ranks: Iterable[int], noun: str = "rank") -> str:
    """Name ranks in a message: "rank 3" or "ranks 1, 4, 7"."""
    listed = sorted(ranks)
    return (noun if len(listed) == 1 else f"{noun}s") + " " + ", ".join(map(str, listed))
