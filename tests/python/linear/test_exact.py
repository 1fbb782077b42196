"""Linear models that are solved to a known gap: the optimum, on any ranks and whatever happens."""

from __future__ import annotations

import functools
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import run_job
from scipy import sparse
from scipy.optimize import minimize
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_regression,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC, LinearSVR
from sklearn.utils.estimator_checks import check_estimator

import malt
from malt._linear import dual, exact_estimator
from malt._pool import forked

KINDS = [
    malt.learn.LogisticRegression,
    malt.learn.LinearSVC,
    malt.learn.LinearSVR,
    malt.learn.Ridge,
]
CLOSE = 1e-6  # of the optimum


@pytest.fixture(autouse=True)
def _as_many_ranks_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the data are."""
    monkeypatch.setattr(exact_estimator, "LEAST_VALUES", 1)


@functools.cache
def data_set(name: str) -> tuple[Any, Any]:
    """Ten small sets, of two classes each."""
    random = np.random.default_rng(0)
    if name == "text":
        X = sparse.random(400, 900, 0.02, "csr", random_state=random)
        return X, np.where(X @ random.standard_normal(900) > 0, 1, -1)
    if name == "unbalanced":
        return make_classification(500, 12, weights=[0.97], random_state=1)
    if name == "duplicate columns":
        X, y = make_classification(300, 6, random_state=2)
        return np.hstack([X, X, np.ones((300, 1))]), y
    if name == "wide":
        return make_classification(60, 300, random_state=3)
    if name == "zero rows":
        X, y = make_classification(200, 8, random_state=4)
        X[::3] = 0
        return X, y
    if name == "sorted by label":
        X, y = make_classification(400, 10, flip_y=0.2, random_state=5)
        order = np.argsort(y, kind="stable")
        return X[order], y[order]
    load = {
        "tumours": load_breast_cancer,
        "iris": load_iris,
        "wine": load_wine,
        "digits": load_digits,
    }[name]
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), (y % 2 if name == "digits" else y > 0).astype(int)


SETS = ["text", "unbalanced", "duplicate columns", "wide", "zero rows", "sorted by label"]
SETS += ["tumours", "iris", "wine", "digits"]


def objective(model: Any, X: Any, y: Any, loss: str) -> float:
    """Return the objective of two classes, by the test's own arithmetic."""
    margins = np.where(y == model.classes_[1], 1, -1) * model.decision_function(X)
    losses = {
        "log_loss": np.logaddexp(0, -margins),
        "hinge": np.maximum(0, 1 - margins),
        "squared_hinge": np.maximum(0, 1 - margins) ** 2,
    }[loss]
    return float(np.sum(model.coef_**2) / 2 + model.C * losses.sum())


def of_liblinear(X: Any, y: Any, loss: str, C: float) -> Any:
    """Without an intercept, which liblinear penalises."""
    options: dict[str, Any] = {"C": C, "fit_intercept": False, "tol": 1e-10, "max_iter": 1_000_000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the solver's name and of its iterations
        if loss == "log_loss":
            return LogisticRegression(solver="liblinear", dual=True, **options).fit(X, y)
        return LinearSVC(loss=loss, dual=True, **options).fit(X, y)


def of_malt(loss: str, **options: Any) -> Any:
    if loss == "log_loss":
        return malt.learn.LogisticRegression(**options)
    return malt.learn.LinearSVC(loss=loss, **options)


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "squared_hinge"])
@pytest.mark.parametrize("name", SETS)
def test_reaches_liblinears_objective_on_any_number_of_ranks(name: str, loss: str) -> None:
    X, y = data_set(name)
    C = 0.02
    least = objective(of_liblinear(X, y, loss, C), X, y, loss)
    for ranks in (None, 2, 8):
        options: dict[str, Any] = {"C": C, "fit_intercept": False, "ranks": ranks}
        model = of_malt(loss, tol=CLOSE / 2, max_iter=20_000, random_state=0, **options)
        found = objective(model.fit(X, y), X, y, loss)
        assert found <= least * (1 + CLOSE), ranks
        assert model.objective_ == pytest.approx(found, rel=1e-9)
        assert model.dual_gap_ <= CLOSE / 2 * model.objective_
        assert found - model.dual_gap_ <= least * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [None, 3])
