"""malt.learn.wrap: scikit-learn estimators on several ranks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from jobs import Result, run_job
from sklearn.base import clone
from sklearn.cluster import Birch, MiniBatchKMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.utils.estimator_checks import check_estimator

import malt
from malt._wrapping import wrap

# They share one job, which a worker runs once.
pytestmark = pytest.mark.xdist_group("wrap")

JOB = """
import copy, warnings
from sklearn.base import BaseEstimator
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier
warnings.simplefilter("ignore")
malt.init(timeout=20)
X, y = load_digits(return_X_y=True)
X = X / 16
Xs, ys = malt.shard(X), malt.shard(y)

# fit
estimators = {
    "linear": (SGDClassifier(random_state=0), {"passes": 10}),
    "halton": (SGDClassifier(random_state=0), {"graph": malt.HALTON, "staleness": None}),
    "averaged": (SGDClassifier(average=True, random_state=rank), {"staleness": 1}),
    "network": (MLPClassifier((32,), learning_rate_init=0.01, random_state=rank), {"passes": 10}),
    "clusters": (MiniBatchKMeans(10, n_init=1, random_state=rank), {}),
}
fitted = {}
for name, (estimator, options) in estimators.items():
    model = malt.learn.wrap(estimator, every=100, **options).fit(Xs, ys)
    fitted[name] = model.predict(X)
tell(fitted=fitted, labels=y)

# Shares of other sizes, and labels that one rank lacks but is told of
fewer = (ys != 3) & (np.arange(len(ys)) < (700 if rank == 0 else 150))
model = malt.learn.wrap(SGDClassifier(random_state=0), every=100)
model.fit(Xs[fewer], ys[fewer], classes=range(10))
tell(uneven=model.coef_)

# partial_fit: two batches, of which the second is followed by no exchange
batches = [(X[i:i + 60], y[i:i + 60].astype(float)) for i in (0, 60)]
plain = SGDRegressor(learning_rate="constant", eta0=0.01, shuffle=False)
model = malt.learn.wrap(plain, every=60)
model.partial_fit(*batches[rank])
first = copy.deepcopy(plain).partial_fit(*batches[0])
second = copy.deepcopy(first).partial_fit(*batches[1])
tell(averaged=model.coef_.copy(), expected=(first.coef_ + second.coef_) / 2, counter=model.t_)
model.partial_fit(batches[0][0][:59], batches[0][1][:59])
own = model.coef_.copy()
model.partial_fit(batches[rank][0][:1], batches[rank][1][:1])
tell(own=own, after=model.coef_.copy())

# How often it exchanges, if not told
class Counting(SGDClassifier):
    def partial_fit(self, X, y, **options):
        self.calls = getattr(self, "calls", 0) + 1
        return super().partial_fit(X, y, **options)

many = np.arange(12 * len(Xs)) % len(Xs)
model = malt.learn.wrap(Counting(), passes=2).fit(Xs[many], ys[many])
tell(calls=model.estimator_.calls)

# Estimators that replace their arrays
class Mean(BaseEstimator):
    def __init__(self, replaces="by another"):
        self.replaces = replaces

    def partial_fit(self, X, y=None):
        self.calls = getattr(self, "calls", 0) + 1
        old = getattr(self, "coef_", np.zeros((2, 32)))
        new = old.reshape(2, 32) + 0.1 * (X.mean(axis=0).reshape(2, 32) - old.reshape(2, 32))
        later = self.calls == 4 and rank == 1
        if self.replaces == "by an equal one from elsewhere":
            self.kept = getattr(self, "kept", {"coef": 0})
            new = self.kept["coef"] = self.kept["coef"] + X.mean(axis=0)
            self.coef_ = new.copy()
        elif self.replaces == "by more" and later:
            self.coef_ = np.append(new, new, axis=0)
        elif self.replaces == "in another shape" and later:
            self.coef_ = new.reshape(4, 16)
        elif self.replaces == "in another dtype" and later:
            self.coef_ = new.astype("f4")
        else:
            self.coef_ = new
            self.coef_.setflags(write=self.replaces != "by a fixed one")
        return self

model = malt.learn.wrap(Mean(), every=100, passes=2).fit(Xs)
tell(replaced=model.coef_)
tell(replaced_errors={
    how: error_of(malt.learn.wrap(Mean(how), every=100).fit, Xs)
    for how in (
        "by more", "in another shape", "in another dtype", "by a fixed one",
        "by an equal one from elsewhere",
    )
})

# Errors
class Failing(SGDClassifier):
    def partial_fit(self, X, y, **options):
        self.calls = getattr(self, "calls", 0) + 1
        if rank == 1 and self.calls == 4:
            raise ArithmeticError("no more")
        return super().partial_fit(X, y, **options)

def fit(X, y, estimator=SGDClassifier(), **options):
    return error_of(malt.learn.wrap(estimator, **{"every": 100, **options}).fit, X, y)

