"""Linear models with scikit-learn's faces: on one rank, on forked ones, and in a job."""

from __future__ import annotations

import mmap
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from jobs import run_job
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import malt
from malt._pool import forked

DIGITS = train_test_split(*load_digits(return_X_y=True), random_state=0)
TRAIN, TEST = (DIGITS[0] / 16, DIGITS[2]), (DIGITS[1] / 16, DIGITS[3])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [malt.learn.SGDClassifier, malt.learn.SGDRegressor])
def test_scikit_learns_checks_pass(kind: Any) -> None:
    why = "a row of weight 2 is one long step, two rows are two: likewise scikit-learn's own SGD"
    equivalence = "check_sample_weight_equivalence_on_"
    expected = dict.fromkeys([f"{equivalence}dense_data", f"{equivalence}sparse_data"], why)
    results = check_estimator(kind(), expected_failed_checks=expected, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 50


@pytest.mark.parametrize("loss", ["hinge", "log_loss", "modified_huber", "squared_hinge"])
def test_classifies_as_well_as_scikit_learn(loss: str) -> None:
    settings: dict[str, Any] = {"max_iter": 20, "tol": None, "random_state": 0, "average": True}
    ours = malt.learn.SGDClassifier(loss, **settings).fit(*TRAIN)
    theirs = SGDClassifier(loss=loss, **settings).fit(*TRAIN)
    assert ours.score(*TEST) > theirs.score(*TEST) - 0.02
    assert ours.coef_.shape == theirs.coef_.shape
    assert ours.n_iter_ == theirs.n_iter_


def test_the_same_rows_in_the_same_order_give_scikit_learns_weights() -> None:
    X, y = make_classification(300, 8, random_state=1)
    settings: dict[str, Any] = {"alpha": 0.01, "max_iter": 3, "tol": None, "shuffle": False}
    ours = malt.learn.SGDClassifier("log_loss", **settings).fit(X, y)
    theirs = SGDClassifier(loss="log_loss", **settings).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-6)
    assert ours.t_ == theirs.t_


def test_regresses_as_well_as_scikit_learn() -> None:
    X, y = make_regression(500, 10, noise=5, random_state=0)
    ours = malt.learn.SGDRegressor(random_state=0).fit(X, y)
    theirs = SGDRegressor(random_state=0).fit(X, y)
    assert ours.score(X, y) > theirs.score(X, y) - 0.001
    assert (ours.coef_.shape, ours.intercept_.shape) == (
        theirs.coef_.shape,
        theirs.intercept_.shape,
    )


def test_forked_ranks_learn_as_well_as_one() -> None:
    kind = malt.learn.SGDClassifier
    one = kind(random_state=0, max_iter=30, tol=None).fit(*TRAIN)
    many = kind(random_state=0, max_iter=30, tol=None, ranks=3).fit(*TRAIN)
    assert many.score(*TEST) > one.score(*TEST) - 0.02
    again = kind(random_state=0, max_iter=30, tol=None, ranks=3).fit(*TRAIN)
    assert np.array_equal(many.coef_, again.coef_)
    with pytest.raises(malt.ConfigError, match="in no job"):
        malt.rank()


@pytest.mark.parametrize(
    "way",
    [
        {"staleness": 2, "graph": malt.RING},
        {"staleness": None, "graph": malt.HALTON, "every": 50},
        {"exchange": "difference", "every": 20, "alpha": 0.001},
        {"learning_rate": "adagrad", "eta0": 0.1, "average": True},
        {"exchange": "gradient", "every": 20, "learning_rate": "constant", "eta0": 0.5},
        {"exchange": "gradient", "every": 20, "learning_rate": "adagrad", "eta0": 0.5},
    ],
    ids=["ssp", "async", "difference", "adagrad and average", "gradient", "gradient, adagrad"],
)
def test_ways_of_exchange_learn(way: dict[str, Any]) -> None:
    # Of asynchronous ranks one could end a few epochs before the other has begun.
    epochs = 200 if way.get("staleness", 0) is None else 20
    model = malt.learn.SGDClassifier(max_iter=epochs, tol=None, random_state=0, ranks=2, **way)
    assert model.fit(*TRAIN).score(*TEST) > 0.91