@pytest.mark.parametrize("name", ["unbalanced", "sorted by label", "tumours", "duplicate columns"])
def test_the_intercept_is_not_penalised(name: str, ranks: int | None) -> None:
    X, y = data_set(name)
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=100_000).fit(X, y)
    ours = malt.learn.LogisticRegression(C=0.5, tol=1e-9, ranks=ranks).fit(X, y)
    assert objective(ours, X, y, "log_loss") <= objective(theirs, X, y, "log_loss") * (1 + CLOSE)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-3)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("ranks", [None, 3])
def test_regressions_reach_scikit_learns(ranks: int | None) -> None:
    X, y = load_diabetes(return_X_y=True)
    theirs = Ridge(alpha=0.3).fit(X, y)
    ours = malt.learn.Ridge(alpha=0.3, tol=1e-12, ranks=ranks).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-6)
    errors = y - theirs.predict(X)
    assert ours.objective_ == pytest.approx(errors @ errors + 0.3 * theirs.coef_ @ theirs.coef_)
    X, y = make_regression(300, 8, noise=5, random_state=0)
    for loss in ("epsilon_insensitive", "squared_epsilon_insensitive"):
        svr = LinearSVR(
            loss=loss, C=0.1, epsilon=0.5, fit_intercept=False, tol=1e-9, max_iter=1_000_000
        ).fit(X, y)
        errors = np.maximum(0, np.abs(y - svr.predict(X)) - 0.5)
        sums = errors.sum() if loss == "epsilon_insensitive" else (errors**2).sum()
        least = svr.coef_ @ svr.coef_ / 2 + 0.1 * sums
        ours = malt.learn.LinearSVR(
            loss=loss, C=0.1, epsilon=0.5, fit_intercept=False, tol=CLOSE / 2, ranks=ranks
        ).fit(X, y)
        assert ours.objective_ <= least * (1 + CLOSE)


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("intercept", [True, False])
def test_multinomial_regression_reaches_scikit_learns(intercept: bool, ranks: int | None) -> None:
    X, y = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    weights = np.random.default_rng(0).integers(1, 4, len(y))
    theirs = LogisticRegression(C=2, fit_intercept=intercept, tol=1e-10, max_iter=10_000)
    theirs.fit(X, y, weights)
    ours = malt.learn.LogisticRegression(C=2, fit_intercept=intercept, tol=1e-9, ranks=ranks)
    ours.fit(X, y, weights)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)
    shares = theirs.predict_proba(X)[np.arange(len(y)), y]
    least = np.sum(theirs.coef_**2) / 2 - 2 * weights @ np.log(shares)
    assert ours.objective_ <= least * (1 + CLOSE)
    assert ours.dual_gap_ <= 1e-9 * ours.objective_


@pytest.mark.parametrize("ranks", [None, 2, 4])
def test_each_class_against_the_rest_is_solved_alike_on_any_ranks(ranks: int | None) -> None:
    X, y = load_iris(return_X_y=True)
    model = malt.learn.LinearSVC(tol=1e-8, ranks=ranks, class_weight={0: 1, 1: 2, 2: 0.5}).fit(X, y)
    for k, factor in enumerate((1, 2, 0.5)):
        weights = np.where(y == k, factor, 1.0)
        alone = malt.learn.LinearSVC(tol=1e-8).fit(X, y == k, weights)
        np.testing.assert_allclose(model.coef_[k], alone.coef_[0], atol=1e-3)
    outputs = set(model.history_["output"])
    assert outputs == {0, 1, 2}


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_classes_of_much_data_are_solved_together(loss: str, ranks: int | None) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(40_000, 15)).astype(np.float32)
    assert X.nbytes > dual._CACHE  # or they are solved one after the other
    y = np.argmax(X[:, :4] + random.normal(size=(len(X), 4)), axis=1)
    make = functools.partial(malt.learn.LinearSVC, loss=loss, C=0.01, tol=1e-5, random_state=0)
    model = make(ranks=ranks, warm_start=True).fit(X, y)
    for k in range(4):
        alone = make().fit(X, y == k)
        np.testing.assert_allclose(model.coef_[k], alone.coef_[0], atol=5e-3)
    before = model.n_iter_
    assert model.fit(X, y).n_iter_ < before


