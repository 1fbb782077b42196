"""Collective calls that succeed on every rank or fail on every rank."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from malt._core_import import Group
from malt._errors import ConfigError, DamagedError, describe_ranks
from malt._job import calls
from malt._job import job as jobs

Result = TypeVar("Result")
Report = dict[str, Any]

_LENGTH = struct.Struct("<I")  # the length of a post, sent before it
_MOST_BYTES = 768  # the most bytes of one exchange: Group::kMostExchanged
_MOST_TOLD = 4096  # bytes of an error message sent to the other ranks
_DONE, _DAMAGED, _FAILED = b"+", b"?", b"!"


def check_alike(call: str, given: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise ConfigError if ranks differ in a value; `given` has each rank's values by name."""
    first, expected = next(iter(given.items()))
    for name, value in expected.items():
        others = {rank: theirs[name] for rank, theirs in given.items() if theirs[name] != value}
        if others:
            other = next(iter(others.values()))
            ranks = describe_ranks(rank for rank, theirs in others.items() if theirs == other)
            raise ConfigError(
                f"{call}: {name} is {value} on rank {first}, and {other} on {ranks}; give all "
                "ranks the same"
            )


class Together:
    """One collective call, in steps. `timeout` limits each step; None: that of malt.init()."""

    def __init__(self, call: str, timeout: float | None) -> None:
        if jobs.current().is_rejoining:
            raise ConfigError(
                f"{call} on a rejoining rank: the other ranks made this call long ago, and this "
                "rank has their values; call it under `if not malt.restarts():`, or after the "
                "first scatter, gather or allreduce"
            )
        self.call = call
        self.timeout = timeout

    @property
    def group(self) -> Group:
        """The present group."""
        return jobs.current().group

    def step(
        self, name: str, action: Callable[[], tuple[Result, Report]], timeout: float | None = None
    ) -> tuple[Result, dict[int, Report]]:
        """Run `action` on every rank, and tell the other ranks how it went.

        Returns:
            This rank's result, and by rank the report of each rank that is not dead.

        Raises:
            ConfigError: the action failed on a rank, which the message names; raised on every rank.
            DamagedError: a rank found that the data it read are damaged, and no rank had another
                failure; raised on every rank.
            TimeoutError: the ranks that the error names did not come.
        """
        failure: Exception | None = None
        try:
            result, report = action()
            post = _DONE + json.dumps(report).encode()
        except DamagedError as error:
            failure, post = error, _DAMAGED + str(error).encode()[:_MOST_TOLD]
        except ConfigError as error:
            failure, post = error, _FAILED + str(error).encode()[:_MOST_TOLD]
        except Exception as error:  # the other ranks must learn of every failure
            text = f"{type(error).__name__}: {error}"
            failure, post = error, _FAILED + text.encode()[:_MOST_TOLD]
        here = self._exchange(name, post, self.timeout if timeout is None else timeout)
        for mark, kind in ((_FAILED, ConfigError), (_DAMAGED, DamagedError)):
            failed = [rank for rank, post in here.items() if post[:1] == mark]
            if failed:
                text = here[failed[0]][1:].decode(errors="ignore")
                others = f" (and also {describe_ranks(failed[1:])})" if failed[1:] else ""
                raise kind(f"{self.call}: rank {failed[0]}: {text}{others}") from failure
        return result, {rank: json.loads(post[1:]) for rank, post in here.items()}

    def _exchange(self, name: str, post: bytes, limit: float | None) -> dict[int, bytes]:
        """Return the post of each rank that is not dead; long posts travel in pieces."""

        def exchange(begin: int) -> Iterator[tuple[int, bytes]]:
            what = f"{self.call}, step {name}" + (f" from byte {begin}" if begin else "")
            piece = whole[begin : begin + _MOST_BYTES]
            posts = calls.call(self.call, lambda group: group.exchange(what, piece, limit))
            return ((rank, post) for rank, post in enumerate(posts) if post is not None)

        whole = _LENGTH.pack(len(post)) + post
        here = dict(exchange(0))
        longest = _LENGTH.size + max(_LENGTH.unpack_from(told)[0] for told in here.values())
        for begin in range(_MOST_BYTES, longest, _MOST_BYTES):
            here = {rank: here[rank] + told for rank, told in exchange(begin)}
        return {rank: told[_LENGTH.size :] for rank, told in here.items()}
