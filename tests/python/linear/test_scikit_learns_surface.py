"""Parameters, attributes and errors are those of scikit-learn's classes, or listed as missing."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from jobs import run_job
from scipy import sparse
from sklearn import linear_model, svm
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression

import malt
from malt import learn

CLASSIFIERS = ["LinearSVC", "LogisticRegression", "SGDClassifier"]
REGRESSORS = ["ElasticNet", "Lasso", "LinearSVR", "Ridge", "SGDRegressor"]
SEVERAL_TARGETS = ["ElasticNet", "Lasso", "Ridge"]


def theirs(name: str) -> Any:
    return getattr(svm if name.startswith("LinearSV") else linear_model, name)


def shown(model: Any) -> dict[str, Any]:
    """The types and shapes of what fit() sets."""
    names = ["coef_", "intercept_", "n_iter_", "classes_"]
    values = {name: getattr(model, name, None) for name in names}
    # scikit-learn's Ridge has no iterations with most solvers.
    if isinstance(model, (linear_model.Ridge, malt.learn.Ridge)):
        del values["n_iter_"]
    return {
        name: (isinstance(value, np.ndarray), np.shape(value), np.asarray(value).dtype.kind)
        for name, value in values.items()
    }


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("name", [*CLASSIFIERS, *REGRESSORS])
def test_attributes_have_scikit_learns_types_and_shapes(name: str, fit_intercept: bool) -> None:
    X, y = make_classification(90, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    cases: list[Any] = [y, np.minimum(y, 1)]
    if name in SEVERAL_TARGETS:
        cases.append(np.c_[y, -2 * y, X[:, 0]])
    if name in ("ElasticNet", "Lasso"):  # Ridge's shapes depend on scikit-learn's version
        cases.append(y[:, np.newaxis])
    for targets in cases:
        made, expected = (
            kind(fit_intercept=fit_intercept).fit(X, targets.astype(float))
            for kind in (getattr(learn, name), theirs(name))
        )
        assert shown(made) == shown(expected)
        assert made.predict(X).shape == expected.predict(X).shape


@pytest.mark.parametrize("name", SEVERAL_TARGETS)
@pytest.mark.parametrize("convert", [np.asarray, sparse.csc_matrix])
def test_several_targets_are_as_many_problems(name: str, convert: Any) -> None:
    X, columns = make_regression(60, 8, n_targets=3, noise=5, random_state=0)
    X[X < 0] = 0
    kind = getattr(learn, name)
    together = kind(tol=1e-10).fit(convert(X), columns)
    for k, y in enumerate(columns.T):
        alone = kind(tol=1e-10).fit(convert(X), y)
        np.testing.assert_allclose(together.coef_[k], alone.coef_, rtol=1e-6)
        assert together.intercept_[k] == pytest.approx(alone.intercept_)
    expected = theirs(name)(tol=1e-12).fit(X, columns)
    np.testing.assert_allclose(together.predict(convert(X)), expected.predict(X), rtol=1e-4)


@pytest.mark.parametrize("kind", [malt.learn.LinearSVC, malt.learn.LogisticRegression])
def test_balanced_weights_count_a_row_by_its_weight(kind: Any) -> None:
    X, y = make_classification(80, 4, weights=[0.8], n_informative=3, n_redundant=0, random_state=1)
    times = 1 + 3 * y
    weighted = kind(class_weight="balanced", tol=1e-9).fit(X, y, sample_weight=times)
    repeated = kind(class_weight="balanced", tol=1e-9).fit(np.repeat(X, times, 0), y.repeat(times))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-4)
    plain = kind(class_weight="balanced", tol=1e-9).fit(X, y)
    assert not np.allclose(weighted.coef_, plain.coef_, rtol=1e-2)


def test_a_class_whose_rows_weigh_nothing_leaves_finite_weights() -> None:
    X, y = make_classification(90, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    model = malt.learn.LogisticRegression(class_weight="balanced", fit_intercept=False)
    model.fit(X, y, sample_weight=y != 2)
    assert np.isfinite(model.coef_).all()


def test_the_intercepts_of_several_classes_add_up_to_nothing() -> None:
    X, y = make_classification(90, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    model = malt.learn.LogisticRegression(C=0.1, tol=1e-9).fit(X + 3, y)
    expected = linear_model.LogisticRegression(C=0.1, tol=1e-9, max_iter=1000).fit(X + 3, y)
    assert model.intercept_.sum() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-3)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csc_matrix, sparse.csr_array])
@pytest.mark.parametrize("name", ["Lasso", "ElasticNet"])
def test_a_lasso_of_weighted_rows_is_that_of_repeated_rows(
    name: str, convert: Any, fit_intercept: bool, positive: bool
) -> None:
    X, y = make_regression(60, 12, noise=10, random_state=3)
    X = np.where(np.abs(X) < 0.3, 0, X + 1)
    y = y + 100
    weights = np.arange(60) % 4
    settings = {"alpha": 0.5, "fit_intercept": fit_intercept, "positive": positive, "tol": 1e-12}
    kind = getattr(learn, name)
    weighted = kind(**settings).fit(convert(X), y, sample_weight=0.7 * weights)
    repeated = kind(**settings).fit(convert(np.repeat(X, weights, 0)), y.repeat(weights))
    expected = theirs(name)(**settings, max_iter=100_000).fit(X, y, sample_weight=weights)
    for model in (weighted, repeated):
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5, atol=1e-7)
        assert model.intercept_ == pytest.approx(expected.intercept_)
    assert (weighted.coef_.min() >= 0) == positive
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-9)
    assert weighted.dual_gap_ <= 1e-12 * weighted.objective_ * 1.01


def test_ranks_of_a_job_train_on_the_same_weights_or_are_named(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        2,
        """
X, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30.0)
weights = np.ones(30) + rank * (np.arange(30) == 7)
tell(error=error_of(malt.learn.Lasso(0.1).fit, X, y, weights))
tell(start=error_of(malt.learn.SGDRegressor().fit, X, y, np.full(4, rank)))
tell(coef=malt.learn.Lasso(0.1, positive=True, tol=1e-12).fit(X, y, np.arange(30) % 3).coef_)
""",
    )
    assert result.code == 0, result.output
    X, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30.0)
    alone = malt.learn.Lasso(0.1, positive=True, tol=1e-12).fit(X, y, np.arange(30) % 3)
    for coef in result.each("coef"):
        np.testing.assert_allclose(coef, alone.coef_, rtol=1e-5, atol=1e-9)
    for name, of in (("error", "sample_weight"), ("start", "coef_init")):
        for error in result.each(name):
            assert error.says(f"the digest of {of} is", " on rank 0, and ", " on rank 1")


@pytest.mark.parametrize("name", ["SGDClassifier", "SGDRegressor"])
def test_training_begins_at_given_weights_as_scikit_learns_does(name: str) -> None:
    X, y = make_classification(100, 4, n_informative=3, n_redundant=0, n_classes=3, random_state=0)
    outputs = 3 if name == "SGDClassifier" else 1
    coef = np.arange(outputs * 4).reshape(outputs, 4) / 10
    if outputs == 1:
        coef = coef[0]
    intercept = np.linspace(-1, 1, outputs)
    settings: dict[str, Any] = {"shuffle": False, "max_iter": 2, "tol": None, "alpha": 0.01}
    made, expected = (
        kind(**settings).fit(X, y, coef_init=coef, intercept_init=intercept)
        for kind in (getattr(learn, name), theirs(name))
    )
    np.testing.assert_allclose(made.coef_, expected.coef_, rtol=1e-6)
    np.testing.assert_allclose(made.intercept_, expected.intercept_, rtol=1e-6)
    with pytest.raises(ValueError, match=r"coef_init does not match .* its shape is \(5,\)"):
        getattr(learn, name)().fit(X, y, coef_init=np.ones(5))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_sparse_weights_predict_the_same(name: str) -> None:
    X, y = make_classification(80, 6, n_informative=4, n_classes=3, random_state=0)
    model = getattr(learn, name)().fit(X, y)
    expected = model.decision_function(X)
    assert sparse.issparse(model.sparsify().coef_)
    np.testing.assert_array_equal(model.decision_function(X), expected)
    np.testing.assert_array_equal(model.densify().decision_function(X), expected)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: learn.Ridge(solver="svd"), "malt.learn.Ridge has no parameter 'solver': leave it"),
        (lambda: learn.LogisticRegression(penalty="l1"), r"learn.SGDClassifier\(penalty=...\)"),
        (lambda: learn.LinearSVC(colour=1), "'colour': it has C, class_weight, fit_intercept"),
        (lambda: learn.Lasso().fit([[1.0]], [1.0], mass=1), r"Lasso.fit\(\) .* 'mass'; it tak"),
        (lambda: learn.LatentDirichletAllocation(n_jobs=2), "`ranks` is the number of processes"),
        (lambda: learn.MatrixFactorization(factors=2), "MatrixFactorization .*n_factors"),
    ],
    ids=["solver", "penalty", "made up", "fit", "n_jobs", "factorisation"],
)  # fmt: skip
def test_unknown_parameters_are_refused_with_a_way_out(call: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        call()


def test_setting_a_parameter_of_scikit_learn_only_is_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match="Ridge has no parameter 'solver': leave it out"):
        malt.learn.Ridge().set_params(solver="svd")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [*CLASSIFIERS, *REGRESSORS])
def test_models_are_cloned_and_pickled(name: str) -> None:
    X, y = make_classification(50, 4, random_state=0)
    model = getattr(learn, name)(max_iter=50, random_state=3).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert clone(model).get_params() == model.get_params()


def test_the_page_lists_what_only_scikit_learns_classes_have() -> None:
    docs = Path(__file__).parents[3] / "docs"
    sys.path.insert(0, str(docs))
    try:
        import list_missing
    finally:
        sys.path.remove(str(docs))
    page, made = list_missing.PAGE.read_text(), list_missing.table()
    if f"scikit-learn {sklearn.__version__}:" in page:
        assert made in page, "run docs/list_missing.py"
    else:  # one of the versions besides that which pyproject.toml pins
        assert "| `Ridge` | `copy_X=`" in made
