"""scikit-learn estimators on many ranks. Needs scikit-learn; `import malt` never imports it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if

from malt._alike import brief
from malt._arguments import whole
from malt._core_import import AVG, Graph, Vector
from malt._errors import ConfigError
from malt._job import job as jobs
from malt._job import joining
from malt._job.agreement import Report, Together
from malt._vectors.averaging import Averaging, start_alike
from malt._vectors.vectors import vector
from malt._wrapping.learnt import (
    check_is_used,
    check_unchanged,
    compare,
    labels,
    layout,
    learnt,
)
from malt._wrapping.rows import CheckedRows

# For these, a mean over ranks is not what one rank would have learnt.
_NO_MEAN = {
    "Birch": "it learns a tree",
    "BernoulliRBM": "among what it learns are samples, not parameters",
    "IncrementalPCA": "its components are an orthonormal basis, and a mean of bases is none",
}
_OF_A_JOB = ("_vector", "_averaging", "_layout", "_rows_since")  # attributes, not pickled
# The defaults for `every`. Each exchange needs a partial_fit call of its own, which costs
# scikit-learn one to three milliseconds for any number of rows; more exchanges hardly change what
# is learnt.
_EXCHANGES_A_PASS = 2
_LEAST_ROWS = 1000


def wrap(
    estimator: Any,
    *,
    every: int | None = None,
    passes: int = 5,
    graph: Graph | None = None,
    staleness: int | None = 0,
) -> DataParallelEstimator:
    """Make a scikit-learn estimator data-parallel, by averaging what the ranks' copies learn.

    Each rank calls fit() or partial_fit() with its own shard (malt.shard). The ranks average what
    the estimator has learnt as arrays of float32 or float64: its attributes that are such arrays or
    lists of them, private ones too (SGD's `coef_` and `intercept_`, a perceptron network's `coefs_`
    and `intercepts_`, k-means' `cluster_centers_` and `_counts`). Numbers, integer arrays
    (`labels_`), counters (`t_`, `n_iter_`) and optimizers' moments stay each rank's own. All ranks
    start from what the lowest rank has learnt from its first rows, so that hidden units and
    clusters mean the same everywhere. An estimator may replace its arrays by others of the same
    shapes and dtypes. An estimator that changes shapes or dtypes, or that does not train on from
    its arrays, is refused.

    This is parameter averaging (Zinkevich et al., 2010): it suits linear models, networks and
    clusters. It costs accuracy when a rank makes few steps in all, as in short trainings on little
    data; docs/wrapping.md has figures. For statistics (naive Bayes, scalers) the result is the mean
    of the ranks' statistics, which is good if the shards are alike.

    Args:
        estimator: with partial_fit(); it is cloned and stays as it is, as in every meta-estimator.
        every: rows that a rank trains on from one exchange to the next. None: half its shard in
            fit(), but at least 1000; and 1000 in partial_fit().
        passes: passes that fit() makes over the shard, in another order each.
        graph: which ranks send to which; None: every rank to every rank.
        staleness: how many exchanges an in-neighbour may be behind; 0: an exchange waits for theirs
            of the same number (BSP); None: it waits for none.

    Returns:
        A scikit-learn estimator. It clones, pickles, goes into pipelines and searches, and predicts
        without a job.

    Raises:
        ConfigError: the estimator has no partial_fit(), or one whose mean is meaningless; or an
            argument is wrong.
    """
    made = DataParallelEstimator(
        estimator, every=every, passes=passes, graph=graph, staleness=staleness
    )
    made._check_parameters()
    return made


def _if_has(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a method that exists only if the estimator has one of this name."""

    def check(self: Any) -> bool:
        getattr(self._present, name)  # raises AttributeError that says why it is missing
        return True

    decorate: Callable[[Callable[..., Any]], Any] = available_if(check)
    return decorate


def _reader(name: str) -> Any:
    def read(self: DataParallelEstimator, *args: Any, **options: Any) -> Any:
        return getattr(self._present, name)(*args, **options)

    read.__name__ = name
    read.__doc__ = f"Call the fitted estimator's {name}() and return its result."
    return _if_has(name)(read)


class DataParallelEstimator(MetaEstimatorMixin, BaseEstimator):
    """An estimator that is trained on many ranks; malt.learn.wrap() makes it and has more on it.

    Attributes:
        estimator_: the clone that is trained; after fit() it is the same on all ranks. Its own
            fitted attributes (`coef_`, `classes_`, ...) can be read from this object too.
    """

    def __init__(
        self,
        estimator: Any,
        *,
        every: int | None = None,
        passes: int = 5,
        graph: Graph | None = None,
        staleness: int | None = 0,
    ) -> None:
        self.estimator = estimator
        self.every = every
        self.passes = passes
        self.graph = graph
        self.staleness = staleness

    def fit(
        self, X: Any, y: Any = None, *, classes: Any = None, sample_weight: Any = None
    ) -> DataParallelEstimator:
        """Train from the start on this rank's shard, `passes` passes. Collective.

        Args:
            X: this rank's rows, at least one; other ranks may have more or fewer.
            y: their labels or targets.
            classes: all labels, if a shard may not have all of them; the same on all ranks.
            sample_weight: a weight for each row.

        Raises:
            ValueError: as the estimator's own. If a rank raises it, has no rows, or has other
                labels or another number of features, all ranks raise ConfigError, which names it.
            TimeoutError: the ranks that the error names did not come.
        """
        self._forget()
        rows, reports = self._begin("fit", (X, y, sample_weight), classes)
        pieces = max(report["pieces"] for report in reports.values())

        def train() -> tuple[None, Report]:
            self._train(rows, pieces)
            return None, {}

        try:
            _together(self._call("fit"), "training", train)
        finally:
            self._leave()
        return self

    def partial_fit(
        self, X: Any, y: Any = None, *, classes: Any = None, sample_weight: Any = None
    ) -> DataParallelEstimator:
        """Train on more of this rank's rows, and exchange after every `every` of them.

        The first call is collective. Calls that exchange wait for one another as `staleness` says:
        give batches of equal sizes, equally many on all ranks.

        Args:
            X: a batch of this rank's rows.
            y: their labels or targets.
            classes: all labels; needed in the first call of a classifier.
            sample_weight: a weight for each row.

        Raises:
            ValueError: as fit(); after the first call, a ValueError of the estimator is raised only
                on the rank where it happened.
            TimeoutError: as fit().
        """
        if self._vector is None or self._vector.is_closed:
            self._begin("partial_fit", (X, y, sample_weight), classes)
        else:
            rows = CheckedRows(self.estimator, X, y, sample_weight, is_batch=True)
            self._rows_since += rows.train(self.estimator_, classes)
        if self._rows_since >= (self.every or _LEAST_ROWS):
            self._exchange(self._averaging.exchange)
            self._rows_since = 0
        return self

    _vector: Vector | None = None  # while the estimator is being trained
    _averaging: Averaging
    _layout: list[str]  # of what is learnt, after the first rows
    _rows_since: int = 0  # rows trained on since the last exchange

    def _check_parameters(self) -> None:
        kind = type(self.estimator).__name__
        if isinstance(self.estimator, type):
            name = self.estimator.__name__
            raise ConfigError(f"the estimator is the class {name}; give an instance, {name}()")
        if not hasattr(self.estimator, "partial_fit"):
            raise ConfigError(
                f"{kind} has no partial_fit(), by which the ranks train between exchanges; "
                "give an estimator that learns in steps, such as SGDClassifier(), SGDRegressor(), "
                "MLPClassifier() or MiniBatchKMeans()"
            )
        for base in type(self.estimator).__mro__:
            if base.__name__ in _NO_MEAN and base.__module__.startswith("sklearn."):
                raise ConfigError(
                    f"{kind} cannot be averaged over ranks: {_NO_MEAN[base.__name__]}; fit it on "
                    "one rank"
                )
        if self.every is not None:
            whole("every", self.every, 1)
        whole("passes", self.passes, 1)
        self._averaging = Averaging(self.graph, self.staleness)

    def _settings(self) -> list[str]:
        names = ("every", "passes", "graph", "staleness")
        return [f"{name}={getattr(self, name)!r}" for name in names]

    def _call(self, method: str) -> str:
        """Return the name of the call, for messages."""
        return f"malt.learn.wrap({type(self.estimator).__name__}).{method}"

    def _begin(
        self, method: str, data: tuple[Any, Any, Any], classes: Any
    ) -> tuple[CheckedRows, dict[int, Report]]:
        """Train on the first rows (in partial_fit on all rows), and make the vector. Collective.

        Returns:
            This rank's rows, and by rank in how many pieces fit() trains on them.
        """
        self._check_parameters()
        joining.init()
        is_fit, is_alone = method == "fit", jobs.current().size == 1

        def first() -> tuple[CheckedRows, Report]:
            rows = CheckedRows(self.estimator, *data, is_batch=not is_fit)
            every = rows.count
            if is_fit and not is_alone:
                every = self.every or max(_LEAST_ROWS, -(-rows.count // _EXCHANGES_A_PASS))
            if is_fit and not (is_alone and rows.in_one_call):
                rows.shuffle()
            all_labels = classes
            if is_fit and all_labels is None and is_classifier(self.estimator):
                all_labels = np.unique(np.asarray(data[1]))
            if not hasattr(self, "estimator_"):
                self.estimator_ = clone(self.estimator)
            self._rows_since = rows.train(self.estimator_, all_labels, 0, min(every, rows.count))
            self._layout = layout(learnt(self.estimator_))
            if not is_alone and not type(self.estimator).__module__.startswith("sklearn."):
                self._check_is_used(rows)
            report = {
                "pieces": -(-rows.count // every),
                "settings": brief(", ".join(self._settings())),
                **labels(all_labels),
                "learnt arrays": brief(", ".join(self._layout)),
            }
            return rows, report

        call = self._call(method)
        rows, reports = _together(call, "the first rows", first)
        compare(call, reports)
        if jobs.rank() == min(reports) and _has_counterpart(self.estimator):
            _note_counterpart(type(self.estimator).__name__)
        arrays = learnt(self.estimator_).values()
        count = sum(array.size for array in arrays)
        dtype = np.result_type(*(array.dtype for array in arrays))
        self._vector = vector(count, dtype=dtype, graph=self._averaging.graph)
        self._exchange(start_alike)
        if jobs.rank() != min(reports):  # the lowest rank's values replaced its own: train again
            rows.train(self.estimator_, None, 0, self._rows_since)
        return rows, reports

    def _check_is_used(self, rows: CheckedRows) -> None:
        def train(copy: Any) -> None:
            state = rows.random.get_state()
            rows.train(copy, None, 0, self._rows_since)
            rows.random.set_state(state)  # so that both copies see the same random numbers

        check_is_used(self.estimator_, train)

    def _train(self, rows: CheckedRows, pieces: int) -> None:
        """Train; every rank exchanges equally often, however many rows it has."""
        try:
            self._exchange(self._averaging.exchange)  # the first rows
            ends = np.linspace(self._rows_since, rows.count, pieces, dtype=int)
            for number in range(self.passes):
                if number > 0:
                    ends = np.linspace(0, rows.count, pieces + 1, dtype=int)
                    if pieces > 1 or not rows.in_one_call:
                        rows.shuffle()
                for piece in rows.random.permutation(len(ends) - 1):
                    begin, end = int(ends[piece]), int(ends[piece + 1])
                    if end > begin:
                        rows.train(self.estimator_, None, begin, end)
                    self._exchange(self._averaging.exchange)
            if not self._averaging.is_exact:
                self._exchange(lambda vector: vector.allreduce(AVG))
        except BaseException:
            self._leave()  # so that the other ranks do not wait for this one
            raise

    def _exchange(self, how: Callable[[Vector], object]) -> None:
        """Put what is learnt into the vector, apply `how` to the vector, and take the result."""
        assert self._vector is not None
        if jobs.current().size == 1:
            return
        found = learnt(self.estimator_)
        check_unchanged(found, self._layout)
        arrays = list(found.values())
        ends = np.cumsum([array.size for array in arrays])
        parts = np.split(self._vector.array, ends[:-1])
        for array, part in zip(arrays, parts, strict=True):
            part[:] = array.reshape(-1)
        how(self._vector)
        for array, part in zip(arrays, parts, strict=True):
            array[...] = part.reshape(array.shape)

    def _leave(self) -> None:
        if self._vector is not None:
            self._vector.close()
            self._vector = None

    def _forget(self) -> None:
        self._leave()
        self.__dict__.pop("estimator_", None)

    @property
    def _present(self) -> Any:
        """The fitted estimator, or else the given one, which raises that it is not fitted."""
        return self.__dict__.get("estimator_", self.__dict__["estimator"])

    def __getattr__(self, name: str) -> Any:
        is_fitted = name.endswith("_") and not name.startswith("_") and name != "estimator_"
        if is_fitted and "estimator_" in self.__dict__:
            return getattr(self.estimator_, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OF_A_JOB}

    def __sklearn_tags__(self) -> Any:
        return get_tags(self.estimator)

    @_if_has("score")
    def score(self, X: Any, y: Any = None, **options: Any) -> float:
        """Return the score that the estimator's own method returns."""
        return float(self._present.score(X, y, **options))

    @_if_has("transform")
    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:
        """Train on this rank's shard as fit() does, and transform the shard. Collective."""
        return self.fit(X, y, **options).transform(X)

    decision_function = _reader("decision_function")
    get_feature_names_out = _reader("get_feature_names_out")
    inverse_transform = _reader("inverse_transform")
    predict = _reader("predict")
    predict_log_proba = _reader("predict_log_proba")
    predict_proba = _reader("predict_proba")
    score_samples = _reader("score_samples")
    transform = _reader("transform")


def _together(
    call: str, step: str, action: Callable[[], tuple[Any, Report]]
) -> tuple[Any, dict[int, Report]]:
    """Run a step that fails on all ranks or on none; a single rank gets the original exception."""
    if jobs.current().size > 1:
        return Together(call, None).step(step, action)
    result, report = action()
    return result, {0: report}


def _has_counterpart(estimator: Any) -> bool:
    """Return whether MALT has this estimator itself, with these parameters."""
    return (
        type(estimator).__module__.startswith("sklearn.")
        and type(estimator).__name__ in ("SGDClassifier", "SGDRegressor")
        and estimator.learning_rate in ("optimal", "invscaling", "constant")
    )


@functools.cache  # once a process
def _note_counterpart(name: str) -> None:
    jobs.log.warning(
        "malt.learn.%s(...).fit() does the same as malt.learn.wrap(%s(...)).fit(), and faster: it "
        "takes the same parameters",
        *(name, name),
    )
