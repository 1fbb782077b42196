"""Aligning the clocks of hosts by what their ranks received from one another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from malt._watching.clocks import Sent, shifts_of

UNKNOWN = math.inf


@pytest.mark.parametrize("seed", range(20))
def test_the_true_shifts_are_within_the_errors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hosts = int(rng.integers(2, 6))
    clocks = rng.normal(0, 1e6, hosts)  # what each host's clock shows at the true time 0
    most = np.full((hosts, hosts), UNKNOWN)
    for a in range(hosts):
        for b in range(hosts):
            if a != b and (rng.random() < 0.5 or b == (a + 1) % hosts):
                took = rng.exponential(100)  # the soonest of what a received from b
                most[a, b] = took + clocks[a] - clocks[b]
    for at, shift in enumerate(shifts_of(most)):
        assert shift.error is not None
        assert abs(shift.by - (clocks[0] - clocks[at])) <= shift.error + 1e-6
        assert shift.drift == 0
        assert shift.error < 100 * 10 * hosts


def test_messages_in_one_direction_move_a_clock_no_further_than_they_must() -> None:
    # Host 1 folded 40 us before host 0 scattered: so host 1's clock is at least 40 us late.
    most = np.array([[UNKNOWN, UNKNOWN], [-40.0, UNKNOWN]])
    assert shifts_of(most)[1] == (40.0, None, 0.0)
    most[1, 0] = 40.0  # the clocks alone satisfy this
    assert shifts_of(most)[1] == (0.0, None, 0.0)


def test_hosts_that_exchange_nothing_keep_their_clocks() -> None:
    assert shifts_of(np.full((3, 3), UNKNOWN)) == [(0, 0, 0), (0, None, 0), (0, None, 0)]


def test_contradictory_bounds_show_that_a_clock_drifts() -> None:
    by, error, drift = shifts_of(np.array([[UNKNOWN, 10.0], [-16.0, UNKNOWN]]))[1]
    assert (by, error, drift) == (13.0, None, 6.0)


def test_an_update_began_at_the_first_scatter_of_its_iteration_or_a_later_one() -> None:
    sent = Sent([1.0, 2.0, 3.5], [1, 2, 4], is_complete=True)
    found = sent.begins(np.array([0, 1, 2, 3, 4, 5]))
    assert found.tolist() == [1.0, 1.0, 2.0, 3.5, 3.5, -math.inf]


def test_with_two_vectors_the_earlier_scatter_counts() -> None:
    # One vector is at iteration 100, the other begins at 1: an update of iteration 2 may be either.
    sent = Sent([1.0, 2.0, 3.0], [100, 1, 2], is_complete=True)
    assert sent.begins(np.array([2])).tolist() == [1.0]


def test_scatters_that_the_file_lacks_bound_nothing() -> None:
    sent = Sent([7.0, 8.0], [40, 41], is_complete=False)
    assert sent.begins(np.array([3, 40, 41])).tolist() == [-math.inf, -math.inf, 8.0]
    two_vectors = Sent([7.0, 8.0, 9.0], [40, 3, 41], is_complete=False)
    assert two_vectors.begins(np.array([3, 40, 41])).tolist() == [-math.inf] * 3
    assert Sent([], [], is_complete=True).begins(np.array([1])).tolist() == [-math.inf]
