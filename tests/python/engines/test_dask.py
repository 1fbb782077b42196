"""malt.dask on a real LocalCluster with worker processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import malt

distributed = pytest.importorskip("distributed")
malt_dask = pytest.importorskip("malt.dask", exc_type=ImportError)
present = pytest.importorskip("malt.dask._run", exc_type=ImportError)._present

pytestmark = [
    pytest.mark.xdist_group("dask"),
    pytest.mark.filterwarnings("ignore"),  # Dask's own
]


def whole(client: Any) -> None:
    """Wait until no worker runs anything, and all three are there."""
    deadline = time.monotonic() + 60
    while any(client.processing().values()) or len(present(client)) != 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def sums(scale: float, *, again: bool = False) -> tuple[int, int, float, str]:
    with malt.init():
        v = malt.vector(np.array([scale * (malt.rank() + 1)]))
        v.allreduce(malt.SUM)
        return malt.rank(), malt.size(), float(v.array[0]), os.environ["MALT_LOCAL_RANK"]


def test_function_runs_as_the_ranks_of_a_job_again_and_again(dask_client: Any) -> None:
    whole(dask_client)
    for scale in (1.0, 2.0):
        results = malt_dask.run(dask_client, sums, scale)
        assert results == [(rank, 3, scale * 6, str(rank)) for rank in range(3)]
    assert [result[1] for result in malt_dask.run(dask_client, sums, 1.0, ranks=2, again=True)] == [
        2,
        2,
    ]
    names = dask_client.run(lambda: [name for name in os.environ if name.startswith("MALT_R")])
    assert list(names.values()) == [[]] * 3


def fails_or_waits() -> None:
    malt.init()
    if malt.rank() == 1:
        raise ZeroDivisionError("in rank 1")
    while True:
        time.sleep(0.01)


def dies_or_waits(steps: int) -> tuple[int, ...]:
    malt.init()
    v = malt.vector(np.zeros(8))
    malt.barrier()
    if malt.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while len(malt.alive()) == 3:
        time.sleep(0.01)
    for _ in range(steps):
        v.allreduce(malt.AVG)
        time.sleep(0.01)
    return malt.alive()


def test_error_of_a_rank_is_raised_and_the_others_are_stopped(dask_client: Any) -> None:
    whole(dask_client)
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="in rank 1"):
        malt_dask.run(dask_client, fails_or_waits)
    assert time.monotonic() - start < 20
    whole(dask_client)
    assert len(malt_dask.run(dask_client, sums, 1.0)) == 3


def test_death_of_a_worker_names_the_rank_and_leaves_nothing_behind(dask_client: Any) -> None:
    whole(dask_client)
    with pytest.raises(malt.PeerError, match="rank 1 died with its worker") as caught:
        malt_dask.run(dask_client, dies_or_waits, 10**9)
    assert caught.value.ranks == (1,)
    whole(dask_client)
    assert len(malt_dask.run(dask_client, sums, 1.0)) == 3


def test_others_go_on_without_a_dead_worker_with_keep_going(dask_client: Any) -> None:
    whole(dask_client)
    first, dead, last = malt_dask.run(dask_client, dies_or_waits, 5, keep_going=True)
    assert isinstance(dead, malt.PeerError)
    assert 0 in first
    assert 2 in last
    whole(dask_client)


def exits_early(flag: str) -> None:
    if os.environ["MALT_RANK"] == "0" and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    malt.init()


def test_death_before_the_ranks_have_met_ends_the_wait(dask_client: Any, tmp_path: Path) -> None:
    whole(dask_client)
    with pytest.raises(malt.PeerError, match="rank 0"):
        malt_dask.run(dask_client, exits_early, str(tmp_path / "flag"))
    whole(dask_client)


def test_more_ranks_than_workers_are_refused(dask_client: Any) -> None:
    whole(dask_client)
    with pytest.raises(malt.ConfigError, match="4 ranks cannot run on 3 workers"):
        malt_dask.run(dask_client, sums, 1.0, ranks=4)
    with pytest.raises(malt.ConfigError, match=r"tcp://127\.0\.0\.1:1 are not in the cluster"):
        malt_dask.run(dask_client, sums, 1.0, workers=["tcp://127.0.0.1:1"])


def test_no_rank_begins_where_a_worker_is_busy(dask_client: Any, tmp_path: Path) -> None:
    whole(dask_client)
    worker = sorted(present(dask_client))[2]
    busy = dask_client.submit(time.sleep, 6, workers=[worker], pure=False)
    while not any(dask_client.processing().values()):
        time.sleep(0.01)
    with pytest.raises(malt.TimeoutError, match="rank 2 did not come within 1 s"):
        malt_dask.run(dask_client, begins, str(tmp_path), timeout=1)
    assert list(tmp_path.iterdir()) == []
    busy.result()
    whole(dask_client)


def begins(directory: str) -> None:
    Path(directory, os.environ["MALT_RANK"]).touch()


def test_two_jobs_at_once_take_turns(dask_client: Any) -> None:
    whole(dask_client)
    workers = sorted(present(dask_client))
    results = []
    threads = [
        threading.Thread(
            target=lambda order: results.append(
                malt_dask.run(dask_client, sums, 1.0, workers=order)
            ),
            args=(order,),
        )
        for order in (workers, workers[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(result) for result in results] == [3, 3]


def test_workers_that_are_threads_are_refused() -> None:
    with (
        distributed.LocalCluster(n_workers=2, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as threads,
        pytest.raises(malt.ConfigError, match="processes=True"),
    ):
        malt_dask.run(threads, sums, 1.0)


@pytest.mark.parametrize("kind", ["array", "dataframe"])
def test_linear_model_fits_partitions_where_they_lie(dask_client: Any, kind: str) -> None:
    whole(dask_client)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 5))
    labels = np.sign(rows @ np.arange(1.0, 6.0))
    X: Any
    y: Any
    if kind == "array":
        array = pytest.importorskip("dask.array")
        X, y = array.from_array(rows, chunks=(100, 3)), array.from_array(labels, chunks=200)
    else:
        pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
        frame = frames.from_pandas(pandas.DataFrame(rows).assign(label=labels), npartitions=6)
        X, y = frame.drop(columns="label"), frame["label"]
    X, y = dask_client.persist((X, y))
    model = malt.learn.LogisticRegression(tol=1e-9)
    assert malt_dask.fit(dask_client, model, X, y) is model
    alone = malt.learn.LogisticRegression(tol=1e-9).fit(rows, labels)
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-3)
    assert model.score(rows, labels) > 0.98


def test_partitions_that_differ_are_refused(dask_client: Any) -> None:
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pandas.DataFrame({"x": range(10), "y": range(10)})
    X, y = (frames.from_pandas(table, npartitions=count) for count in (2, 3))
    with pytest.raises(malt.ConfigError, match="have 2, 3 partitions"):
        malt_dask.fit(dask_client, malt.learn.Ridge(), X[["x"]], y["y"])
