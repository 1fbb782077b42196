"""What `malt doctor` says of made-up ranks."""

from __future__ import annotations

import numpy as np
import pytest

from malt._watching.diagnosis import problems_of
from malt._watching.rates import rates_of
from malt._watching.sources import Look

SECOND = 10**9
TOTALS = (
    *("iteration", "scatters", "gathers", "allreduces", "bytes_out", "bytes_in", "folded"),
    *("waited", "epoch", "waits_since", "waits_for"),
)


def look(
    rank: int,
    seconds: float,
    *,
    size: int = 3,
    state: str = "runs",
    waited_for: dict[int, float] | None = None,
    ages: dict[int, int] | None = None,
    **totals: int,
) -> Look:
    """A rank after some seconds; it has waited so long for others, and has folded old updates."""
    peers = np.zeros((size, 6), np.uint64)
    for other, waited in (waited_for or {}).items():
        peers[other, 0] = int(waited * SECOND)
    for other, age in (ages or {}).items():
        peers[other, 1:3] = 1, age
    waited = int(peers[:, 0].sum())
    time = int((1000 + seconds) * SECOND)
    values = dict.fromkeys(TOTALS, 0) | {"waited": waited, "scatters": int(seconds * 10)} | totals
    return Look(rank, size, 100 + rank, time, state, values, peers, {})


def test_a_healthy_job_has_no_problem() -> None:
    looks = [[look(rank, at, waited_for={0: at * 0.1}) for rank in range(3)] for at in (0, 1, 2)]
    assert problems_of(looks, cores=4) == []


def test_the_rank_for_which_the_others_wait_is_the_straggler() -> None:
    looks = [
        [look(0, at, waited_for={2: at * 0.9}), look(1, at, waited_for={2: at * 0.8}), look(2, at)]
        for at in (0, 1, 2)
    ]
    (problem,) = problems_of(looks, cores=4)
    assert problem.startswith("Rank 2 is a straggler: ranks 0, 1 spent 85% of the time waiting")


def test_ranks_that_all_wait_have_no_straggler() -> None:
    looks = [
        [look(rank, at, waited_for={(rank + 1) % 3: at * 0.9}) for rank in range(3)]
        for at in (0, 1)
    ]
    assert problems_of(looks, cores=4) == []


def test_more_ranks_than_cores_are_too_many() -> None:
    looks = [[look(rank, at) for rank in range(3)] for at in (0, 1)]
    (problem,) = problems_of(looks, cores=2)
    assert problem.startswith("3 ranks run on 2 cores")


def test_a_wait_in_progress_is_seen_and_named() -> None:
    since = {"waits_since": 1000 * SECOND, "waits_for": 2}
    looks = [
        [look(0, at, **since), look(1, at, state="stopped"), look(2, at, state="ended")]
        for at in (1, 3)
    ]
    problems = problems_of(looks, cores=4)
    assert problems[0].startswith("Rank 1 is stopped")
    assert problems[1].startswith("Rank 2 has ended and the others go on")
    assert problems[2].startswith("Rank 0 has waited for rank 1 for 3 s")


def test_updates_that_get_older_are_named_and_steady_ones_are_not() -> None:
    looks = [[look(0, at, ages={1: 5, 2: 2 * at}), look(1, at), look(2, at)] for at in range(8)]
    (problem,) = problems_of(looks, cores=4)
    assert problem.startswith("The updates that rank 0 gets from rank 2 get older")


def test_a_job_that_does_nothing_is_said_to() -> None:
    looks = [[look(rank, 1) for rank in range(2)] for _ in range(3)]
    (problem,) = problems_of(looks, cores=4)
    assert problem.startswith("No rank has exchanged anything")


def test_rates_count_a_wait_in_progress_as_far_as_it_has_come() -> None:
    before = look(0, 1)
    after = look(0, 3, waits_since=1002 * SECOND, waits_for=2)
    rates = rates_of(before, after)
    assert rates.state == "waits"
    assert rates.waiting == pytest.approx(0.5)
    assert rates.waits_for == 1
    assert rates.iterations == pytest.approx(10)