@pytest.mark.parametrize("average", [False, True])
def test_one_exchange_at_the_end_gives_the_mean_of_models_trained_apart(average: bool) -> None:
    X, y = make_classification(1201, 6, random_state=2)
    common: dict[str, Any] = {"shuffle": False, "tol": 1e-3, "average": average}
    shares = [(0, 400), (400, 800), (800, 1201)]
    apart = [malt.learn.SGDClassifier(**common).fit(X[i:j], y[i:j]) for i, j in shares]
    model = malt.learn.SGDClassifier(**common, exchange="once", ranks=3).fit(X, y)
    np.testing.assert_allclose(model.coef_, np.mean([one.coef_ for one in apart], 0), rtol=1e-9)
    passes = [one.n_iter_ for one in apart]
    assert len(set(passes)) > 1  # each has stopped alone
    assert model.n_iter_ == max(passes)


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": "invscaling", "eta0": 0.3, "power_t": 0.2},
        {"learning_rate": "adagrad", "eta0": 0.2, "average": 3},
        {"learning_rate": "constant", "eta0": 0.2, "penalty": "elasticnet", "alpha": 0.01},
    ],
    ids=lambda settings: settings["learning_rate"],
)
def test_gradients_of_all_ranks_make_the_step_of_one_rank_with_their_rows(
    settings: dict[str, Any],
) -> None:
    X, y = make_classification(400, 6, random_state=2)
    halves = np.r_[np.arange(0, 200).reshape(10, 20), np.arange(200, 400).reshape(10, 20)]
    order = halves.reshape(2, 10, 20).swapaxes(0, 1).ravel()  # 20 rows of each rank in turn
    common: dict[str, Any] = {
        "loss": "log_loss", "exchange": "gradient", "shuffle": False, "max_iter": 2, "tol": None,
    }  # fmt: skip
    one = malt.learn.SGDClassifier(**common, **settings, every=40).fit(X[order], y[order])
    two = malt.learn.SGDClassifier(**common, **settings, every=20, ranks=2).fit(X, y)
    np.testing.assert_allclose(two.coef_, one.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(two.intercept_, one.intercept_, rtol=1e-9)
    assert one.n_iter_ == two.n_iter_
    assert one.score(X, y) > 0.8


def test_sparse_and_dense_rows_of_both_precisions_give_the_same_model() -> None:
    X, y = TRAIN
    models = [
        malt.learn.SGDClassifier(
            "log_loss", alpha=0.01, max_iter=5, tol=None, random_state=0, fit_intercept=False
        )
        .fit(convert(X.astype(dtype)), y)
        .coef_
        for convert in (np.asarray, sparse.csr_matrix, sparse.coo_array)
        for dtype in (np.float64, np.float32)
    ]
    assert [coef.dtype for coef in models] == 3 * [np.float64, np.float32]
    for coef in models[1:]:
        np.testing.assert_allclose(coef, models[0], rtol=1e-3, atol=1e-4)


def test_partial_fit_goes_on_where_it_was() -> None:
    whole = malt.learn.SGDClassifier(max_iter=3, tol=None, shuffle=False).fit(*TRAIN)
    parts = malt.learn.SGDClassifier(shuffle=False)
    for _ in range(3):
        parts.partial_fit(*TRAIN, classes=np.unique(TRAIN[1]))
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-12)
    restored = pickle.loads(pickle.dumps(parts)).partial_fit(*TRAIN)
    assert np.array_equal(restored.coef_, parts.partial_fit(*TRAIN).coef_)


def test_partial_fit_trains_after_a_refused_first_call() -> None:
    model = malt.learn.SGDClassifier(exchange="gradient")
    with pytest.raises(ValueError, match="learning_rate is 'optimal'"):
        model.partial_fit(*TRAIN, classes=np.unique(TRAIN[1]))
    model.set_params(exchange="model").partial_fit(*TRAIN, classes=range(11))
    assert model.coef_.shape[0] == 11


@pytest.mark.parametrize("kind", [malt.learn.SGDClassifier, malt.learn.SGDRegressor])
def test_partial_fit_does_not_stop_early(kind: Any) -> None:
    with pytest.raises(ValueError, match="early_stopping should be False with partial_fit"):
        kind(early_stopping=True).partial_fit(X3, [0, 1, 1])


