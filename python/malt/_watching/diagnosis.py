"""Says in words what is wrong with a job, from several looks at it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malt._errors import describe_ranks
from malt._watching.rates import Rates, rates_of
from malt._watching.sources import Look

_STUCK_SECONDS = 1.0
_WAITS_MUCH = 0.3  # of a rank's time
_GROWS = 3  # iterations in the time watched


def problems_of(looks: Sequence[Sequence[Look]], cores: float) -> list[str]:
    """Return what is wrong, a sentence or two each; the worst first.

    Args:
        looks: at the same processes in the same order, at least two, over some seconds.
        cores: how many cores these ranks may use.
    """
    first, last = looks[0], looks[-1]
    rates = [rates_of(one, other) for one, other in zip(first, last, strict=True)]
    return [
        *_absent(rates),
        *_stuck(rates),
        *_straggler(rates),
        *_oversubscribed(rates, cores),
        *_growing(looks),
        *_idle(first, last),
    ]


def _absent(rates: Sequence[Rates]) -> list[str]:
    stopped = [one.rank for one in rates if one.state == "stopped"]
    ended = [one.rank for one in rates if one.state == "ended"]
    found = []
    if stopped:
        found.append(
            f"{_are(stopped)} stopped (by SIGSTOP or a debugger). The others evict a rank that is "
            "silent for MALT_SILENCE, 5 s. Send SIGCONT to go on."
        )
    if ended and len(ended) < len(rates):
        found.append(
            f"{_have(ended)} ended and the others go on. `malt run` says why a rank died; with "
            "--respawn it is started again."
        )
    return found


def _stuck(rates: Sequence[Rates]) -> list[str]:
    found = []
    for one in rates:
        if one.state != "waits" or one.waits_seconds < _STUCK_SECONDS:
            continue
        whom = "others" if one.waits_for is None else f"rank {one.waits_for}"
        found.append(
            f"Rank {one.rank} has waited for {whom} for {one.waits_seconds:.0f} s. All ranks make "
            "the same collective calls, and as many scatters, unless staleness is None."
        )
    return found


def _straggler(rates: Sequence[Rates]) -> list[str]:
    """Find the rank for which most others wait much, and which waits little itself."""
    waiting = [one for one in rates if one.waiting > _WAITS_MUCH and one.waits_for is not None]
    named = [one.waits_for for one in waiting]
    if not named:
        return []
    slowest = max(set(named), key=named.count)
    itself = next((one for one in rates if one.rank == slowest), None)
    if itself is None or itself.waiting > _WAITS_MUCH or 2 * named.count(slowest) < len(rates) - 1:
        return []
    share = float(np.mean([one.waiting for one in waiting if one.waits_for == slowest]))
    ranks = describe_ranks(one.rank for one in waiting if one.waits_for == slowest)
    problem = (
        f"Rank {slowest} is a straggler: {ranks} spent {share:.0%} of the time waiting for it, and "
        f"it waited {itself.waiting:.0%} itself. Give it less data or a faster core, or let the "
        "others run ahead: gather(staleness=k), or gather() without staleness."
    )
    return [problem]


def _oversubscribed(rates: Sequence[Rates], cores: float) -> list[str]:
    running = sum(one.state in ("runs", "waits") for one in rates)
    if running <= cores:
        return []
    problem = (
        f"{running} ranks run on {cores:g} cores: they take the cores from one another. Run one "
        "rank a core, with OMP_NUM_THREADS=1 in each."
    )
    return [problem]


def _growing(looks: Sequence[Sequence[Look]]) -> list[str]:
    """Find ranks whose updates get older from look to look."""
    if len(looks) < 4:
        return []
    found = []
    for of_rank in zip(*looks, strict=True):
        ages = np.array([look.peers[:, 2] for look in of_rank], dtype=np.int64)
        for sender in range(ages.shape[1]):
            age = ages[:, sender]
            quarter = len(age) // 4
            grows = bool(np.all(np.diff(age[::quarter]) > 0))
            if grows and age[-1] - age[0] >= _GROWS and of_rank[-1].state != "ended":
                found.append(
                    f"The updates that rank {of_rank[0].rank} gets from rank {sender} get older: "
                    f"{age[0]} iterations, now {age[-1]}. Rank {sender} is slower; bound it by "
                    "gather(staleness=k)."
                )
    return found


def _idle(first: Sequence[Look], last: Sequence[Look]) -> list[str]:
    names = ("scatters", "gathers", "allreduces", "waited")
    moved = any(
        one.totals[name] != other.totals[name]
        for one, other in zip(first, last, strict=True)
        for name in names
    )
    if moved or any(look.waits_seconds > 0 for look in last):
        return []
    if all(look.state == "ended" for look in last):
        return ["All ranks have ended."]
    return ["No rank has exchanged anything meanwhile: they compute, load data, or have finished."]


def _are(ranks: Sequence[int]) -> str:
    return describe_ranks(ranks).capitalize() + (" is" if len(ranks) == 1 else " are")


def _have(ranks: Sequence[int]) -> str:
    return describe_ranks(ranks).capitalize() + (" has" if len(ranks) == 1 else " have")
