"""Ranks that are left go on with a partition, whenever the others are killed: all with one model.

Tables with a partition are killed in test_table.py.

MALT_SEEDS=100 pytest tests/chaos/test_partition.py    more of it
MALT_SEED=17 pytest tests/chaos/test_partition.py      this seed alone, once more
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
SEEDS = [int(SEED)] if SEED else list(range(int(os.environ.get("MALT_SEEDS", "2"))))

SCRIPT = """
malt.init(timeout=60)
rng = np.random.default_rng(0)
users, items = rng.integers(0, 300, 9000), rng.integers(0, 50, 9000)
items += 50 * (users % size) * (rng.random(9000) < 0.9)
X = np.zeros((300, 50 * size))
X[users, items] = 1
p = malt.data.partition(X, size)
mine = p.rows[users] == rank
ratings = (users[mine], items[mine], (3 + np.sin(users) + np.cos(items))[mine])
v = malt.sparse_vector(50 * size, capacity=50 * size, partition=p)
needed = np.unique(items[mine])
tell(pid=os.getpid())
await_flag("go")
for turn in range(4):
    model = malt.learn.MatrixFactorization(
        8, 15, lr=0.05, shape=X.shape, random_state=0, partition=p, verbose=False
    ).fit(ratings)
    tell(turn=turn)
    for _ in range(50):
        v.set(needed, np.ones(len(needed), np.float32))
        v.scatter()
        v.gather(malt.SUM, staleness=0)
malt.barrier()
tell(factors=model.item_factors_, rmse=model.rmse(ratings), alive=malt.alive())
sums = np.zeros(50 * size)
sums[v.indices] = v.values
tell(sums=sums[needed], needed=needed)
malt.barrier()
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_that_are_left_learn_one_model(tmp_path: Path, seed: int) -> None:
    draw, before = random.Random(seed), in_dev_shm()
    size = draw.randint(2, 4)
    killed = draw.sample(range(size), draw.randint(1, size - 1))
    environ = {"MALT_TRANSPORT": draw.choice(["shm", "tcp"])}
    with start_job(tmp_path, size, SCRIPT, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        job.raise_flag("go")
        for rank in killed:
            time.sleep(draw.uniform(0, 0.4))
            os.kill(pids[rank], signal.SIGKILL)
        result = job.finish()
    assert in_dev_shm() <= before
    left = sorted(set(range(size)) - set(killed))
    for rank in left:
        told = result.told[rank]
        assert "sums" in told, f"rank {rank} of {size} without {killed}:\n{result.output}"
        assert np.array_equal(told["factors"], result.told[left[0]]["factors"])
        assert told["rmse"] < 0.3
        # Every live rank that has the element has added 1.
        others = [set(result.told[other]["needed"]) for other in left]
        expected = [sum(each in other for other in others) for each in told["needed"]]
        assert told["sums"].tolist() == expected
