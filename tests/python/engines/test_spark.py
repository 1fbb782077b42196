"""malt.spark on a real cluster of this host: two executors, each a process with one slot."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import malt

malt_spark = pytest.importorskip("malt.spark", exc_type=ImportError)

pytestmark = [
    pytest.mark.usefixtures("spark_session"),
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore"),  # Spark's own
]


def sums(scale: float) -> tuple[int, int, float, str, str]:
    with malt.init():
        v = malt.vector(np.array([scale * (malt.rank() + 1)]))
        v.allreduce(malt.SUM)
        folder = os.environ["MALT_TLS"]
        return malt.rank(), malt.size(), float(v.array[0]), os.environ["MALT_LOCAL_RANK"], folder


def fails_or_waits() -> None:
    malt.init()
    if malt.rank() == 1:
        raise ZeroDivisionError("in rank 1")
    time.sleep(1000)


def dies_or_waits() -> None:
    malt.init()
    malt.barrier()
    if malt.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


def add(rows: Iterator[Any], scale: float) -> float:
    with malt.init():
        total = malt.allreduce(np.array([sum(row.x for row in rows)]), malt.SUM)
        return float(total[0]) * scale


def test_function_runs_as_the_ranks_of_a_job_over_tls_again_and_again() -> None:
    distributor = malt_spark.Distributor(2)
    for scale in (1.0, 2.0):
        results = distributor.run(sums, scale)
        assert [result[:4] for result in results] == [
            (rank, 2, scale * 3, str(rank)) for rank in range(2)
        ]
        assert all(result[4].endswith("/tls/rank") for result in results)


def test_error_of_a_rank_is_raised_and_the_next_job_finds_the_workers_free() -> None:
    with pytest.raises(malt.Error, match="ZeroDivisionError: in rank 1"):
        malt_spark.Distributor(2).run(fails_or_waits)
    assert len(malt_spark.Distributor(2).run(sums, 1.0)) == 2


def test_death_of_a_rank_names_it_and_the_next_job_finds_the_workers_free() -> None:
    with pytest.raises(malt.PeerError, match="rank 1 died, and Spark has ended the job") as caught:
        malt_spark.Distributor(2).run(dies_or_waits)
    assert caught.value.ranks == (1,)
    assert len(malt_spark.Distributor(2).run(sums, 1.0)) == 2


def test_more_ranks_than_task_slots_are_refused() -> None:
    with pytest.raises(malt.ConfigError, match="3 ranks cannot run at once on 2 task slots"):
        malt_spark.Distributor(3).run(sums, 1.0)
    with pytest.raises(malt.ConfigError, match="ranks is 0"):
        malt_spark.Distributor(0)


def test_ranks_read_the_partitions_of_a_dataframe(spark_session: Any) -> None:
    data = spark_session.range(0, 10, 1, 3).selectExpr("id * 1.0D AS x")
    assert malt_spark.Distributor(2).run_on(data, add, 2.0) == [90.0, 90.0]


def test_linear_model_fits_the_partitions_of_a_dataframe(spark_session: Any) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 2))
    labels = np.sign(rows @ [1.0, -2.0])
    table = [(float(a), float(b), float(label)) for (a, b), label in zip(rows, labels, strict=True)]
    frame = spark_session.createDataFrame(table, ["a", "b", "label"])
    model = malt.learn.LogisticRegression(tol=1e-9)
    fitted = malt_spark.Distributor(2).fit(model, frame, features=["a", "b"], label="label")
    assert fitted is model
    alone = malt.learn.LogisticRegression(tol=1e-9).fit(rows, labels)
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-3)
    malt_spark.Distributor(2).fit(model, frame, features="a", label="label")
    assert model.coef_.shape == (1, 1)