@pytest.mark.parametrize("C", [1e-8, 1e-3, 1e3, 1e8])
@pytest.mark.parametrize("loss", ["log_loss", "hinge", "squared_hinge"])
def test_any_c_ends_at_the_optimum(loss: str, C: float) -> None:
    X, y = data_set("tumours")  # separable
    model = of_malt(loss, C=C, random_state=0).fit(X, y)  # a warning is an error here
    assert model.objective_ == pytest.approx(objective(model, X, y, loss), rel=1e-6)
    assert model.dual_gap_ <= model.tol * model.objective_


@pytest.mark.parametrize("ranks", [None, 3])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss", "epsilon", "squared"])
def test_newtons_method_ends_what_the_ascent_begins(loss: str, ranks: int | None) -> None:
    """Many rows, few features and a large C: the ascent alone would take thousands of passes."""
    random = np.random.default_rng(0)
    X = random.standard_normal((2000, 12))
    y = X @ random.standard_normal(12) + 3 * random.standard_normal(2000) + 1
    weights = np.where(np.arange(2000) % 4, 1.0, 0.0)
    options: dict[str, Any] = {"C": 300.0, "tol": 1e-7, "ranks": ranks, "random_state": 0}
    for convert in (np.asarray, sparse.csr_array):
        if loss == "epsilon":
            model = malt.learn.LinearSVR(epsilon=0.1, **options)
        elif loss == "squared":
            model = malt.learn.LinearSVR(loss="squared_epsilon_insensitive", epsilon=0.1, **options)
        else:
            model = of_malt(loss, **options)
            y = np.sign(y)
        model.fit(convert(X), y, weights)
        assert model.dual_gap_ <= 1e-7 * model.objective_
        assert model.n_iter_ < 250
        kept = weights > 0
        if loss not in ("epsilon", "squared"):
            found = objective(model, X[kept], y[kept], loss)
            assert found == pytest.approx(model.objective_, rel=1e-9)


def test_passes_that_do_not_suffice_are_a_warning() -> None:
    X, y = data_set("tumours")
    for model in (
        malt.learn.LogisticRegression(max_iter=2, tol=1e-9, random_state=0),
        malt.learn.LinearSVR(
            max_iter=34, tol=1e-9, random_state=0
        ),  # ends in the interior point method
        malt.learn.LinearSVC(C=1e8, max_iter=3, tol=1e-9, random_state=0),
    ):
        with pytest.warns(ConvergenceWarning) as seen:
            model.fit(X, y)
        share = f"{model.dual_gap_ / model.objective_:.1e}"
        text = str(seen[0].message)
        assert f"the gap is {share} of the objective; tol asks for 1e-09: raise max_iter" in text
        assert seen[0].filename == __file__


def test_separable_classes_have_an_optimum_because_of_the_penalty() -> None:
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    y = [0, 0, 1, 1]
    model = malt.learn.LogisticRegression(C=1e4, tol=1e-10).fit(X, y)
    least = minimize(
        lambda w: w @ w / 2 + 1e4 * np.logaddexp(0, -np.array([-1, -1, 1, 1]) * (X @ w)).sum(), [1]
    )
    assert model.coef_[0, 0] == pytest.approx(least.x[0], rel=1e-4)


