"""The multinomial problem: its optimum, and a gap that is never below the distance from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.datasets import load_iris

import malt

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(0)


def optimum(X: Array, y: Array, costs: Array) -> float:
    """The least objective, found from the intercepts that are the best without features."""
    features, classes = X.shape[1], int(y.max()) + 1
    own = np.eye(classes)[y]

    def objective(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(features + 1, classes)
        values = X @ weights[:-1] + weights[-1]
        sums = logsumexp(values, axis=1)
        slopes = costs[:, np.newaxis] * (np.exp(values - sums[:, np.newaxis]) - own)
        found = costs @ (sums - (values * own).sum(1)) + (weights[:-1] ** 2).sum() / 2
        return found, np.r_[(X.T @ slopes + weights[:-1]).ravel(), slopes.sum(0)]

    start = np.zeros((features + 1, classes))
    start[-1] = np.log(costs @ own)
    options = {"maxiter": 20_000, "ftol": 1e-15, "gtol": 1e-9}
    return float(
        minimize(objective, start.ravel(), jac=True, options=options, method="L-BFGS-B").fun
    )


def rare(rows: int, *counts: int) -> Array:
    """Return classes, of which all but the first have so many rows."""
    return np.repeat(np.arange(1 + len(counts)), [rows - sum(counts), *counts])


PROBLEMS = {
    "two rare classes, weak features": (
        RANDOM.standard_normal((1000, 5)) / 100,
        rare(1000, 1, 1),
        1.0,
        None,
    ),
    "rarer": (RANDOM.standard_normal((20_000, 2)), rare(20_000, 1, 1), 1e-4, None),
    "no features, unlike weights": (
        np.zeros((3, 1)),
        np.arange(3),
        0.01,
        np.array([1000, 1, 0.001]),
    ),
    "iris": (*load_iris(return_X_y=True), 1.0, None),
    "iris, a slight penalty": (*load_iris(return_X_y=True), 100.0, None),
    "few rows": (RANDOM.standard_normal((8, 20)), np.arange(8) % 4, 10.0, None),
    "weights": (
        RANDOM.standard_normal((120, 6)),
        np.arange(120) % 5,
        1.0,
        10.0 ** RANDOM.uniform(-3, 3, 120),
    ),
}


def test_a_class_without_weight_has_no_part() -> None:
    X, y = load_iris(return_X_y=True)
    X = X - X.mean(0)
    weights = np.where(y == 1, 0.0, 1.0)
    model = malt.learn.LogisticRegression().fit(X, y, weights)
    assert set(model.predict(X)) == {0, 2}
    kept = y != 1
    least = optimum(X[kept], y[kept] // 2, np.ones(kept.sum()))
    assert model.dual_gap_ <= model.tol * model.objective_
    assert model.objective_ - least <= model.dual_gap_ + 1e-9 * least


@pytest.mark.parametrize("tol", [1e-4, 1e-8])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gap_is_at_least_the_distance_from_the_optimum(name: str, tol: float) -> None:
    X, y, C, weights = PROBLEMS[name]
    model = malt.learn.LogisticRegression(C=C, tol=tol).fit(X, y, weights)
    least = optimum(X, y, C * (np.ones(len(y)) if weights is None else weights))
    assert model.dual_gap_ <= tol * model.objective_
    assert model.objective_ - least <= model.dual_gap_ + 1e-9 * least


def test_a_fit_that_is_cut_short_has_a_true_gap_too() -> None:
    X, y, C, _ = PROBLEMS["two rare classes, weak features"]
    model = malt.learn.LogisticRegression(C=C, max_iter=1)
    with pytest.warns(UserWarning, match="after 1 passes the gap is"):
        model.fit(X, y)
    assert model.objective_ - optimum(X, y, np.full(len(y), C)) <= model.dual_gap_


def test_a_fit_to_other_columns_begins_anew() -> None:
    X, y = load_iris(return_X_y=True)
    model = malt.learn.LogisticRegression(warm_start=True).fit(X, y)
    assert np.array_equal(
        model.fit(X[:, :3], y).coef_, malt.learn.LogisticRegression().fit(X[:, :3], y).coef_
    )
