"""Jobs on the executors of a Spark cluster, by barrier execution.

    import malt.spark

    def train(rate):
        malt.init()          # the loop as under `malt run`
        ...
    results = malt.spark.Distributor(ranks=4).run(train, 0.1)

Needs PySpark and Java (`pip install "malt-sgd[spark]"`), which `import malt` alone never imports.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from malt._distribution import pip_install as _pip_install

try:
    import pyspark as _pyspark
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import DataFrame, SparkSession
except ImportError as error:
    raise ImportError(f"malt.spark needs PySpark ({error}): {_pip_install('spark')}") from error

from malt._engines import fitting
from malt._engines import rank as ranks_here
from malt._errors import ConfigError, Error, PeerError
from malt._rendezvous.driver import Rendezvous
from malt._rendezvous.own_address import own_address

__all__ = ["Distributor"]

_REGISTER_SECONDS = 60.0  # that the executors of a new session have to register
_LOOK_SECONDS = 0.1  # between two looks at how many there are
_MARGIN = 1.0  # seconds that rank 0 waits for the others to leave its rendezvous


class Distributor:
    """Runs functions on a Spark cluster's executors as the ranks of a job.

    Each rank is a barrier task: all of them begin, or none. When a rank fails or dies, Spark ends
    the others.
    """

    def __init__(self, ranks: int, *, spark: SparkSession | None = None, timeout: float = 60.0):
        """Prepare for jobs of `ranks` ranks.

        Args:
            ranks: how many; each takes a task slot (spark.task.cpus cores) of an executor.
            spark: the session; None: the active one.
            timeout: the most seconds until all ranks have begun, from the first one on.

        Raises:
            ConfigError: there is no session; the cluster has too few slots.
        """
        if ranks < 1:
            raise ConfigError(f"ranks is {ranks}; a job has 1 or more")
        found = spark or SparkSession.getActiveSession()
        if found is None:
            raise ConfigError("malt.spark.Distributor() needs a Spark session: create one first")
        self.ranks = ranks
        self._spark = found
        self._timeout = timeout

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run `function(*args, **kwargs)` on each rank; return the results by rank.

        In the function malt.init() works as under `malt run`. The results are pickled.

        Raises:
            ConfigError: the cluster has fewer task slots than ranks. A session's executors have a
                minute from its start to register.
            Error: the function failed; has its traceback. The other ranks are ended.
            PeerError: a rank's process or executor died; names the rank.
        """
        data = self._spark.sparkContext.parallelize(range(self.ranks), self.ranks)
        return self._run(data, lambda _rows: function(*args, **kwargs))

    def run_on(
        self, data: DataFrame, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Run `function(rows, *args, **kwargs)` on each rank, where `rows` is its part of `data`.

        `data` has as many partitions as there are ranks, or is given as many. `rows` iterates over
        pyspark.sql.Row objects, where the partition lies.
        """
        rdd = data.rdd
        if rdd.getNumPartitions() != self.ranks:
            rdd = data.repartition(self.ranks).rdd
        return self._run(rdd, lambda rows: function(rows, *args, **kwargs))

    def fit(
        self,
        estimator: Any,
        data: DataFrame,
        *,
        features: str | Sequence[str],
        label: str,
        weight: str | None = None,
    ) -> Any:
        """Fit a linear model of MALT on a dataframe, whose partitions stay on their executors.

        Args:
            estimator: malt.learn.LogisticRegression, LinearSVC, Ridge, LinearSVR, SGDClassifier or
                SGDRegressor, without ranks=.
            data: the rows; each partition needs some.
            features: the columns of numbers, or one column of pyspark.ml's vectors.
            label: the column of labels.
            weight: the column of the weights of the rows' losses; None: all 1.

        Returns:
            The estimator, fitted.
        """
        if isinstance(features, str):
            features = [features]
        columns = [label, *([] if weight is None else [weight]), *features]
        has_weights = weight is not None
        fitted = self.run_on(data.select(*columns), _fit, estimator, has_weights)
        return fitting.take_over(estimator, fitted)

    def _run(self, rdd: Any, function: Callable[[Iterator[Any]], Any]) -> list[Any]:
        self._check_room()
        timeout = self._timeout

        def task(rows: Iterable[Any]) -> Iterator[Any]:
            yield _run_rank(lambda: function(iter(rows)), timeout)

        try:
            return list(rdd.barrier().mapPartitions(task).collect())
        except Py4JJavaError as error:
            raise _failure(str(error.java_exception.getMessage())) from error

    def _check_room(self) -> None:
        """Refuse at once what Spark would wait for; a new session is waited for."""
        context = self._spark.sparkContext
        give_up = context.startTime / 1000 + _REGISTER_SECONDS
        while (slots := _slots(context)) < self.ranks and time.time() < give_up:
            time.sleep(_LOOK_SECONDS)
        if slots < self.ranks:
            raise ConfigError(
                f"{self.ranks} ranks cannot run at once on {slots} task slots of the cluster: add "
                "executors or cores, or ask for fewer ranks"
            )


def _slots(context: Any) -> int:
    """Return how many tasks can run at once on the executors that have registered."""
    of_spark = context._jsc.sc()
    default = of_spark.resourceProfileManager().defaultResourceProfile()
    return int(of_spark.maxNumConcurrentTasks(default))


def _fit(rows: Iterable[Any], estimator: Any, has_weights: bool) -> Any:
    return fitting.fit(estimator, [fitting.part_of(rows, has_weights=has_weights)])


def _failure(said: str) -> Error:
    """Return the error for what Spark says of a job that it has aborted."""
    said = said.partition("\n\tat ")[0].strip()  # without the stack of Java
    task = re.search(r"ResultTask\(\d+, (\d+)\)", said)
    rank = None if task is None else int(task[1])
    which = "a rank" if rank is None else f"rank {rank}"
    if "PythonException" in said:
        return Error(f"{which} failed, and Spark has ended the job: {said}")
    lost = f"{which} died, and Spark has ended the job: {said}"
    return PeerError(lost, [] if rank is None else [rank])


def _run_rank(function: Callable[[], Any], timeout: float) -> Any:
    """Run the function in a barrier task; rank 0's process has the rendezvous."""
    context = _pyspark.BarrierTaskContext.get()
    rank, size = context.partitionId(), len(context.getTaskInfos())
    if rank != 0:
        variables = json.loads(context.allGather("")[0])
        return _join(variables, rank, timeout, function)
    host = context.getTaskInfos()[0].address.rpartition(":")[0]
    with Rendezvous(size, host=own_address(host)) as rendezvous:
        variables = rendezvous.environ(0)
        context.allGather(json.dumps(variables))
        result = _join(variables, rank, timeout, function)
        rendezvous.await_leaving(_MARGIN)
        return result


def _join(
    variables: Mapping[str, str], rank: int, timeout: float, function: Callable[[], Any]
) -> Any:
    return ranks_here.run({**variables, "MALT_RANK": str(rank)}, timeout, function)