def test_weights_of_zero_are_as_good_as_missing_rows() -> None:
    X, y = data_set("tumours")
    weights = (np.arange(len(y)) % 2).astype(float)
    for kind in KINDS:
        options = {"loss": "squared_epsilon_insensitive"} if kind is malt.learn.LinearSVR else {}
        part = kind(tol=1e-10, max_iter=20_000, **options).fit(X[1::2], y[1::2])
        whole = kind(tol=1e-10, max_iter=20_000, **options).fit(X, y, weights)
        np.testing.assert_allclose(whole.coef_, part.coef_, atol=2e-4)


def test_weights_are_float64_where_float32_is_too_coarse() -> None:
    X, y = data_set("tumours")
    X = X.astype(np.float32)
    for tol, kind in ((1e-4, np.float32), (1e-9, np.float64)):
        model = malt.learn.LinearSVC(loss="hinge", tol=tol, random_state=0).fit(X, y)
        assert model.coef_.dtype == kind
        assert model.dual_gap_ <= tol * model.objective_
        assert model.score(X, y) > 0.97


@pytest.mark.parametrize("shape", [(300, 500), (50, 100), (40, 64), (64, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_ridge_is_right_at_any_shape(shape: tuple[int, int], dtype: Any, convert: Any) -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal(shape).astype(dtype)
    y = X @ random.standard_normal(shape[1]) + 5
    model = malt.learn.Ridge().fit(convert(X), y)
    np.testing.assert_allclose(model.coef_, Ridge().fit(X.astype(float), y).coef_, atol=1e-3)


def test_targets_that_are_all_alike_need_no_weights() -> None:
    X = np.random.default_rng(0).standard_normal((50, 5))
    for model in (malt.learn.Ridge(), malt.learn.LinearSVR(), malt.learn.LinearSVR(epsilon=0.1)):
        model.fit(X, np.full(50, 5.0))
        assert np.abs(model.coef_).max() < 1e-9
        assert np.max(model.n_iter_) < 100


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "squared_hinge"])
def test_columns_far_from_0_are_no_obstacle(loss: str) -> None:
    X, y = make_classification(120, 6, n_informative=4, random_state=0)
    near, far = (of_malt(loss, tol=1e-6).fit(X + far, y) for far in (0, 1e7))
    assert far.objective_ == pytest.approx(near.objective_, rel=1e-4)


def test_a_warm_start_goes_on_and_follows_a_path_of_cs() -> None:
    X, y = data_set("digits")
    model = malt.learn.LogisticRegression(C=0.1, warm_start=True, tol=1e-6, random_state=0).fit(
        X, y
    )
    first = model.n_iter_
    again = model.fit(X, y).n_iter_
    assert again < first / 2
    passes = 0.0
    for C in (0.12, 0.15, 0.2):
        passes += model.set_params(C=C).fit(X, y).n_iter_
        cold = malt.learn.LogisticRegression(C=C, tol=1e-6, random_state=0).fit(X, y)
        assert model.objective_ == pytest.approx(cold.objective_, rel=2e-6)
    assert passes < 3 * cold.n_iter_
    forked = model.set_params(ranks=3).fit(X, y)
    assert forked.objective_ == pytest.approx(cold.objective_, rel=2e-6)
    other = model.fit(X[:100], y[:100])  # other rows: it starts from zeros
    assert other.dual_gap_ <= other.tol * other.objective_


def test_the_history_and_the_lines_show_each_measured_gap(
    capfd: pytest.CaptureFixture[str],
) -> None:
    X, y = data_set("tumours")
    model = malt.learn.LinearSVC(loss="hinge", verbose=True, random_state=0).fit(X, y)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(model.history_)
    last = model.history_[-1]
    assert lines[-1].startswith(f"LinearSVC: {last['passes']:.1f} passes, objective ")
    assert model.n_iter_ == np.ceil(last["passes"])
    assert (last["objective"], last["gap"]) == (model.objective_, model.dual_gap_)


def test_no_more_ranks_are_started_than_data_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    run = forked.run
    monkeypatch.setattr(
        forked, "run", lambda ranks, work: (started.append(ranks), run(ranks, work))[1]
    )
    X, y = data_set("digits")  # 1797 x 64
    for least, expected in ((200_000, []), (50_000, [2]), (20_000, [4])):
        monkeypatch.setattr(exact_estimator, "LEAST_VALUES", least)
        started.clear()
        model = malt.learn.LinearSVC(ranks=4, tol=1e-8, random_state=0).fit(X, y)
        assert started == expected
        assert model.dual_gap_ <= 1e-8 * model.objective_


@pytest.mark.parametrize("kind", KINDS)
def test_scikit_learns_checks_pass(kind: Any) -> None:
    # Weights and repeated rows give the same optimum, but the test wants eight digits of it.
    why = "takes a gap of 1e-16 of the objective"
    equivalence = "check_sample_weight_equivalence_on_"
    expected = dict.fromkeys([f"{equivalence}dense_data", f"{equivalence}sparse_data"], why)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = check_estimator(kind(), expected_failed_checks=expected, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 50


@pytest.mark.parametrize("kind", [sparse.csr_matrix, np.asarray])
@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_infinite_and_nan_values_are_found_in_any_row(
    kind: Any, ranks: int | None, value: float
) -> None:
    """The ranks look for it, each in its own rows."""
    X, y = make_classification(300, 8, random_state=1)
    for row in (3, 296):
        bad = X.copy()
        bad[row, 5] = value
        with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
            malt.learn.LinearSVC(loss="hinge", ranks=ranks).fit(kind(bad), y)
    X[296, 5] = 1e200
    with pytest.raises(malt.ConfigError, match=r"\|x\|\^2 of row 296 is inf"):
        malt.learn.LinearSVC(loss="hinge", ranks=ranks).fit(kind(X), y)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_columns_out_of_order_are_found_by_any_rank(loss: str) -> None:
    X = sparse.random(300, 50, 0.1, "csr", random_state=np.random.default_rng(0))
    X.sort_indices()
    X.has_canonical_format = True  # it is, until here
    at = X.indptr[280]
    X.indices[at : at + 2] = X.indices[at : at + 2][::-1]
    y = np.where(np.arange(300) % 2, 1, -1)
    with pytest.raises(malt.ConfigError, match="row 280 of the CSR matrix has column"):
        malt.learn.LinearSVC(loss=loss, ranks=2).fit(X, y)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: malt.learn.LogisticRegression(C=0),
            "C is 0; it must be a number at least 1e-50",
        ),
        (
            lambda: malt.learn.LogisticRegression(C=np.inf),
            "C is inf; it must be a number at least 1e-50",
        ),
        (lambda: malt.learn.LinearSVC(loss="log"), "loss is 'log'"),
        (
            lambda: malt.learn.Ridge(alpha=-1),
            "alpha is -1; it must be a number at least 1e-50",
        ),
        (lambda: malt.learn.LinearSVR(epsilon=-0.1), "epsilon is -0.1"),
        (lambda: malt.learn.Ridge(tol=-1), "tol is -1"),
        (lambda: malt.learn.Ridge(max_iter=0), "max_iter is 0"),
    ],
)
def test_bad_settings_are_named(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make().fit([[0.0], [1.0]], [0, 1])


OF_A_JOB = """
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
X, y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)
order = np.argsort(y, kind="stable")
X, y, weights = X[order], y[order], np.linspace(0.5, 2, len(y))
ends = [0, 40, 200, 380, len(y)]
KINDS = [
    (malt.learn.LogisticRegression, {}),
    (malt.learn.LinearSVC, {"loss": "hinge"}),
    (malt.learn.LinearSVC, {}),
    (malt.learn.LinearSVR, {"epsilon": 0.1, "loss": "squared_epsilon_insensitive"}),
    (malt.learn.Ridge, {}),
]
"""


def test_ranks_of_a_job_solve_over_unequal_and_unlike_rows(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        4,
        OF_A_JOB
        + """
part = slice(ends[rank], ends[rank + 1])
for k, (kind, options) in enumerate(KINDS):
    model = kind(tol=5e-7, max_iter=20_000, random_state=0, **options)
    model.fit(X[part], y[part], weights[part])
    tell(**{f"of {k}": (model.objective_, model.dual_gap_, model.coef_, model.intercept_)})
""",
    )
    assert result.code == 0, result.output
    given: dict[str, Any] = {"malt": malt, "np": np}
    exec(OF_A_JOB, given)
    for k, (kind, options) in enumerate(given["KINDS"]):
        alone = kind(tol=1e-9, max_iter=20_000, **options)
        alone.fit(given["X"], given["y"], given["weights"])
        told = result.each(f"of {k}")
        found, gap, coef, intercept = told[0]
        for one in told:  # the same bits on all ranks
            assert one[:2] == (found, gap)
            assert np.array_equal(one[2], coef)
            assert np.array_equal(one[3], intercept)
        assert found <= alone.objective_ * (1 + CLOSE), kind
        assert gap <= 5e-7 * found


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param("softmax", marks=pytest.mark.long),
        "dual",
        pytest.param("newton", marks=pytest.mark.long),
        "interior",
    ],
)
def test_the_ranks_that_are_left_solve_over_their_own_rows(tmp_path: Path, solver: str) -> None:
    C = 100.0 if solver == "interior" else 1.0
    result = run_job(
        tmp_path,
        3,
        OF_A_JOB
        + f"""
from malt._linear import dual, interior, newton, softmax
if {solver!r} == "softmax":
    y = y + (np.arange(len(y)) % 5 == 0)  # three classes
which, name = {{
    "softmax": (softmax._Search, "_visit"),
    "dual": (dual._Ascent, "_sweep_with_others"),
    "newton": (newton.Newton, "_at"),
    "interior": (interior.Interior, "_at"),
}}[{solver!r}]
if {solver!r} == "newton":
    dual._FEW_COLUMNS = X.shape[1] + 1
make = malt.learn.LogisticRegression
if {solver!r} == "interior":
    make = lambda **options: malt.learn.LinearSVC(loss="hinge", **options)
act, calls = getattr(which, name), 0

def act_or_die(self, *given):
    global calls
    calls += 1
    if rank == 2 and calls == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return act(self, *given)

setattr(which, name, act_or_die)
model = make(C={C}, tol=1e-6, random_state=0).fit(X[rank::3], y[rank::3])
tell(found=(model.objective_, model.dual_gap_, model.coef_), calls=calls)
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
    )
    given: dict[str, Any] = {"malt": malt, "np": np}
    exec(OF_A_JOB, given)
    X, y = given["X"], given["y"]
    if solver == "softmax":
        y = y + (np.arange(len(y)) % 5 == 0)
    left = np.arange(len(y)) % 3 < 2
    alone = malt.learn.LogisticRegression(tol=1e-8)
    if solver == "interior":
        alone = malt.learn.LinearSVC(loss="hinge", C=C, tol=1e-8)
    alone.fit(X[left], y[left])
    found = [result.told[rank]["found"] for rank in (0, 1)]
    for objective_, gap, coef in found:
        assert objective_ <= alone.objective_ * (1 + 2e-6)
        assert gap <= 1e-6 * objective_
        assert np.array_equal(coef, found[0][2])
    assert result.told[0]["calls"] > 4


@pytest.mark.parametrize("seed", range(4))
def test_weights_of_very_unlike_size_take_no_more_passes(seed: int) -> None:
    """Along a step of Newton's method slopes are then of very unlike sizes."""
    random = np.random.default_rng(seed)
    X, y = random.standard_normal((150, 60)), random.integers(0, 2, 150)
    weights = random.choice([1, 2, 0.5, 1e-3, 1e3], 150)
    model = malt.learn.LogisticRegression(C=1e6, max_iter=150).fit(X, y, weights)
    assert model.dual_gap_ <= model.tol * model.objective_
