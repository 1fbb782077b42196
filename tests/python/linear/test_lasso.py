"""The lasso and the elastic net: the optimum by a known gap, on any ranks and any schedule."""

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
from sklearn import linear_model
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_estimator

import malt
from malt._core_import import checksum
from malt._linear import lasso

CLOSE = 1e-6  # of the objective


@pytest.fixture(autouse=True)
def _as_many_ranks_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the data are."""
    monkeypatch.setattr(lasso, "LEAST_VALUES", 1)


@functools.cache
def data_set(name: str) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    if name == "diabetes":
        return load_diabetes(return_X_y=True)
    if name == "sparse":
        X = sparse.random(300, 2000, 0.02, "csr", random_state=random)
        return X, X[:, ::100] @ random.standard_normal(20) + 3 + random.normal(size=300) / 20
    X = random.standard_normal((100, 400))
    if name == "correlated":
        for j in range(1, 400):
            X[:, j] += 0.95 * X[:, j - 1]
    X[:, 7] = 4.0
    if name == "duplicates":
        X[:, 200:] = X[:, :200]
    X += random.standard_normal(400)  # means
    return X, X[:, ::40] @ random.standard_normal(10) + random.standard_normal(100)


SETS = ["diabetes", "sparse", "plain", "correlated", "duplicates"]


def strength(X: Any, y: Any, share: float) -> float:
    """A share of the least alpha at which all weights of a lasso are 0."""
    return share * float(np.abs(X.T @ (y - y.mean())).max() / len(y))


def objective(model: Any, X: Any, y: Any, alpha: float, ratio: float) -> float:
    """By the test's own arithmetic."""
    errors = y - model.predict(X)
    w = model.coef_
    return float(
        errors @ errors / (2 * len(y))
        + alpha * (ratio * np.abs(w).sum() + (1 - ratio) / 2 * (w @ w))
    )


@pytest.mark.parametrize("ratio", [1.0, 0.5])
@pytest.mark.parametrize("name", SETS)
def test_reaches_scikit_learns_objective_on_any_ranks_and_schedule(name: str, ratio: float) -> None:
    X, y = data_set(name)
    alpha = strength(X, y, 0.05)
    theirs = linear_model.ElasticNet(alpha, l1_ratio=ratio, tol=1e-10, max_iter=100_000).fit(X, y)
    least = objective(theirs, X, y, alpha, ratio)
    for options in ({}, {"ranks": 2}, {"ranks": 5}, {"schedule": "random"}):
        if ratio == 1:
            model: Any = malt.learn.Lasso(alpha, tol=CLOSE / 2, random_state=0, **options)
        else:
            model = malt.learn.ElasticNet(
                alpha, l1_ratio=ratio, tol=CLOSE / 2, random_state=0, **options
            )
        found = objective(model.fit(X, y), X, y, alpha, ratio)
        assert found <= least * (1 + CLOSE), options
        assert model.objective_ == pytest.approx(found, rel=1e-9)
        assert model.dual_gap_ <= CLOSE / 2 * model.objective_
        assert found - model.dual_gap_ <= least * (1 + 1e-9)
        last = model.history_[-1]
        assert (last["objective"], last["gap"]) == (model.objective_, model.dual_gap_)
        assert np.ceil(last["passes"]) == model.n_iter_


def test_coefficients_and_intercept_are_scikit_learns() -> None:
    X, y = load_diabetes(return_X_y=True)
    for intercept in (True, False):
        theirs = linear_model.Lasso(0.3, fit_intercept=intercept, tol=1e-12).fit(X, y)
        ours = malt.learn.Lasso(0.3, fit_intercept=intercept, tol=1e-12).fit(X, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
        assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-9)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-6)


@pytest.mark.parametrize("name", ["sparse", "plain", "correlated"])
def test_the_dynamic_schedule_takes_a_third_of_the_random_ones_steps_at_most(name: str) -> None:
    X, y = data_set(name)
    alpha = strength(X, y, 0.05)
    dynamic = malt.learn.Lasso(alpha).fit(X, y)
    random = malt.learn.Lasso(alpha, schedule="random", random_state=0).fit(X, y)
    assert 3 * dynamic.n_updates_ <= random.n_updates_


def test_weights_are_zero_from_the_largest_alpha_on() -> None:
    X, y = data_set("plain")
    model = malt.learn.Lasso(strength(X, y, 1.001)).fit(X, y)
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(y.mean())
    assert malt.learn.Lasso(strength(X, y, 0.99)).fit(X, y).coef_.any()