odd = rank == 1
tell(errors={
    "labels": fit(Xs[ys != 3] if odd else Xs, ys[ys != 3] if odd else ys),
    "features": fit(Xs[:, :60] if odd else Xs, ys),
    "nan": fit(np.where(odd, np.nan, Xs), ys),
    "empty": fit(Xs[:0] if odd else Xs, ys[:0] if odd else ys),
    "settings": fit(Xs, ys, every=100 + rank),
    "training": fit(Xs, ys, Failing()),
})
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_job(tmp_path_factory.mktemp("wrap"), 2, JOB)


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    x, y = load_digits(return_X_y=True)
    return x / 16, y


# On two ranks


@pytest.mark.parametrize("name", ["linear", "halton", "averaged", "network"])
def test_fit_gives_all_ranks_one_classifier_that_has_learnt(job: Result, name: str) -> None:
    first, second = (fitted[name] for fitted in job.each("fitted"))

    assert np.array_equal(first, second)
    assert np.mean(first == job.told[0]["labels"]) > 0.9


def test_clusters_mean_the_same_on_all_ranks(job: Result) -> None:
    first, second = (fitted["clusters"] for fitted in job.each("fitted"))

    assert np.array_equal(first, second)
    assert len(np.unique(first)) >= 8


def test_shares_of_other_sizes_take_as_many_exchanges(job: Result) -> None:
    first, second = job.each("uneven")

    assert np.array_equal(first, second)
    assert len(first) == 10


def test_two_exchanges_a_pass_are_made_where_no_interval_is_given(job: Result) -> None:
    assert job.each("calls") == [4, 5]  # the second has learnt its first rows twice


def test_partial_fit_averages_what_both_learnt_from_the_lowest_ranks_start(job: Result) -> None:
    for averaged, expected in zip(job.each("averaged"), job.each("expected"), strict=True):
        np.testing.assert_allclose(averaged, expected, rtol=1e-12)


def test_counters_are_not_averaged(job: Result) -> None:
    assert job.each("counter") == [61, 121]  # the second has learnt its first batch twice


def test_partial_fit_exchanges_when_every_rows_are_reached(job: Result) -> None:
    own, after = job.each("own"), job.each("after")

    assert np.array_equal(own[0], own[1])  # the same rows from the same start
    assert np.array_equal(after[0], after[1])  # other rows, and averaged
    assert not np.array_equal(own[0], after[0])


def test_arrays_that_an_estimator_replaces_are_averaged(job: Result) -> None:
    first, second = job.each("replaced")

    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ("by more", ["rank 1", "coef_ (4, 32) float64 in place of coef_ (2, 32) float64"]),
        ("in another shape", ["rank 1", "coef_ (4, 16) float64 in place of coef_ (2, 32)"]),
        ("in another dtype", ["rank 1", "coef_ (2, 32) float32 in place of coef_ (2, 32) float64"]),
        ("by a fixed one", ["coef_ cannot be written to"]),
        ("by an equal one from elsewhere", ["rank 0", "Mean.partial_fit()", "makes them anew"]),
    ],
)
def test_an_array_replaced_by_what_cannot_be_averaged_is_an_error_by_name(
    job: Result, how: str, parts: list[str]
) -> None:
    for errors in job.each("replaced_errors"):
        assert errors[how] is not None
        assert errors[how].kind == "ConfigError"
        assert errors[how].says(*parts), errors[how].text


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("labels", ["the labels is", "0, 1, 2, 4, 5, 6, 7, 8, 9 on rank 1", "give classes="]),
        ("features", ["(10, 60)", "on rank 1", "(10, 64)", "on rank 0"]),
        ("nan", ["rank 1: ValueError", "NaN"]),
        ("empty", ["rank 1: ValueError", "0 sample(s)"]),
        ("settings", ["every=101", "on rank 1", "every=100"]),
        ("training", ["rank 1: ArithmeticError: no more"]),
    ],
)
def test_error_on_one_rank_is_told_on_all(job: Result, what: str, parts: list[str]) -> None:
    for errors in job.each("errors"):
        assert errors[what] is not None
        assert errors[what].kind == "ConfigError"
        assert errors[what].says(*parts), errors[what].text
        assert errors[what].seconds < 15  # not by running into the time limit


# On one


class NotesCalls(SGDClassifier):
    """Each with its rows and its seed."""

    def partial_fit(self, X: Any, y: Any, **options: Any) -> Any:
        self.calls_ = [*getattr(self, "calls_", []), X]
        self.seeds_ = [*getattr(self, "seeds_", []), self.random_state]
        return super().partial_fit(X, y, **options)


def test_one_rank_trains_on_the_callers_rows_a_pass_a_call(
    alone: None, digits: tuple[Any, Any]
) -> None:
    model = malt.learn.wrap(NotesCalls(), every=100, passes=3).fit(*digits)

    assert len(model.calls_) == 3
    assert all(rows is digits[0] for rows in model.calls_)


