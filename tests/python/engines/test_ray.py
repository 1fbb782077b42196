"""malt.ray on a real Ray cluster of this host."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import malt

ray = pytest.importorskip("ray")
malt_ray = pytest.importorskip("malt.ray", exc_type=ImportError)

pytestmark = [
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


def is_idle() -> bool:
    """Whether Ray has got all back: no actor or placement group is left."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if ray.available_resources().get("CPU") == 4:
            return True
        time.sleep(0.05)
    return False


def sums(scale: float) -> tuple[int, int, float, str]:
    with malt.init():
        v = malt.vector(np.array([scale * (malt.rank() + 1)]))
        v.allreduce(malt.SUM)
        return malt.rank(), malt.size(), float(v.array[0]), os.environ["MALT_LOCAL_RANK"]


def fails_or_waits() -> None:
    malt.init()
    if malt.rank() == 1:
        raise ZeroDivisionError("in rank 1")
    time.sleep(100)


def dies_or_goes_on(steps: int) -> tuple[int, ...]:
    malt.init()
    v = malt.vector(np.zeros(8))
    malt.barrier()
    if malt.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while len(malt.alive()) == malt.size():
        time.sleep(0.01)
    for _ in range(steps):
        v.allreduce(malt.AVG)
        time.sleep(0.01)
    return malt.alive()


def test_function_runs_as_the_ranks_of_a_job() -> None:
    assert malt_ray.run(sums, 2.0, ranks=3) == [(rank, 3, 12.0, str(rank)) for rank in range(3)]
    assert is_idle()


def test_error_of_a_rank_is_raised_and_the_others_are_killed() -> None:
    with pytest.raises(ZeroDivisionError, match="in rank 1"):
        malt_ray.run(fails_or_waits, ranks=2)
    assert is_idle()


def test_death_of_an_actor_names_the_rank_and_leaves_nothing_behind() -> None:
    with pytest.raises(malt.PeerError, match="rank 1 died with its actor") as caught:
        malt_ray.run(dies_or_goes_on, 10**9, ranks=2)
    assert caught.value.ranks == (1,)
    assert is_idle()


def dies_early() -> None:
    if os.environ["MALT_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    malt.init()


def test_death_before_the_ranks_have_met_ends_the_wait() -> None:
    with pytest.raises(malt.PeerError, match="rank 1") as caught:
        malt_ray.run(dies_early, ranks=2)
    assert caught.value.ranks == (1,)
    assert is_idle()


def test_others_go_on_without_a_dead_actor_with_keep_going() -> None:
    first, dead, last = malt_ray.run(dies_or_goes_on, 5, ranks=3, keep_going=True)
    assert isinstance(dead, malt.PeerError)
    assert 0 in first
    assert 2 in last
    assert is_idle()


def test_more_ranks_than_there_is_room_for_are_refused_in_time() -> None:
    with pytest.raises(malt.TimeoutError, match=r"5 ranks .* within 1 s; it has {'CPU': 4"):
        malt_ray.run(sums, 1.0, ranks=5, timeout=1)
    assert is_idle()


def train(config: dict[str, Any]) -> None:
    malt.init()
    v = malt.vector(np.array([float(malt.rank() + 1)]))
    if malt.rank() == 0 and malt.size() == 2 and not Path(config["flag"]).exists():
        Path(config["flag"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    v.allreduce(malt.SUM)
    Path(config["folder"], f"sum-{malt.rank()}").write_text(str(v.array[0]))


def test_workers_of_ray_train_are_ranks_also_after_a_death(tmp_path: Path) -> None:
    ray_train = pytest.importorskip("ray.train")
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    result = DataParallelTrainer(
        train,
        train_loop_config={"folder": str(tmp_path), "flag": str(tmp_path / "flag")},
        backend_config=malt_ray.MaltConfig(),
        scaling_config=ray_train.ScalingConfig(num_workers=2),
        run_config=ray_train.RunConfig(
            storage_path=str(tmp_path / "ray"),
            failure_config=ray_train.FailureConfig(max_failures=1),
        ),
    ).fit()
    assert result.error is None
    assert [(tmp_path / f"sum-{rank}").read_text() for rank in range(2)] == ["3.0"] * 2


def test_run_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(malt.ConfigError, match=r"ray.init\(\) first"):
        malt_ray.run(sums, 1.0, ranks=1)