def test_constant_columns_get_no_weight() -> None:
    X = data_set("plain")[0].copy()
    X[:, 3], X[:, 5] = 1e6, 0.0
    y = X[:, 0] + 5
    for convert in (np.asarray, sparse.csr_array):
        model = malt.learn.Lasso(1e-3).fit(convert(X), y)
        assert model.coef_[3] == model.coef_[5] == 0
        assert model.coef_[0] == pytest.approx(1, abs=0.05)
    only = malt.learn.Lasso(0.1).fit(np.ones((10, 2)), np.arange(10.0))
    assert not only.coef_.any()
    assert only.intercept_ == pytest.approx(4.5)
    level = malt.learn.Lasso(0.1).fit(X, np.full(100, 3.0))
    assert not level.coef_.any()
    assert level.intercept_ == pytest.approx(3)


def test_a_warm_start_goes_on_from_the_last_weights() -> None:
    X, y = data_set("correlated")
    alpha = strength(X, y, 0.02)
    model = malt.learn.Lasso(alpha, warm_start=True).fit(X, y)
    first = model.n_updates_
    assert model.fit(X, y).n_updates_ <= first / 10
    model.set_params(alpha=0.9 * alpha, ranks=3).fit(X, y)
    cold = malt.learn.Lasso(0.9 * alpha).fit(X, y)
    assert model.objective_ == pytest.approx(cold.objective_, rel=2e-6)
    model.fit(X[:, :100], y)  # other columns: it starts from zeros
    assert model.coef_.shape == (100,)


def test_float32_is_solved_in_float32() -> None:
    X, y = data_set("plain")
    alpha = strength(X, y, 0.1)
    model = malt.learn.Lasso(alpha, tol=1e-4).fit(X.astype(np.float32), y.astype(np.float32))
    assert model.coef_.dtype == np.float32
    exact = malt.learn.Lasso(alpha).fit(X, y)
    assert model.objective_ == pytest.approx(exact.objective_, rel=1e-3)
    with pytest.warns(ConvergenceWarning, match="float32 allows no less; give X as float64"):
        malt.learn.Lasso(alpha, tol=1e-12).fit(X.astype(np.float32), y)
    with pytest.warns(ConvergenceWarning, match="float64 allows .* raise alpha, or raise tol"):
        malt.learn.Lasso(alpha, tol=0).fit(X, y)


def test_passes_that_do_not_suffice_are_a_warning() -> None:
    X, y = data_set("correlated")
    with pytest.warns(ConvergenceWarning, match=r"tol asks for 1e-06: raise max_iter") as seen:
        malt.learn.Lasso(strength(X, y, 0.01), max_iter=2).fit(X, y)
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0}, "alpha is 0; it must be a number above 0"),
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha": float("inf")}, "alpha is inf"),
        ({"tol": -1}, "tol is -1"),
        ({"max_iter": 0}, "max_iter is 0; it must be a whole number at least 1"),
        ({"schedule": "cyclic"}, "schedule is 'cyclic'; it must be one of 'dynamic', 'random'"),
        ({"ranks": 0}, "ranks is 0"),
        ({"l1_ratio": 1.5}, "l1_ratio is 1.5; it must be a number at least 0 and at most 1"),
    ],
)
def test_parameters_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, malt.ConfigError), match=message):
        malt.learn.ElasticNet(**options).fit(np.eye(3), [1, 2, 3])


def test_data_that_cannot_be_used_are_refused() -> None:
    X = np.eye(4)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        malt.learn.Lasso().fit(np.where(X > 0, np.nan, X), np.arange(4))
    with pytest.raises(ValueError, match="Input y contains"):
        malt.learn.Lasso().fit(X, [1, 2, np.inf, 4])
    X[2, 1] = 1e200
    with pytest.raises(
        malt.ConfigError,
        match=r"\|x\|\^2 of column 1 is inf; it must be finite; .*"
        "scale columns down",
    ):
        malt.learn.Lasso().fit(X, np.arange(4))


@pytest.mark.parametrize(("dtype", "unit"), [(np.float64, 1e200), (np.float32, 1e20)])
@pytest.mark.parametrize("intercept", [True, False])
def test_targets_and_penalties_that_overflow_are_refused(
    dtype: Any, unit: float, intercept: bool
) -> None:
    X, y = np.eye(4, dtype=dtype), np.arange(4.0)
    settings: dict[str, Any] = {"fit_intercept": intercept}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            malt.ConfigError, match=r"\|y\|\^2 of the targets is .* scale the targets"
        ):
            malt.learn.Lasso(unit / 10, **settings).fit(X, unit * y)
        with pytest.raises(malt.ConfigError, match=r"alpha times the rows is inf.*lower alpha"):
            malt.learn.Lasso(1e308, **settings).fit(X, y)
        malt.learn.Lasso(unit**0.4 / 10, **settings).fit(X, unit**0.4 * y)


