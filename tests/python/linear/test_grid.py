"""Fits over shapes, scales, weights, Cs, types and ranks, against bounds of the test's own.

MALT_FITS=3000 pytest tests/python/linear/test_grid.py    so many fits
MALT_FIT=1234 pytest tests/python/linear/test_grid.py     one of them
"""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp, xlogy
from sklearn.exceptions import ConvergenceWarning

import malt
from malt._linear import exact_estimator

FIT = os.environ.get("MALT_FIT")
FITS = int(os.environ.get("MALT_FITS", 120))
PARTS = 6  # tests, so that several processes share them
ROUNDING = 1e-9  # of the objective: what the bounds themselves may be off
EPS = 16 * np.finfo(float).eps
LOSSES = (
    "log_loss",
    "softmax",
    "hinge",
    "squared_hinge",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
    "squared_error",
    "lasso",
    "elastic_net",
)
CLASSES = ("log_loss", "softmax", "hinge", "squared_hinge")


@pytest.fixture(autouse=True)
def _as_many_ranks_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the data are."""
    monkeypatch.setattr(exact_estimator, "LEAST_VALUES", 1)


class Case(NamedTuple):
    loss: str
    X: Any  # as it is given
    y: Any
    weights: Any
    C: float  # for the lasso and the elastic net: 1 / alpha
    epsilon: float
    intercept: bool
    ranks: int | None

    @property
    def costs(self) -> Any:
        return self.C * (np.ones(len(self.y)) if self.weights is None else self.weights)

    def __repr__(self) -> str:
        kind = "sparse" if sparse.issparse(self.X) else "dense"
        return (
            f"{self.loss}, {self.X.shape[0]} x {self.X.shape[1]} {kind} {self.X.dtype}, "
            f"C={self.C:.2g}, epsilon={self.epsilon:g}, intercept={self.intercept}, "
            f"weighted={self.weights is not None}, ranks={self.ranks}"
        )


def case_of(number: int) -> Case:
    """The case of this number, which is random but always the same."""
    random = np.random.default_rng(number)
    loss = LOSSES[number % len(LOSSES)]
    rows, columns = int(random.choice([6, 15, 50, 120])), int(random.choice([1, 4, 12, 40, 150]))
    X = random.standard_normal((rows, columns))
    kind = random.integers(6)
    if kind == 1:
        X *= 10.0 ** random.uniform(-3, 3, columns)
    elif kind == 2:
        X += 10.0 ** random.uniform(0, 4) * random.standard_normal(columns)
    elif kind == 3:  # collinear
        X[:, columns // 2 :] = X[:, : columns - columns // 2]
    elif kind == 4:
        X[:, -1] = random.choice([0.0, 1.0, 1e3])
        X[: rows // 3] = 0
    elif kind == 5:  # much correlated
        X = X * 0.1 + 3 * random.standard_normal((rows, 1))
    X *= 10.0 ** random.uniform(-1, 1)
    X[random.random(X.shape) < random.choice([0.0, 0.0, 0.8])] = 0
    X = X.astype(random.choice([np.float32, np.float64]))
    scores = X @ random.standard_normal(columns) / max(1e-9, np.linalg.norm(X) / np.sqrt(rows))
    scores += random.choice([0.0, 0.3, 3.0]) * random.standard_normal(rows)
    if loss in CLASSES:
        count = int(random.integers(3, 6)) if loss == "softmax" else 2
        y = np.digitize(scores, np.quantile(scores, np.arange(1, count) / count))
        y[:count] = np.arange(count)
    else:
        y = (scores * 10.0 ** random.uniform(-2, 3) + random.choice([0, 100])).astype(X.dtype)
    weights = None
    if random.random() < 0.3:
        weights = random.choice([0.5, 1.0, 7.0], rows)
        weights[random.integers(rows)] = 0
        if loss in CLASSES:
            weights[:count] = 1
    return Case(
        loss,
        sparse.csr_array(X) if random.random() < 0.4 else X,
        y,
        weights,
        10.0 ** random.uniform(-6, 6),
        float(random.choice([0.0, 0.1, 1.0])),
        bool(random.random() < 0.7),
        random.choice([None, None, None, 2, 3]),
    )


def model_of(case: Case) -> Any:
    options: dict[str, Any] = {"fit_intercept": case.intercept, "ranks": case.ranks}
    options["warm_start"] = True  # it keeps the alphas
    if case.loss == "squared_error":
        return malt.learn.Ridge(1 / case.C, **options)
    if case.loss == "lasso":
        return malt.learn.Lasso(1 / case.C, **options)
    if case.loss == "elastic_net":
        return malt.learn.ElasticNet(1 / case.C, l1_ratio=0.3, **options)
    options["C"] = case.C
    if case.loss in ("log_loss", "softmax"):
        return malt.learn.LogisticRegression(**options)
    if case.loss in ("hinge", "squared_hinge"):
        return malt.learn.LinearSVC(loss=case.loss, **options)
    return malt.learn.LinearSVR(loss=case.loss, epsilon=case.epsilon, **options)


def over_own(case: Case, decisions: Any) -> Any:
    """The classes' decisions less that of the row's own class, whose place has -inf."""
    rows = np.arange(len(case.y))
    others = decisions - decisions[rows, case.y][:, None]
    others[rows, case.y] = -np.inf
    return others


def losses_of(case: Case, decisions: Any) -> Any:
    """Each row's loss times its cost."""
    if case.loss == "softmax":
        return case.costs * np.logaddexp(0, logsumexp(over_own(case, decisions), 1))
    margins = (2.0 * case.y - 1) * decisions
    if case.loss == "log_loss":
        return case.costs * np.logaddexp(0, -margins)
    if case.loss in CLASSES:
        beyond = np.maximum(0, 1 - margins)
    else:
        epsilon = case.epsilon if case.loss.endswith("insensitive") else 0.0
        beyond = np.maximum(0, np.abs(case.y.astype(float) - decisions) - epsilon)
    powers = {"squared_error": beyond**2 / 2, "hinge": beyond, "epsilon_insensitive": beyond}
    return case.costs * powers.get(case.loss, beyond**2)


