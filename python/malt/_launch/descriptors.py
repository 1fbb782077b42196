"""How many files the launcher has open, and its limit on them."""

from __future__ import annotations

import resource

from malt._errors import ConfigError


def check_descriptors(ranks: int, sessions: int) -> None:
    """Refuse more ranks and sessions than this process may have descriptors for.

    Raises:
        malt.ConfigError: there are too many.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = _descriptors_needed(ranks, sessions)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"{max(ranks, sessions)} ranks need {needed} open files in the launcher, the limit is "
            f"{hard}: fewer ranks, or raise it (ulimit -Hn)"
        )


def raise_descriptor_limit(ranks: int, sessions: int) -> tuple[int, int]:
    """Allow the launcher the descriptors it needs; return the limits as they were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _descriptors_needed(ranks, sessions)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return soft, hard


def _descriptors_needed(ranks: int, sessions: int) -> int:
    return 3 * ranks + sessions + 64  # two pipes, and perhaps a recorder, for each rank
