"""The ranks that are left end at the optimum of what is left, whenever others are killed.

MALT_SEEDS=100 pytest tests/chaos/test_consensus_kills.py    more of it
MALT_SEED=17 pytest tests/chaos/test_consensus_kills.py      this seed alone, once more
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from jobs import in_dev_shm, start_job

SEED = os.environ.get("MALT_SEED")
SEEDS = [int(SEED)] if SEED else list(range(int(os.environ.get("MALT_SEEDS", "3"))))

SCRIPT = """
malt.init(timeout=60)
random = np.random.default_rng(0)
H = [(1 + i) * np.eye(6) + np.diag(random.random(6)) for i in range(size)]
g = random.standard_normal((size, 6))
tell(pid=os.getpid())
await_flag("go")
found, is_over = [], False
while not is_over:                          # the last problem begins after the last kill
    is_over = bool(malt.allreduce(int(flag_is_up("killed")), min))
    x = np.zeros(6)
    c = malt.optimize.Consensus(x, rtol=1e-8, atol=1e-10, **options[len(found) % len(options)])
    while not c.converged:
        x[:] = np.linalg.solve(H[rank] + c.rho * np.eye(6), g[rank] + c.rho * c.target)
        c.exchange()
    total = sum(H[i] for i in c.ranks)
    optimum = np.linalg.solve(total, sum(g[i] for i in c.ranks))
    found.append((c.z, np.abs(c.z - optimum).max(), c.ranks))
    c.close()
tell(found=found)
malt.barrier()
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_that_are_left_end_at_the_optimum_of_their_functions(
    tmp_path: Path, seed: int
) -> None:
    draw, before = random.Random(seed), in_dev_shm()
    size = draw.randint(2, 5)
    killed = draw.sample(range(size), draw.randint(1, size - 1))
    environ = {"MALT_TRANSPORT": draw.choice(["shm", "tcp"])}
    ways = [{}, {"quorum": draw.choice([0.3, 0.5, 1])}, {"max_delay": draw.randint(0, 9)}]
    script = f"options = {ways!r}\n{SCRIPT}"
    with start_job(tmp_path, size, script, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        job.raise_flag("go")
        for rank in killed:
            time.sleep(draw.uniform(0, 1))
            os.kill(pids[rank], signal.SIGKILL)
        job.raise_flag("killed")
        result = job.finish()
    assert in_dev_shm() <= before
    left = sorted(set(range(size)) - set(killed))
    for rank in left:
        told = result.told[rank]
        assert "found" in told, f"rank {rank} of {size} without {killed}:\n{result.output}"
        for turn, (z, error, ranks) in enumerate(told["found"]):
            assert error < 1e-4
            first = result.told[left[0]]["found"][turn]
            assert np.array_equal(z, first[0])
            assert ranks == first[2]
