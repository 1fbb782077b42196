"""A fit() that raises: the model stays what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_classifier

import malt

RANDOM = np.random.default_rng(0)
X = pd.DataFrame(RANDOM.standard_normal((60, 3)), columns=["a", "b", "c"])
Y = (X["a"] > 0).to_numpy(np.float64)
WIDE = pd.DataFrame(RANDOM.standard_normal((60, 5)), columns=list("vwxyz"))


@pytest.mark.parametrize(
    "make",
    [
        malt.learn.SGDClassifier,
        malt.learn.SGDRegressor,
        malt.learn.LogisticRegression,
        malt.learn.LinearSVC,
        malt.learn.Ridge,
        malt.learn.LinearSVR,
        malt.learn.Lasso,
        malt.learn.ElasticNet,
    ],
)
def test_a_refused_fit_leaves_the_model_as_it_was(make: Any) -> None:
    fresh, fitted = make(), make().fit(X, Y)
    guesses = fitted.predict(X)
    no_targets = np.full(60, 1.0 if is_classifier(fitted) else np.inf)
    for refused in ((WIDE.where(WIDE > -2), Y), (WIDE, no_targets)):
        for model in (fresh, fitted):
            before = dict(vars(model))
            with pytest.raises(
                ValueError, match=r"contains NaN|contains infinity|one; got 1 class"
            ):
                model.fit(*refused)
            assert vars(model).keys() == before.keys()
            assert all(vars(model)[name] is value for name, value in before.items())
    assert np.array_equal(fitted.predict(X), guesses)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (malt.learn.LinearSVC(C=np.inf), "C is inf; .*C=1e6"),
        (malt.learn.LogisticRegression(C=np.inf), "C is inf; .*C=1e6"),
        (malt.learn.LinearSVR(C=0), "C is 0; .*C=1e6"),
        (malt.learn.Ridge(alpha=0), "alpha is 0; .*alpha=1e-6"),
    ],
)
def test_no_penalty_is_refused_with_a_slight_one(model: Any, words: str) -> None:
    with pytest.raises(malt.ConfigError, match=words):
        model.fit(X, Y)
