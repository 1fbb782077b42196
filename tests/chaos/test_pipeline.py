"""The ranks of a pipeline that are left learn which rank died, whenever and wherever it was killed.

MALT_SEEDS=100 pytest tests/chaos/test_pipeline.py    more of it
MALT_SEED=17 pytest tests/chaos/test_pipeline.py      this seed alone, once more
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from jobs import PROMPT, in_dev_shm, start_job

pytest.importorskip("torch")

SEED = os.environ.get("MALT_SEED")
SEEDS = [int(SEED)] if SEED else list(range(int(os.environ.get("MALT_SEEDS", "3"))))

SCRIPT = """
import torch
from torch import nn
torch.set_num_threads(1)
stages, replicas, microbatches, schedule = SHAPE
malt.init(timeout=120)
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(30, 30), nn.Tanh()) for _ in range(stages)]
places = [tuple(range(s * replicas, (s + 1) * replicas)) for s in range(stages)]
pipe = malt.torch.Pipeline(layers, ranks=places, microbatches=microbatches, schedule=schedule)
optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
x, y = torch.randn(2, 64, 30)
tell(pid=os.getpid())

def train():
    for step in range(10**9):
        tell(at=step)
        start = time.monotonic()
        try:
            pipe.step(x, y, nn.functional.mse_loss)
        except malt.PeerError:
            tell(seconds=time.monotonic() - start)
            raise
        optimizer.step()
        optimizer.zero_grad()

tell(error=error_of(train))
tell(done=True)
await_flag("end")
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_that_are_left_name_the_dead_one(tmp_path: Path, seed: int) -> None:
    draw, before = random.Random(seed), in_dev_shm()
    stages, replicas = draw.choice([(2, 1), (3, 1), (4, 1), (2, 2)])
    size = stages * replicas
    shape = (stages, replicas, draw.choice([1, 4, 9]), draw.choice(["1f1b", "gpipe"]))
    killed = draw.randrange(size)
    environ = {"MALT_TRANSPORT": draw.choice(["shm", "tcp"])}
    script = SCRIPT.replace("SHAPE", repr(shape))
    with start_job(tmp_path, size, script, "--keep-going", environ=environ) as job:
        pids = job.await_told("pid")
        job.await_told("at")
        time.sleep(draw.uniform(0, 1))
        os.kill(pids[killed], signal.SIGKILL)
        left = sorted(set(range(size)) - {killed})
        job.await_told("done", ranks=left)
        job.raise_flag("end")
        result = job.finish()
    assert in_dev_shm() <= before
    for rank in left:
        error = result.told[rank]["error"]
        assert error is not None, f"rank {rank}"
        assert error.kind == "PeerError", f"rank {rank}: {error}"
        assert error.ranks == (killed,), f"rank {rank} of {shape} without {killed}: {error}"
        assert result.told[rank].get("seconds", 0) < PROMPT
