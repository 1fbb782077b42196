"""Real clusters of this host, each started once for all tests that use it.

Tests of one engine take turns (xdist_group), in one process, and so share its cluster, which ends
after the last of them: an idle one computes too, and a process connected to Ray cannot be forked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority

HERE = Path(__file__).parent
# Where worker processes find the functions of the tests.
PATH = f"{HERE}:{HERE.parents[1] / 'harness'}"

# By xdist_group: what ends the cluster, and what the tests are given of it.
_clusters: dict[str, tuple[contextlib.ExitStack, Any]] = {}


def shared(group: str, start: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
    """What `start` gives, which goes on until a test of another xdist_group is next."""
    if group not in _clusters:
        ending = contextlib.ExitStack()
        _clusters[group] = ending, ending.enter_context(start())
    return _clusters[group][1]


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark and mark.args[0] in ("dask", "ray", "spark"):
            item.add_marker(pytest.mark.long)


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    mark = nextitem and nextitem.get_closest_marker("xdist_group")
    for group in _clusters.keys() - (mark.args if mark else ()):
        _clusters.pop(group)[0].close()


@pytest.fixture
def dask_client() -> Any:
    """Of a cluster of three workers, each a process with one thread.

    The scheduler takes back after 10 s what a dead client held.
    """
    return shared("dask", dask_cluster)


@contextlib.contextmanager
def dask_cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    locks = "distributed.scheduler.locks"
    with (
        dask.config.set(
            {f"{locks}.lease-timeout": "10s", f"{locks}.lease-validation-interval": "1s"}
        ),
        distributed.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def ray_cluster() -> Iterator[Any]:
    """Ray itself, with room for four ranks."""
    handler = signal.getsignal(signal.SIGINT)
    yield shared("ray", ray_instance)
    signal.signal(signal.SIGINT, handler)  # Ray's trainers leave their own


@contextlib.contextmanager
def ray_instance() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        # Not by a runtime_env, for which Ray would start each worker anew.
        patch.setenv("PYTHONPATH", PATH)
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 << 20,
        )
    yield ray
    ray.shutdown()


@pytest.fixture
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a cluster of two executors, each a process with one slot, that encrypt what they send."""
    return shared("spark", lambda: spark_cluster(tmp_path_factory.mktemp("spark")))


@contextlib.contextmanager
def spark_cluster(directory: Path) -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    folders = dict.fromkeys(("SPARK_WORKER_DIR", "SPARK_LOCAL_DIRS"), str(directory))
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": PATH,
        "spark.executorEnv.MALT_TLS": Authority(directory / "tls").issue("rank"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in folders.items():
            patch.setenv(name, folder)
        patch.delenv("SPARK_HOME", raising=False)
        builder = SparkSession.builder.master("local-cluster[2,1,1024]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
    os.environ.pop("PYSPARK_GATEWAY_PORT", None)
