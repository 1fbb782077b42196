"""malt.optimize.Consensus: what an interrupt at any moment of a round leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job


def test_synchronous_rounds_that_are_interrupted_are_made_once(tmp_path: Path) -> None:
    """Rank 0 is interrupted at the next moment of each round, until none is left."""
    result = run_job(
        tmp_path,
        2,
        """
from interrupts import Moments
malt.init(timeout=60)

def train(interrupts):
    x = np.zeros(3)
    c = malt.optimize.Consensus(x, rho=2.0)
    at, most, rounds = 0, 0, 400
    while c.rounds < rounds:
        target, made = np.arange(3.0) * (rank + 1), c.rounds
        x[:] = (target + c.rho * c.target) / (1 + c.rho)
        at += 1
        moments = Moments(at if interrupts and rank == 0 else 0, ["rounds", "local", "consensus"])
        while c.rounds == made:
            try:
                moments.run(c.exchange) if not moments.where else c.exchange()
            except KeyboardInterrupt:
                pass
        most = max(most, moments.count)
    c.close()
    return c.z.copy(), c.rho, most < at

first, again = train(False), train(True)
tell(first=first[0], again=again[0], rhos=[first[1], again[1]], all_moments=again[2])
malt.barrier()
""",
    )
    assert result.told[0]["all_moments"]
    for told in result.told:
        assert told["first"].tolist() == told["again"].tolist()
        assert told["rhos"][0] == told["rhos"][1]


@pytest.mark.long
def test_asynchronous_rounds_that_are_interrupted_still_end_together(tmp_path: Path) -> None:
    """All ranks end each phase alike, though rank 0 is interrupted in each round."""
    result = run_job(
        tmp_path,
        2,
        """
from interrupts import Moments
malt.init(timeout=5)
x = np.zeros(2)
c = malt.optimize.Consensus(x, rho=2.0, quorum=1.0, max_delay=1, rtol=1e-5)  # on a busy machine too
at, most, wrong = 0, 0, []
for phase in range(60):
    while True:
        made = c.rounds
        x[:] = (np.arange(2.0) * (rank + 1) + phase + c.rho * c.target) / (1 + c.rho)
        at += 1
        moments = Moments(at if rank == 0 else 0, ["rounds", "local", "consensus"])
        while c.rounds == made:
            try:
                moments.run(c.exchange) if not moments.where else c.exchange()
            except KeyboardInterrupt:
                pass
        most = max(most, moments.count)
        if c.converged:
            break
    right = np.arange(2.0) * 1.5 + phase
    if not np.allclose(c.z, right, atol=1e-3):
        wrong.append((phase, c.z.copy()))
tell(wrong=wrong, all_moments=most < at)
malt.barrier()
""",
    )
    assert result.told[0]["all_moments"]
    assert result.each("wrong") == [[], []]
