"""The rounds that a rank keeps for rejoining ranks. tests/model/rejoining tests whole jobs."""

from __future__ import annotations

import numpy as np

import malt
from malt._job import job as jobs
from malt._rejoining.open_vectors import OpenVectors


def test_a_round_is_kept_until_the_group_is_restored(alone: None) -> None:
    group = jobs.current().group
    vectors = OpenVectors()
    vector = malt.vector(np.arange(3.0), name="w")
    vectors.add(vector, "float64 x 3", has_shared_values=True, is_of_loop=True)
    vector.allreduce()
    group.supersede(1)
    vectors.keep_round(group, "w")
    vector.array[:] = 7  # the program's next step

    [(_, kept)] = vectors.shared(group)
    assert kept is not None
    assert vectors.kept_iterations(group) == [vector.iteration]

    # Another rank of the host may have restored the group, and rounds may have ended since.
    group.restore()
    group.supersede(2)
    assert vectors.shared(group) == [(vector, None)]
    assert vectors.kept_iterations(group) == []

    vectors.keep_round(group, "w")
    assert vectors.kept_iterations(group) == [vector.iteration]
    vectors.forget_rounds()
    assert vectors.kept_iterations(group) == []
    group.restore()
