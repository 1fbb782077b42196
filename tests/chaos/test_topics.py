"""Topic models count every token while ranks are killed: 0 lost, 0 twice.

Each rank has documents of its own. What a killed rank had counted stays, all of it or, if it was
killed before the ranks had met, none of it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import start_job

RANKS = 4
SCRIPT = """
from malt._topics import trainer

begin = trainer._RankTrainer.begin

def begin_and_tell(self, source):
    begin(self, source)
    tell(begun=True)

trainer._RankTrainer.begin = begin_and_tell
malt.init(timeout=60)
X = np.random.default_rng(rank).poisson(0.3, (400, 100))
X[:, rank] += 1
tell(pid=os.getpid(), words=X.sum(axis=0))
model = malt.learn.LatentDirichletAllocation(20, max_iter=150, every=2000, random_state=0).fit(X)
tell(counts=model.word_topic_counts_, alpha=model.doc_topic_prior_)
malt.barrier()
"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("awaited", ["begun", "pid"])
def test_the_counts_are_those_of_all_tokens(tmp_path: Path, awaited: str, seed: int) -> None:
    draw = random.Random(f"{awaited} {seed}")
    killed = draw.sample(range(RANKS), 2)
    with start_job(tmp_path, RANKS, SCRIPT, "--keep-going") as job:
        job.await_told(awaited)
        for rank in killed:
            time.sleep(draw.uniform(0, 0.3))
            os.kill(job.told(rank)["pid"], signal.SIGKILL)
        job.finish()
        told = [job.told(rank) for rank in range(RANKS)]
    live = [rank for rank in range(RANKS) if rank not in killed]
    for name in ("counts", "alpha"):
        assert all(name in told[rank] for rank in live), job.output
        np.testing.assert_array_equal(told[live[0]][name], told[live[1]][name])
    counted = told[live[0]]["counts"].sum(axis=1)
    assert any((counted == words).all() for words in possible(told, killed, awaited)), job.output


def possible(told: list[dict[str, Any]], killed: list[int], awaited: str) -> list[Any]:
    """Return by word the tokens that may be counted."""
    of_all = sum(each["words"] for each in told)
    if awaited == "begun":
        return [of_all]
    one, two = (told[rank]["words"] for rank in killed)
    return [of_all, of_all - one, of_all - two, of_all - one - two]
