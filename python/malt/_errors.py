"""What MALT raises. Every message names the value, the limit and the way out."""

from __future__ import annotations

import builtins
from collections.abc import Iterable


class Error(Exception):
    """Any error of MALT's own; the kinds below are all of this class."""


class ConfigError(Error, ValueError):
    """Misuse, or a set-up that cannot work: shapes that differ, no space, a bad graph."""


class DamagedError(ConfigError):
    """What was read is not what was written, or not all of it."""


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - the name that is promised
    """A wait reached its time limit.

    Attributes:
        ranks: the ranks that it was still waiting for, sorted.
    """

    ranks: tuple[int, ...]

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(ranks))


class PeerError(Error, ConnectionError):
    """This rank was left out or is cut off, or a peer is gone that something cannot go on without.

    Attributes:
        ranks: the ranks that are gone, sorted; none if it is this one.
    """

    ranks: tuple[int, ...]

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(ranks))


class SupersededError(Error):
    """The ranks go over to another group, in which what was called is to be called again.

    Not for users: the package sees to it.
    """


def describe_ranks(ranks: Iterable[int], noun: str = "rank") -> str:
    """For messages: "rank 3" or "ranks 1, 4, 7"."""
    listed = sorted(ranks)
    return (noun if len(listed) == 1 else f"{noun}s") + " " + ", ".join(map(str, listed))