def test_l1_ratio_may_be_none_where_it_means_nothing() -> None:
    model = malt.learn.SGDClassifier(l1_ratio=None, max_iter=1, tol=None, shuffle=False)
    default = clone(model).set_params(l1_ratio=0.15).fit(*TRAIN)
    assert np.array_equal(model.fit(*TRAIN).coef_, default.coef_)
    with pytest.raises(ValueError, match="l1_ratio is None; it must be a number at least 0"):
        model.set_params(penalty="elasticnet").fit(*TRAIN)


def test_warm_start_and_early_stopping() -> None:
    warm = malt.learn.SGDClassifier(
        max_iter=1, tol=None, random_state=0, warm_start=True, average=True
    )
    first = warm.fit(*TRAIN).score(*TRAIN)
    for _ in range(4):
        warm.fit(*TRAIN)
    assert warm.score(*TRAIN) > first
    early = malt.learn.SGDClassifier(random_state=0, early_stopping=True, ranks=2).fit(*TRAIN)
    assert early.n_iter_ < 100
    assert early.score(*TEST) > 0.9


@pytest.mark.parametrize("average", [250, 301])
def test_the_average_is_shown_once_there_is_one(average: int) -> None:
    settings: dict[str, Any] = {"average": average, "max_iter": 3, "tol": None, "shuffle": False}
    rows, labels = TRAIN[0][:100], TRAIN[1][:100] > 4
    ours, theirs = (kind(**settings) for kind in (malt.learn.SGDClassifier, SGDClassifier))
    for _ in range(2):
        np.testing.assert_allclose(
            ours.partial_fit(rows, labels, classes=[False, True]).coef_,
            theirs.partial_fit(rows, labels, classes=[False, True]).coef_,
            rtol=1e-6,
            atol=1e-9,
        )
    assert np.allclose(ours.fit(rows, labels).coef_, theirs.fit(rows, labels).coef_)
    early = malt.learn.SGDClassifier(early_stopping=True, average=10**6, random_state=1)
    early.fit(rows, labels)
    assert early.n_iter_ > early.n_iter_no_change + 1  # the score was not that of an empty average


def test_a_warm_start_begins_the_average_anew() -> None:
    settings: dict[str, Any] = {"max_iter": 1, "tol": None, "shuffle": False, "warm_start": True}
    rows, labels = TRAIN[0][:100], TRAIN[1][:100] > 4
    ours, theirs = (
        kind(average=90, **settings) for kind in (malt.learn.SGDClassifier, SGDClassifier)
    )
    for _ in range(3):
        ours.fit(rows, labels)
        np.testing.assert_allclose(ours.coef_, theirs.fit(rows, labels).coef_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [malt.learn.SGDClassifier, malt.learn.SGDRegressor])
def test_rates_and_averages_change_between_trainings(kind: Any) -> None:
    rows, targets = TRAIN[0][:100], (TRAIN[1][:100] > 4).astype(float)
    model = kind(warm_start=True, max_iter=2, tol=None, shuffle=False).fit(rows, targets)
    before = model.score(rows, targets)
    for settings in (
        {"learning_rate": "adagrad", "average": True},
        {"learning_rate": "constant", "average": False},
        {"average": True},
        {"average": 10**6},  # steps that will not be made: no average is shown
    ):
        model.set_params(**settings).fit(rows, targets).partial_fit(rows, targets)
    assert model.score(rows, targets) > before
    plain, late = clone(model).set_params(average=False), clone(model)
    assert np.allclose(plain.fit(rows, targets).coef_, late.fit(rows, targets).coef_)
    late.set_params(average=True).partial_fit(rows, targets)  # which averages its own steps alone
    mean_of_few = np.abs(late.coef_).sum()
    start, end = (
        np.abs(coef).sum() for coef in (plain.coef_, plain.partial_fit(rows, targets).coef_)
    )
    assert min(start, end) < mean_of_few < max(start, end)


