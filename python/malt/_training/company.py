"""The ranks that train together."""

from __future__ import annotations

from collections.abc import Iterable

from malt._errors import PeerError, describe_ranks
from malt._job import job as jobs


def check_company(ranks: Iterable[int]) -> None:
    """Raise PeerError if a rank that lives has left the training, by an exception of its own.

    A model that is trained without a dead rank is right; without one that goes on, the ranks would
    have models that differ, and no error.

    Args:
        ranks: the other ones that were in the training's last allreduce.
    """
    if left := set(jobs.alive()) - {jobs.rank(), *ranks}:
        raise PeerError(
            f"fit(): {describe_ranks(left)} ended the training early, by an error, a time limit or "
            "an interrupt there; train again on all ranks",
            left,
        )
