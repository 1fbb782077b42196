"""Collective calls that succeed on every rank or fail on every rank."""

from __future__ import annotations

import json
import struct
import time
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
_MOST_POST = 1 << 26  # bytes
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


class _Told(Report):
    """A report that another rank has sent."""

    def __missing__(self, name: str) -> Any:
        raise DamagedError(f"a report of another rank lacks {name!r}")


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
            if len(post) > _MOST_POST:
                raise ConfigError(
                    f"what the ranks compare takes {len(post):,} bytes here; at most "
                    f"{_MOST_POST:,} can be sent"
                )
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
        return result, {rank: self._report_of(rank, post) for rank, post in here.items()}

    def _report_of(self, rank: int, post: bytes) -> Report:
        try:
            report = json.loads(post[1:])
        except (ValueError, RecursionError):
            report = None
        if post[:1] != _DONE or not isinstance(report, dict):
            raise self._damaged(rank)
        return _Told(report)

    def _damaged(self, rank: int) -> DamagedError:
        return DamagedError(f"{self.call}: what rank {rank} sent is damaged")

    def _exchange(self, name: str, post: bytes, limit: float | None) -> dict[int, bytes]:
        """Return the post of each rank that is not dead; long posts travel in pieces."""

        def exchange(begin: int) -> Iterator[tuple[int, bytes]]:
            what = f"{self.call}, step {name}" + (f" from byte {begin}" if begin else "")
            piece = whole[begin : begin + _MOST_BYTES]
            left = max(0.0, deadline - time.monotonic()) if begin else limit
            posts = calls.call(self.call, lambda group: group.exchange(what, piece, left))
            return ((rank, post) for rank, post in enumerate(posts) if post is not None)

        limit = jobs.current().settings.timeout if limit is None else limit
        deadline = time.monotonic() + limit
        whole = _LENGTH.pack(len(post)) + post
        here = {rank: bytearray(told) for rank, told in exchange(0)}
        lengths = {rank: self._length_of(rank, told) for rank, told in here.items()}
        for begin in range(_MOST_BYTES, max(lengths.values()), _MOST_BYTES):
            there = dict(exchange(begin))
            here = {rank: here[rank] for rank in there}
            for rank, told in there.items():
                here[rank] += told
                if len(here[rank]) != min(lengths[rank], begin + _MOST_BYTES):
                    raise self._damaged(rank)
        return {rank: bytes(told[_LENGTH.size :]) for rank, told in here.items()}

    def _length_of(self, rank: int, told: bytearray) -> int:
        """Return the length of a rank's whole post, of which this is the first piece."""
        if len(told) >= _LENGTH.size:
            length = _LENGTH.size + int(_LENGTH.unpack_from(told)[0])
            if length <= _LENGTH.size + _MOST_POST and len(told) == min(length, _MOST_BYTES):
                return length
        raise self._damaged(rank)
