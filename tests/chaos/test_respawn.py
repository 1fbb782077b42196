"""An SVM on real text is trained to the same error while its ranks are killed and started again.

MALT_SEEDS=50 pytest -s tests/chaos/test_respawn.py       more of it
MALT_SEED=17 pytest -s tests/chaos/test_respawn.py        this schedule alone, once more
MALT_INTERVAL=5 MALT_ROUNDS=3000 pytest -s ...            a kill every 5 s, in longer training
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from jobs import Running, in_dev_shm, run_job, start_job
from test_chaos import assert_nothing_is_left

pytestmark = pytest.mark.timeout(600)

SEED = os.environ.get("MALT_SEED")
SEEDS = [int(SEED)] if SEED else list(range(int(os.environ.get("MALT_SEEDS", 2))))
INTERVAL = float(os.environ.get("MALT_INTERVAL", 1))  # seconds from one kill to the next
ROUNDS = int(os.environ.get("MALT_ROUNDS", 500))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_OFF = 0.01  # of the error

# examples/svm.py, with a pause in each round, so that training lasts for some kills.
TRAINING = """
sys.path.insert(0, examples)
import newsgroups, svm
from argparse import Namespace
malt.init(timeout=60)
data = newsgroups.load()
knobs = Namespace(batch=16, seed=0, epochs=1, rate=16.0, l2=1e-5)
steps = svm.Steps(data.x_train, data.y_train, knobs)
w = np.zeros(data.x_train.shape[1], np.float32)
m = malt.vector(w)
seen = []  # ranks that were missing, and when
@malt.jobs.on_change
def note(epoch, alive):
    seen.extend((other, time.monotonic()) for other in set(range(size)) - set(alive))
rng = np.random.default_rng([malt.jobs.restarts(), rank])
rounds_here = 0
while m.iteration < rounds:
    for _ in range(8):
        batch = steps.batches[rng.integers(len(steps.batches))]
        rate = steps.rate / (1 + 8 * m.iteration / len(steps.batches))
        svm.sgd_step(w, svm.gradient(w, batch), rate, knobs.l2)
    m.scatter()
    m.gather(malt.AVG, staleness=0)
    tell(at=m.iteration, seen=seen)
    rounds_here += 1
    if rounds_here == 1:
        tell(pid=os.getpid(), life=malt.jobs.restarts(), first=time.monotonic())
    time.sleep(pause)
tell(error=svm.error_rate(w, data.x_test, data.y_test), alive=malt.alive())
malt.barrier()
"""


class Kill(NamedTuple):
    noticed: float  # seconds until the last of the others knew
    resumed: float  # seconds until the new process had done a round


@pytest.fixture(scope="module")
def fault_free_error(tmp_path_factory: pytest.TempPathFactory) -> float:
    path = tmp_path_factory.mktemp("fault_free")
    result = run_job(path, 4, TRAINING, examples=str(EXAMPLES), rounds=ROUNDS, pause=0)
    return float(result.told[0]["error"])


def kill_and_await(job: Running, rank: int) -> Kill:
    life, start = job.told(rank)["life"], time.monotonic()
    os.kill(job.told(rank)["pid"], signal.SIGKILL)
    while job.told(rank).get("life", life) == life:
        assert not job.has_ended, job.output
        assert time.monotonic() - start < 60, job.output
        time.sleep(0.005)
    others = [job.told(other)["seen"] for other in range(job.size) if other != rank]
    noticed = [[at for one, at in seen if one == rank and at > start] for seen in others]
    return Kill(max(map(min, filter(None, noticed))) - start, job.told(rank)["first"] - start)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_killed_again_and_again_train_to_the_same_error(
    tmp_path: Path, seed: int, fault_free_error: float
) -> None:
    draw, before = random.Random(seed), in_dev_shm()
    header = f"examples, rounds, pause = {str(EXAMPLES)!r}, {ROUNDS}, 0.02\n"
    kills = []
    with start_job(tmp_path, 4, header + TRAINING, "--respawn=999") as job:
        job.await_told("first")
        while max(job.told(rank)["at"] for rank in range(4)) < ROUNDS // 2:
            next_kill = time.monotonic() + INTERVAL
            kills.append(kill_and_await(job, draw.randrange(4)))
            time.sleep(max(next_kill - time.monotonic(), 0))
        result = job.finish(limit=600)
    assert result.code == 0, result.output
    assert_nothing_is_left(tmp_path, before)
    assert len(kills) > 1
    worst = max(result.each("error"))
    assert abs(worst - fault_free_error) <= MOST_OFF
    noticed, resumed = (sorted(times) for times in zip(*kills, strict=True))
    print(
        f"row seed {seed}: {len(kills)} kills, noticed after {noticed[0]:.3f} to "
        f"{noticed[-1]:.3f} s, resumed after {resumed[0]:.2f} to {resumed[-1]:.2f} s; error "
        f"{worst:.4f}, without faults {fault_free_error:.4f}"
    )


def test_the_last_of_four_that_die_one_by_one_finishes(
    tmp_path: Path, fault_free_error: float
) -> None:
    before = in_dev_shm()
    header = f"examples, rounds, pause = {str(EXAMPLES)!r}, {ROUNDS}, 0.01\n"
    with start_job(tmp_path, 4, header + TRAINING, "--keep-going") as job:
        job.await_told("first")
        for rank in (0, 3, 1):
            time.sleep(0.5)
            os.kill(job.told(rank)["pid"], signal.SIGKILL)
        result = job.finish()
    assert_nothing_is_left(tmp_path, before)
    last = result.told[2]
    assert "alive" in last, result.output
    assert last["alive"] == (2,)
    assert abs(last["error"] - fault_free_error) <= MOST_OFF
