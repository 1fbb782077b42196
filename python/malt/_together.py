"""Collective calls that succeed on every rank or fail on every rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from malt import _job
from malt._core_import import Group
from malt._errors import ConfigError, DamagedError, describe_ranks

Result = TypeVar("Result")
Report = dict[str, Any]

_MOST_BYTES = 768  # of a report: Group::kMostExchanged
_DONE, _DAMAGED, _FAILED = b"+", b"?", b"!"


class Together:
    """One collective call, in steps. `timeout` is for each; None: that of malt.init()."""

    def __init__(self, call: str, timeout: float | None) -> None:
        if _job.current().is_waited_for:
            raise ConfigError(
                f"{call} on a rank that has come back: the others made this call long ago, and it "
                "has their values; call it `if not malt.restarts():`, or after the first scatter, "
                "gather or allreduce"
            )
        self.call = call
        self.timeout = timeout

    @property
    def group(self) -> Group:
        """The present one."""
        return _job.current().group

    def step(
        self, name: str, action: Callable[[], tuple[Result, Report]], timeout: float | None = None
    ) -> tuple[Result, dict[int, Report]]:
        """Act on every rank, and tell one another how it went.

        Returns:
            This rank's result, and by rank what each reported, of those that have not died.

        Raises:
            ConfigError: it failed on a rank, which the message names; raised on every rank.
            DamagedError: likewise; a rank found what it read damaged, and none had another failure.
            TimeoutError: the named ranks did not come.
        """
        failure: Exception | None = None
        try:
            result, report = action()
            post = _DONE + json.dumps(report).encode()
        except DamagedError as error:
            failure, post = error, _DAMAGED + str(error).encode()
        except ConfigError as error:
            failure, post = error, _FAILED + str(error).encode()
        except Exception as error:  # the others must hear of it, whatever it is
            failure, post = error, _FAILED + f"{type(error).__name__}: {error}".encode()
        limit = self.timeout if timeout is None else timeout
        posts = _job.call(
            lambda group: group.exchange(f"{self.call}, {name}", post[:_MOST_BYTES], limit)
        )
        here = {rank: post for rank, post in enumerate(posts) if post is not None}
        for mark, kind in ((_FAILED, ConfigError), (_DAMAGED, DamagedError)):
            failed = [rank for rank, post in here.items() if post[:1] == mark]
            if failed:
                text = here[failed[0]][1:].decode(errors="ignore")
                others = f" (and likewise {describe_ranks(failed[1:])})" if failed[1:] else ""
                raise kind(f"{self.call}: rank {failed[0]}: {text}{others}") from failure
        return result, {rank: json.loads(post[1:]) for rank, post in here.items()}