def test_each_pass_has_another_order_though_the_seed_is_given(
    alone: None, digits: tuple[Any, Any]
) -> None:
    model = malt.learn.wrap(NotesCalls(random_state=7), passes=3).fit(*digits)

    assert len(set(model.seeds_)) == 3
    assert model.estimator_.random_state == 7


def test_k_means_takes_a_step_a_batch_on_one_rank_too(alone: None, digits: tuple[Any, Any]) -> None:
    model = malt.learn.wrap(MiniBatchKMeans(10, batch_size=128, n_init=1), passes=2).fit(digits[0])

    assert model.n_steps_ == 2 * -(-len(digits[0]) // 128)


def test_fit_names_malts_own_estimator_once(
    alone: None, digits: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    wrap._note_counterpart.cache_clear()

    for estimator in (MiniBatchKMeans(10, n_init=1), SGDClassifier(), SGDClassifier()):
        malt.learn.wrap(estimator).fit(*digits)

    (record,) = caplog.records
    assert record.message.startswith("malt.learn.SGDClassifier(...).fit() does the same")


def test_a_weight_that_is_no_number_is_refused(alone: None, digits: tuple[Any, Any]) -> None:
    weights = np.full(len(digits[0]), np.nan)

    with pytest.raises(ValueError, match="sample_weight contains NaN"):
        malt.learn.wrap(SGDClassifier()).fit(*digits, sample_weight=weights)


def test_it_is_a_scikit_learn_estimator(alone: None) -> None:
    failing = "an estimator that learns in steps sees repeated rows otherwise than weighted ones"
    expected = {
        f"check_sample_weight_equivalence_on_{kind}_data": failing for kind in ("dense", "sparse")
    }

    results = check_estimator(
        malt.learn.wrap(SGDClassifier(random_state=0)),
        expected_failed_checks=expected,
        on_fail=None,
        on_skip=None,
    )

    assert [each["check_name"] for each in results if each["status"] == "failed"] == []
    assert len(results) > 40


def test_parameters_are_the_estimators_and_its_own() -> None:
    model = malt.learn.wrap(SGDClassifier(alpha=0.5), every=7, graph=malt.RING, staleness=2)

    copy = clone(model).set_params(estimator__alpha=0.25, passes=3)

    parameters = copy.get_params()
    assert [parameters[name] for name in ("every", "graph", "staleness", "passes")] == [
        *(7, malt.RING, 2, 3)
    ]
    assert (copy.estimator.alpha, model.estimator.alpha) == (0.25, 0.5)


def test_search_over_a_pipeline_trains_and_predicts(alone: None, digits: tuple[Any, Any]) -> None:
    pipeline = make_pipeline(
        MaxAbsScaler(), malt.learn.wrap(SGDClassifier(random_state=0), every=400)
    )
    grid = {"dataparallelestimator__estimator__alpha": [1e-4, 10.0]}

    search = GridSearchCV(pipeline, grid, cv=2).fit(*digits)

    assert search.best_params_["dataparallelestimator__estimator__alpha"] == 1e-4
    assert search.score(*digits) > 0.9


def test_a_fitted_one_is_pickled_and_predicts_in_no_job(digits: tuple[Any, Any]) -> None:
    x, _ = digits
    with malt.init():
        model = malt.learn.wrap(MiniBatchKMeans(10, n_init=1, random_state=0)).fit(x)
        expected = model.transform(x)
        data = pickle.dumps(model)

    again = pickle.loads(data)

    assert np.array_equal(again.transform(x), expected)
    assert np.array_equal(again.cluster_centers_, model.estimator_.cluster_centers_)
    assert not hasattr(again, "predict_proba")


def test_prediction_before_fit_says_so(digits: tuple[Any, Any]) -> None:
    with pytest.raises(NotFittedError):
        malt.learn.wrap(SGDClassifier()).predict(digits[0])


@pytest.mark.parametrize(
    ("estimator", "options", "words"),
    [
        (LogisticRegression(), {}, r"LogisticRegression has no partial_fit\(\).*SGDClassifier"),
        (SGDClassifier, {}, r"is the class SGDClassifier; give an instance, SGDClassifier\(\)"),
        (IncrementalPCA(), {}, "orthonormal basis"),
        (Birch(), {}, "a tree"),
        (SGDClassifier(), {"every": 0}, "every is 0; it must be a whole number at least 1"),
        (SGDClassifier(), {"passes": 1.5}, "passes is 1.5"),
        (
            SGDClassifier(),
            {"staleness": 0.5},
            "staleness is 0.5",
        ),
        (SGDClassifier(), {"graph": "ring"}, "graph is 'ring'; it is None, malt.ALL"),
    ],
)
def test_unfit_estimators_and_options_are_refused(
    estimator: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(malt.ConfigError, match=words):
        malt.learn.wrap(estimator, **options)


def test_importing_malt_imports_neither_scikit_learn_nor_pytorch() -> None:
    script = "import sys, malt; print({'sklearn', 'torch', 'scipy'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stdout == "set()\n", done.stderr