def dual_of(case: Case, X: Any, alphas: Any) -> float:
    """A lower bound of the objective: the dual, at the alphas nearest to these that it allows."""
    costs = case.costs
    alphas = np.where(costs > 0, alphas, 0)
    if case.loss in CLASSES:
        alphas = (2 * case.y - 1) * np.maximum((2 * case.y - 1) * alphas, 0)
    if case.loss in ("log_loss", "hinge", "epsilon_insensitive"):
        alphas = np.clip(alphas, -costs, costs)
    if case.intercept:  # they must sum to 0
        positive, negative = np.maximum(alphas, 0), np.maximum(-alphas, 0)
        totals = np.stack([positive.sum(0), negative.sum(0)])
        kept = totals.min(0) / np.where(totals > 0, totals, 1)
        alphas = positive * kept[0] - negative * kept[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(costs > 0, np.abs(alphas) / costs, 0)
    if case.loss == "log_loss":
        linear = -costs * (xlogy(shares, shares) + xlogy(1 - shares, 1 - shares))
    elif case.loss in CLASSES:
        linear = np.abs(alphas)
    else:
        linear = alphas * case.y - (
            case.epsilon * np.abs(alphas) if case.loss != "squared_error" else 0
        )
    if case.loss.startswith("squared"):
        linear = linear - np.abs(alphas) * shares / (2 if case.loss == "squared_error" else 4)
    of_alphas = X.T @ alphas
    return float(linear.sum() - np.vdot(of_alphas, of_alphas) / 2)


def case_rows(case: Case) -> Any:
    X = case.X.toarray() if sparse.issparse(case.X) else case.X
    return X.astype(float)


def of_lasso(case: Case, X: Any, model: Any) -> tuple[float, float]:
    """The objective, and a lower bound from the residual."""
    ratio = 1.0 if case.loss == "lasso" else 0.3
    weights = np.ones(len(case.y)) if case.weights is None else case.weights
    weights = weights / weights.sum()
    centre = (weights @ X, weights @ case.y) if case.intercept else (0.0, 0.0)
    X, y = X - centre[0], case.y - centre[1]
    alpha = 1 / case.C
    coef = model.coef_.astype(float)
    l1, l2 = alpha * ratio, alpha * (1 - ratio)
    rest = y - X @ coef
    primal = weights @ rest**2 / 2 + l1 * np.abs(coef).sum() + l2 * coef @ coef / 2
    slopes = X.T @ (weights * rest)
    if l2 > 0:  # as rows of the data
        beyond = np.maximum(0, np.abs(slopes) - l1)
        bound = weights @ (rest * y) - weights @ rest**2 / 2 - beyond @ beyond / (2 * l2)
        slopes = slopes - l2 * coef
    along, square = weights @ (rest * y), weights @ rest**2 + l2 * coef @ coef
    scale = min(along / max(square, 1e-300), l1 / max(np.abs(slopes).max(), 1e-300))
    scaled = scale * along - scale**2 * square / 2
    return primal, max(scaled, bound) if l2 > 0 else scaled


def alphas_of(case: Case, decisions: Any) -> tuple[Any, Any]:
    """Minus the slopes of the softmax losses, and the shares of the classes."""
    shares = np.exp(decisions - logsumexp(decisions, 1)[:, None])
    others = over_own(case, decisions)
    alphas = -np.exp(others - np.logaddexp(0, logsumexp(others, 1))[:, None])
    alphas[np.arange(len(case.y)), case.y] = -alphas.sum(1)  # 1 less the share, in all digits
    return case.costs[:, None] * alphas, shares


def least_of_softmax(case: Case, X: Any, coef: Any, decisions: Any) -> float:
    """A lower bound: with the best intercepts, the objective is strongly convex in the weights."""
    for _ in range(50 if case.intercept else 0):
        alphas, shares = alphas_of(case, decisions)
        weighed = case.costs[:, None] * shares
        curvature = np.diag(weighed.sum(0)) - weighed.T @ shares
        step = np.linalg.lstsq(curvature, alphas.sum(0), rcond=1e-14)[0]
        decisions = decisions + step / max(1, np.abs(step).max())
    alphas, _ = alphas_of(case, decisions)
    losses = losses_of(case, decisions)
    slopes = coef - X.T @ alphas
    return float(np.sum(coef**2) / 2 + losses.sum() - np.sum(slopes**2) / 2)


def closer(case: Case, X: Any) -> Any:
    """Fit in float64, closer to the optimum: a bound from there is higher."""
    model = model_of(case._replace(ranks=None))
    model.set_params(tol=1e-9, max_iter=100_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, case.y, case.weights)


def bounds(case: Case, model: Any, *, is_warned: bool) -> tuple[float, float]:
    """The objective at the model's weights, and a lower bound of what any weights have."""
    X = case_rows(case)
    if case.loss in ("lasso", "elastic_net"):
        primal, least = of_lasso(case, X, model)
        if primal - least <= model.tol * primal:
            return primal, least
        better, higher = of_lasso(case, X, closer(case, X))
        if is_warned:  # neither may be near the optimum; then no weights are below the gap's end
            higher = max(higher, min(better, model.objective_ - model.dual_gap_))
        return primal, max(least, higher)
    coef = np.atleast_2d(model.coef_).T.astype(float)
    decisions = X @ coef + np.asarray(model.intercept_, float)
    losses = losses_of(case, decisions if case.loss == "softmax" else decisions[:, 0])
    primal = float(np.sum(coef**2) / 2 + losses.sum())
    if case.loss == "softmax":  # where weights are float32, others say it more precisely
        other = closer(case, X)
        found = other.coef_.T, X @ other.coef_.T + other.intercept_
        return primal, max(least_of_softmax(case, X, *one) for one in (found, (coef, decisions)))
    least = dual_of(case, X, model._alphas[:, 0])
    if primal - least > model.tol * primal:  # the certificate may be of other alphas
        least = max(least, dual_of(case, X, closer(case, X)._alphas[:, 0]))
    return primal, least


def rounding_of(case: Case) -> float:
    """What no arithmetic of float64 can tell from 0."""
    if case.loss == "softmax":
        return EPS * np.log(np.max(case.y) + 1) * case.costs.sum()
    if case.loss in ("lasso", "elastic_net"):
        return EPS**2 * np.mean(np.square(case.y, dtype=float))
    at_zero = losses_of(case._replace(epsilon=0.0), np.zeros(len(case.y))).sum()
    return at_zero * (EPS**2 if case.loss.startswith("squared") else EPS)


def check(number: int) -> str:
    """Return what is wrong with this fit, or nothing."""
    case = case_of(number)
    model = model_of(case)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.fit(case.X, case.y, case.weights)
    is_warned = any(issubclass(one.category, ConvergenceWarning) for one in seen)
    primal, least = bounds(case, model, is_warned=is_warned)
    unit = getattr(model, "_unit", 1.0)
    objective, gap = model.objective_ / unit, model.dual_gap_ / unit
    if case.loss in ("lasso", "elastic_net"):
        objective, gap = model.objective_, model.dual_gap_
    excess = primal - least
    floor = ROUNDING * primal + rounding_of(case)
    wrong = []
    if not np.isfinite(model.coef_).all():
        wrong.append("weights that are not finite")
    if not abs(objective - primal) <= 1e-6 * primal + floor:
        wrong.append(f"objective_ is {objective:.9g}, and {primal:.9g} at coef_")
    if excess > (gap if is_warned else model.tol * primal) * (1 + 1e-6) + floor:
        wrong.append(f"excess {excess / primal:.2g}, gap {gap / primal:.2g}, warned: {is_warned}")
    return f"{number}: {case}: {'; '.join(wrong)}" if wrong else ""


@pytest.mark.parametrize("part", [0] if FIT else range(PARTS))
def test_every_fit_is_the_optimum_or_says_how_far_it_is(part: int) -> None:
    numbers = [int(FIT)] if FIT else range(part, FITS, PARTS)
    wrong = [found for found in map(check, numbers) if found]
    assert not wrong, "\n".join(wrong)