def test_early_stopping_is_scikit_learns() -> None:
    X, y = make_classification(300, 8, n_informative=6, flip_y=0.2, random_state=1)
    some = np.random.default_rng(0).random(len(y)).astype(np.float32)
    settings: dict[str, Any] = {  # no penalty: scikit-learn leaves its scale out of the score
        "early_stopping": True, "shuffle": False, "penalty": None, "learning_rate": "constant",
    }  # fmt: skip
    for seed, eta0, class_weight in ((0, 0.01, {0: 30, 1: 0.01}), (1, 0.1, None)):
        settings |= {"random_state": seed, "eta0": eta0, "class_weight": class_weight}
        ours, theirs = (
            kind(**settings).fit(X, y, sample_weight=some)
            for kind in (malt.learn.SGDClassifier, SGDClassifier)
        )
        assert ours.n_iter_ == theirs.n_iter_
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
    with pytest.raises(ValueError, match="for validation set are all zero, of 30 rows; consider"):
        malt.learn.SGDClassifier(**settings).fit(X, y, sample_weight=np.arange(300) == 0)


@pytest.mark.parametrize("unit", [0.01, 1])
def test_early_stopping_of_a_regression_knows_no_unit(unit: float) -> None:
    X, y = make_regression(200, 4, noise=5, random_state=0)
    settings: dict[str, Any] = {
        "early_stopping": True, "shuffle": False, "penalty": None, "random_state": 0,
        "eta0": 0.001, "learning_rate": "constant",
    }  # fmt: skip
    ours, theirs = (
        kind(**settings).fit(X, unit * y) for kind in (malt.learn.SGDRegressor, SGDRegressor)
    )
    assert ours.n_iter_ == theirs.n_iter_


@pytest.mark.parametrize("graph", [malt.HALTON, malt.RANDOM(2, 7), malt.Graph([(0, 1), (1, 0)])])
def test_an_estimator_with_a_graph_is_cloned_and_pickled(graph: malt.Graph) -> None:
    model = malt.learn.SGDClassifier(graph=graph)
    for copy in (clone(model), pickle.loads(pickle.dumps(model))):
        assert copy.graph == graph


def test_indices_may_be_of_64_bits() -> None:
    X, y = make_classification(100, 5, random_state=0)
    short = sparse.csr_matrix(X)
    long = short.copy()
    long.indices, long.indptr = long.indices.astype(np.int64), long.indptr.astype(np.int64)
    models = [
        malt.learn.SGDClassifier(max_iter=2, tol=None, random_state=0).fit(x, y)
        for x in (short, long)
    ]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert np.array_equal(models[0].predict(long), models[1].predict(short))
    with pytest.raises(ValueError, match=r"X has 2147483648 features; .* at most 2147483647"):
        malt.learn.SGDClassifier().fit(sparse.csr_matrix((100, 2**31)), y)


def test_class_weights_move_the_border() -> None:
    X, y = make_classification(400, 5, weights=[0.9], flip_y=0.1, random_state=0)
    plain = malt.learn.LogisticRegression(random_state=0).fit(X, y).predict(X).sum()
    balanced = malt.learn.LogisticRegression(random_state=0, class_weight="balanced").fit(X, y)
    assert balanced.predict(X).sum() > 1.5 * plain


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_class_weights_are_scikit_learns_of_two_classes_and_of_more(loss: str) -> None:
    X, y = make_classification(300, 8, n_informative=6, n_classes=3, random_state=1)
    settings: dict[str, Any] = {"alpha": 0.01, "max_iter": 3, "tol": None, "shuffle": False}
    some = np.random.default_rng(0).random(len(y)).astype(np.float32)
    for rows, class_weight in (
        (y < 2, {0: 3, 1: 0.5}),
        (y < 3, {0: 3, 1: 0.5}),
        (y < 3, "balanced"),
    ):
        given = X[rows], y[rows], some[rows]
        weighted = {**settings, "class_weight": class_weight}
        ours = malt.learn.SGDClassifier(loss, **weighted).fit(*given[:2], sample_weight=given[2])
        theirs = SGDClassifier(loss=loss, **weighted).fit(*given[:2], sample_weight=given[2])
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5)


def tumours() -> tuple[Any, Any]:
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.mark.parametrize("ranks", [None, 2])
def test_passes_that_do_not_suffice_are_a_warning(ranks: int | None) -> None:
    X, y = tumours()
    model = malt.learn.SGDClassifier(random_state=0, ranks=ranks)
    assert 5 < model.fit(X, y).n_iter_ < model.max_iter
    with pytest.warns(ConvergenceWarning, match=r"max_iter=3 passes .* tol=0.001") as seen:
        assert model.set_params(max_iter=3).fit(X, y).n_iter_ == 3
    assert seen[0].filename == __file__


