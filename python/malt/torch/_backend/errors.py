"""The errors of the backend: MALT's own, which are also RuntimeError, as users of torch expect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from malt import _errors as errors

_OWN_END = re.compile(r"rank (\d+)(?= was evicted| is cut off)")  # the core's, of its own rank


class ConfigError(errors.ConfigError, RuntimeError):
    """A call has wrong arguments, or cannot work here."""


class PeerError(errors.PeerError, RuntimeError):
    """A rank that the call needs is dead or has left.

    Attributes:
        ranks: the ranks of the whole job that are dead or have left, sorted.
    """


class TimeoutError(errors.TimeoutError, RuntimeError):  # noqa: A001 - MALT's name
    """Ranks did not come to a call within its time limit.

    Attributes:
        ranks: the ranks of the whole job that it was waiting for, sorted.
    """


@contextmanager
def translated(call: str, names: Sequence[int]) -> Iterator[None]:
    """Raise the core's errors as this module's; `names` has the rank in the job of each rank."""
    try:
        yield
    except (errors.PeerError, errors.TimeoutError, errors.ConfigError) as error:
        raise translation(call, names, error) from error


def translation(call: str, names: Sequence[int], error: errors.Error) -> errors.Error:
    """Return this module's error for one of the core's."""
    if isinstance(error, errors.PeerError):
        ranks = [names[rank] for rank in error.ranks]
        told = str(error)
        if own := _OWN_END.match(told):
            told = f"rank {names[int(own[1])]}{told[own.end() :]}"
        elif ranks:
            told = f"{errors.describe_ranks(ranks)} died or left"
        return PeerError(f"{call}: {told}", ranks)
    if isinstance(error, errors.TimeoutError) and not error.ranks:
        return TimeoutError(f"{call}: {error}")
    if isinstance(error, errors.TimeoutError):
        ranks = [names[rank] for rank in error.ranks]
        return TimeoutError(
            f"{call}: Timed out waiting for {errors.describe_ranks(ranks)}; a longer time limit: "
            "init_process_group(timeout=) or new_group(timeout=)",
            ranks,
        )
    return ConfigError(f"{call}: {error}")