@pytest.mark.parametrize("kind", [malt.learn.Lasso, malt.learn.ElasticNet])
def test_chunks_and_missing_targets_are_refused(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "x.svm").write_text("1 1:2\n2 2:1\n")
    with pytest.raises(
        ValueError, match=r"X is malt\.data\.Chunks.*load them all .*or take malt\.learn\.Ridge"
    ):
        kind().fit(malt.load_data(tmp_path / "x.svm", chunk_rows=1))
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        kind().fit(np.eye(4))


@pytest.mark.parametrize("kind", [malt.learn.Lasso, malt.learn.ElasticNet])
def test_scikit_learns_checks_pass(kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = check_estimator(kind(), on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 40


OF_A_JOB = """
random = np.random.default_rng(0)
X = random.standard_normal((80, 600))
X[:, 1:] += 0.8 * X[:, :-1]
y = X[:, ::50].sum(1) + random.standard_normal(80)
"""


def of_a_job() -> tuple[Any, Any]:
    given: dict[str, Any] = {"np": np}
    exec(OF_A_JOB, given)
    return given["X"], given["y"]


def test_ranks_of_a_job_divide_the_columns(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        OF_A_JOB
        + """
from scipy import sparse

model = malt.learn.Lasso(0.05).fit(X, y)
tell(found=(model.objective_, model.dual_gap_, model.coef_, model.intercept_))
tell(differ=error_of(malt.learn.Lasso(0.05).fit, X, y + rank))
tell(ranks=error_of(malt.learn.Lasso(0.05, ranks=2).fit, X, y))
columns = sparse.csc_array(X)
if rank == 1:
    columns.indices = columns.indices.astype(np.int64)
    columns.indptr = columns.indptr.astype(np.int64)
tell(sparse=malt.learn.Lasso(0.05).fit(columns, y).coef_)
warm = malt.learn.Lasso(0.05, warm_start=True)
if rank > 0:
    warm.coef_ = np.zeros(600)
tell(start=error_of(warm.fit, X, y))
""",
    )
    assert result.code == 0, result.output
    X, y = of_a_job()
    alone = malt.learn.Lasso(0.05, tol=1e-9).fit(X, y)
    told = result.each("found")
    for found, gap, coef, intercept in told:  # the same bits on all ranks
        assert np.array_equal(coef, told[0][2])
        assert (found, gap, intercept) == (told[0][0], told[0][1], told[0][3])
        assert found <= alone.objective_ * (1 + CLOSE)
        assert gap <= CLOSE * found
    for error in result.each("differ"):
        assert error.says("Lasso.fit(): the digest of X and y is", "so give each rank all rows")
    for coef in result.each("sparse"):  # whatever the type of a rank's indices
        np.testing.assert_allclose(coef, told[0][2], atol=1e-3)
    for error in result.each("start"):
        assert error.says(
            "the digest of coef_ of the last fit", " on rank 0, and ", " on ranks 1, 2"
        )
    for error in result.each("ranks"):
        assert error.says("ranks=2 in a process that is a rank already: leave `ranks` out")


def test_the_digest_of_arrays_reads_all_their_bytes() -> None:
    values = np.arange(15, dtype=np.int32).reshape(3, 5)  # no multiple of 8 bytes
    digests = {checksum(values)}
    for place in np.ndindex(values.shape):
        values[place] += 1
        digests.add(checksum(values))
    assert len(digests) == 1 + values.size
    with pytest.raises(malt.ConfigError, match="not contiguous"):
        checksum(values[:, 1:])


def test_the_ranks_that_are_left_divide_a_dead_ranks_columns(tmp_path: Path) -> None:
    result = run_job(
        tmp_path,
        3,
        OF_A_JOB
        + """
from malt._linear import descent
act, calls = descent._Descent._sweep, 0

def act_or_die(self):
    global calls
    calls += 1
    if rank == 1 and calls == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    act(self)

descent._Descent._sweep = act_or_die
model = malt.learn.Lasso(0.05).fit(X, y)
tell(found=(model.objective_, model.dual_gap_, model.coef_), calls=calls)
""",
        "--keep-going",
        code=128 + signal.SIGKILL,
    )
    X, y = of_a_job()
    alone = malt.learn.Lasso(0.05, tol=1e-9).fit(X, y)
    for rank in (0, 2):
        found, gap, coef = result.told[rank]["found"]
        assert found <= alone.objective_ * (1 + CLOSE)
        assert gap <= CLOSE * found
        assert np.array_equal(coef, result.told[0]["found"][2])
        assert result.told[rank]["calls"] > 4