def test_training_stops_when_scikit_learns_does() -> None:
    X, y = make_classification(300, 8, n_informative=6, flip_y=0.2, random_state=1)
    settings: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.001, "shuffle": False}
    heavy: dict[str, Any] = {"sample_weight": np.full(300, 1000.0)}
    cases: list[tuple[str | None, dict[str, Any]]] = [(None, heavy)]
    # Before 1.8 scikit-learn looked at the mean loss alone, without the penalty.
    if tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 8):
        cases += [("l2", {}), ("l1", {}), ("elasticnet", {})]
    for penalty, given in cases:
        settings |= {"penalty": penalty, "alpha": 0.1, "eta0": 1e-6 if given else 1e-3}
        ours = malt.learn.SGDClassifier("log_loss", **settings).fit(X, y, **given)
        theirs = SGDClassifier(loss="log_loss", **settings).fit(X, y, **given)
        assert abs(ours.n_iter_ - theirs.n_iter_) <= 1


def test_asynchronous_ranks_make_all_passes() -> None:
    model = malt.learn.SGDClassifier(staleness=None, tol=1.0, max_iter=9, ranks=2).fit(*tumours())
    assert model.n_iter_ == 9


def test_grid_search_over_a_pipeline() -> None:
    search = GridSearchCV(
        make_pipeline(
            StandardScaler(), malt.learn.SGDClassifier(max_iter=5, tol=None, random_state=0)
        ),
        {"sgdclassifier__alpha": [1e-4, 10.0]},
        cv=3,
    ).fit(*TRAIN)
    assert search.best_params_ == {"sgdclassifier__alpha": 1e-4}


def test_a_bar_shows_the_loss_and_each_ranks_staleness(capfd: pytest.CaptureFixture[str]) -> None:
    malt.learn.SGDClassifier(max_iter=5, tol=None, ranks=2, verbose=True).fit(*TRAIN)
    shown = capfd.readouterr().err
    assert re.search(r"loss \d+\.\d{4}", shown)
    assert "staleness 0 0" in shown
    assert "examples/s" in shown


