"""The errors of the backend: MALT's own, which are also RuntimeError, as users of torch expect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from malt import _errors as errors


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
    except errors.PeerError as error:
        ranks = [names[rank] for rank in error.ranks]
        dead = f"{errors.describe_ranks(ranks)} died or left" if ranks else str(error)
        raise PeerError(f"{call}: {dead}", ranks) from error
    except errors.TimeoutError as error:
        ranks = [names[rank] for rank in error.ranks]
        raise TimeoutError(
            f"{call}: Timed out waiting for {errors.describe_ranks(ranks)}; a longer time limit: "
            "init_process_group(timeout=) or new_group(timeout=)",
            ranks,
        ) from error
    except errors.ConfigError as error:
        raise errors.ConfigError(f"{call}: {error}") from error
