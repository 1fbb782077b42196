"""By what the ranks reach one another, and where it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

TELL_ROUTES = """
job = malt.init(timeout=20, transport=transport)
vectors = [malt.vector(np.zeros(4)), malt.sparse_vector(9, capacity=2)]
routes = [{peer: (r.transport, r.why, str(r)) for peer, r in v.stats().routes.items()}
          for v in vectors]
tell(routes=routes, own=str(job.group.route(rank)))
malt.barrier()
"""


@pytest.mark.parametrize(
    ("transport", "used", "why"),
    [
        ("auto", "shm", "this rank and it can map one another's memory"),
        ("tcp", "tcp", "the job asks for tcp"),
    ],
)
def test_stats_tell_the_route_to_each_other_rank_and_why(
    tmp_path: Path, transport: str, used: str, why: str
) -> None:
    result = run_job(tmp_path, 3, TELL_ROUTES, transport=transport)
    for rank, routes in enumerate(result.each("routes")):
        expected = {peer: (used, why, f"{used}: {why}") for peer in range(3) if peer != rank}
        assert routes == [expected, expected]
    assert result.each("own") == ["self: it is this rank"] * 3


def test_verbose_run_has_a_line_a_rank_that_counts_peers_by_transport(tmp_path: Path) -> None:
    output = run_job(tmp_path, 3, "malt.init(timeout=20); malt.barrier()", "-v").output
    for rank in range(3):
        line = f"malt INFO: rank {rank} of 3, launched by malt run; peers: 2 by shm"
        assert output.count(line) == 1, output