LONG_STEPS = {
    "loss": "squared_error",
    "penalty": None,
    "learning_rate": "constant",
    "eta0": 1e305,
}
X3 = np.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    ("settings", "y", "words"),
    [
        ({}, [1, 1, 1], "number of classes has to be greater than one; got 1 class"),
        ({"alpha": -1}, [0, 1, 1], "alpha is -1; it must be a number at least 0"),
        ({"alpha": 0}, [0, 1, 1], "divides by the penalty's weight"),
        ({"loss": "hinges"}, [0, 1, 1], "loss is 'hinges'; it must be one of 'hinge', 'log_loss'"),
        ({"staleness": -1}, [0, 1, 1], "staleness is -1; it must be a whole number"),
        ({"ranks": 0}, [0, 1, 1], "ranks is 0; it must be a whole number at least 1"),
        ({"graph": "ring"}, [0, 1, 1], "graph is 'ring'; it is None, malt.ALL, HALTON"),
        ({"max_iter": 1.5}, [0, 1, 1], "max_iter is 1.5; it must be a whole number"),
        ({"exchange": "gossip"}, [0, 1, 1], "exchange is 'gossip'"),
        ({"early_stopping": "yes"}, [0, 1, 1], "early_stopping is 'yes'; it is True or False"),
        ({"exchange": "gradient"}, [0, 1, 1], "learning_rate is 'optimal', which is for a step"),
        (LONG_STEPS, [0, 1, 1], "under-/overflow occurred at epoch"),
        ({**LONG_STEPS, "ranks": 2}, [0, 1, 1], "Floating-point under-/overflow"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], y: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        malt.learn.SGDClassifier(**settings).fit(X3, y)


def test_ranks_of_a_job_train_on_their_own_rows_and_end_with_one_model(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
from sklearn.base import clone
from sklearn.datasets import load_digits
X, y = load_digits(return_X_y=True)
X /= 16
model = malt.learn.LogisticRegression(random_state=0).fit(X[rank::2], y[rank::2])
tell(coef=model.coef_, score=model.score(X, y))
# What goes wrong on one rank, all hear of
bad = X.copy()
bad[rank, 0] = np.nan if rank == 1 else 0
tell(nan=error_of(malt.learn.LogisticRegression().fit, bad, y))
tell(features=error_of(malt.learn.LogisticRegression().fit, X[:, rank:], y))
tell(labels=error_of(malt.learn.LogisticRegression().fit, X, np.where(y == 9, 10 + rank, y)))
tell(ranks=error_of(malt.learn.LogisticRegression(ranks=2).fit, X, y))
fewer = malt.learn.LogisticRegression(tol=0.1).fit(X[y > rank], y[y > rank])
tell(classes=fewer.classes_)
# Weights of classes are those of all rows, also of a class that a rank has none of
settings = {"max_iter": 2, "tol": None, "random_state": 0}
everywhere = np.bincount(np.concatenate([y[y > 0], y]))
weights = everywhere.sum() / (10 * everywhere)
given = X[y >= 1 - rank], y[y >= 1 - rank]
balanced, weighed = (
    malt.learn.SGDClassifier(class_weight=of, **settings).fit(*given).coef_
    for of in ("balanced", dict(enumerate(weights)))
)
tell(balanced=np.array_equal(balanced, weighed))
alone = np.r_[y[:-1], 10] if rank == 1 else y % 9
tell(held=error_of(malt.learn.SGDClassifier(early_stopping=True).fit, X, alone))
many = np.arange(300)
tell(many=malt.learn.SGDClassifier(max_iter=1).fit(many[:, None] / 300, many).classes_)
tell(others=error_of(malt.learn.SGDClassifier().fit, many[:, None] / 300, many + rank))
words = np.array([f"слово {i}" for i in range(30)])[rank:]
tell(words=malt.learn.SGDClassifier(max_iter=1).fit(many[rank:30, None] / 300, words).classes_)
tell(settings=error_of(malt.learn.SGDClassifier(every=10 + rank).fit, X, y))
""",
    )
    assert result.code == 0, result.output
    first, second = result.each("coef")
    assert np.array_equal(first, second)
    assert min(result.each("score")) > 0.94
    for error in result.each("nan"):
        assert error.says("LogisticRegression.fit()", "rank 1", "NaN")
    for error in result.each("features"):
        assert error.says("features is 64 on rank 0, and 63 on rank 1", "features=")
    for error in result.each("labels"):
        assert error.says("rank 1 has the labels", "11]", "rank 0 has", "10]")
    for error in result.each("ranks"):
        assert error.says("ranks=2", "one of 2 ranks already")
    assert all(np.array_equal(classes, np.arange(1, 10)) for classes in result.each("classes"))
    assert all(result.each("balanced"))
    for error in result.each("held"):
        assert error.says("rank 1: ValueError: The least populated class")
    assert all(np.array_equal(classes, np.arange(300)) for classes in result.each("many"))
    assert all(len(classes) == 30 for classes in result.each("words"))
    for error in result.each("settings"):
        assert error.says("every is 10 on rank 0, and 11 on rank 1", "give all ranks the same")
    for error in result.each("others"):
        assert error.says("rank 1 has 300 labels and rank 0 others", "too many to compare")


def test_rows_are_not_copied_for_forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(200_000, 50))
    own = np.frombuffer(mmap.mmap(-1, 2 * 8))
    run = forked.run

    def measure(ranks: int, work: Callable[[], Any], watch: Callable[[], object]) -> Any:
        def measured() -> Mapping[str, Any]:
            report = work()
            pages = Path("/proc/self/smaps_rollup").read_text()
            own[malt.rank()] = 1024 * int(re.findall(r"Private_Dirty: +(\d+) kB", pages)[0])
            return report

        return run(ranks, measured, watch)

    monkeypatch.setattr(forked, "run", measure)
    malt.learn.SGDClassifier(max_iter=2, tol=None, ranks=2).fit(X, X[:, 0] > 0)
    assert 0 < own.min() <= own.max() < 0.2 * X.nbytes  # with what Python writes of its own
