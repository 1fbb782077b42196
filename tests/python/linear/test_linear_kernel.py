"""The kernel of linear models, against scikit-learn's SGD on the same rows in the same order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier, SGDRegressor

import malt
from malt import _core

ROWS, FEATURES, EPOCHS = 300, 20, 5
RANDOM = np.random.default_rng(0)
DENSE = RANDOM.standard_normal((ROWS, FEATURES))
SPARSE = sp.random(ROWS, FEATURES, 0.3, format="csr", random_state=np.random.default_rng(1))
TRUE = RANDOM.standard_normal(FEATURES)
NUMBERS = DENSE @ TRUE + 0.3 * RANDOM.standard_normal(ROWS)
SIGNS = np.where(NUMBERS > 0, 1.0, -1.0)
CLASSES = np.digitize(NUMBERS, [-2, 2])

CLASSIFIERS = ["hinge", "perceptron", "log_loss", "modified_huber"]
REGRESSORS = ["squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"]
SETTINGS = {
    "optimal": {},
    "average": {"average": 100},
    "constant": {"learning_rate": "constant", "eta0": 0.01},
    "invscaling": {"learning_rate": "invscaling", "eta0": 0.1, "power_t": 0.3},
    "elastic net": {"penalty": "elasticnet", "l1_ratio": 0.3},
    "no intercept": {"fit_intercept": False},
}


def examples(matrix, targets=None, weights=None, dtype=np.float64):
    kind = _core.ExamplesFloat32 if dtype == np.float32 else _core.ExamplesFloat64
    targets = None if targets is None else targets.astype(dtype)
    if sp.issparse(matrix):
        return kind.csr(
            matrix.indptr, matrix.indices, matrix.data.astype(dtype), FEATURES, targets, weights
        )
    return kind.dense(matrix.astype(dtype), targets, weights)


def trained(matrix, targets, *, outputs=1, average=0, weights=None, dtype=np.float64, **settings):
    array = np.zeros((FEATURES + 1, outputs), dtype)
    averages = np.zeros_like(array) if average else None
    kind = _core.LinearFloat32 if dtype == np.float32 else _core.LinearFloat64
    settings["intercept"] = settings.pop("fit_intercept", True)
    settings.pop("penalty", None)
    model = kind(
        array,
        features=FEATURES,
        outputs=outputs,
        alpha=0.01,
        average=averages,
        average_from=average or 1,
        **settings,
    )
    rows = examples(matrix, targets, weights, dtype)
    for _ in range(EPOCHS):
        model.train(rows)
    assert model.finish()
    assert model.steps == EPOCHS * ROWS
    return averages if average else array


def by_sklearn(kind, matrix, targets, weights=None, **settings):
    peer = kind(alpha=0.01, max_iter=EPOCHS, tol=None, shuffle=False, **settings)
    peer.fit(matrix, targets, sample_weight=weights)
    return np.vstack([np.atleast_2d(peer.coef_).T, np.atleast_1d(peer.intercept_)])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("matrix", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_classifiers_are_those_of_scikit_learn(matrix, setting):
    # Of sparse rows scikit-learn leaves undone the L1 penalty since a weight's last row.
    tolerance = 1e-2 if setting == "elastic net" and matrix is SPARSE else 1e-6
    for loss in CLASSIFIERS:
        ours = trained(matrix, SIGNS, loss=loss, **SETTINGS[setting])
        theirs = by_sklearn(SGDClassifier, matrix, SIGNS, loss=loss, **SETTINGS[setting])
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=1e-5, err_msg=loss)


@pytest.mark.parametrize("loss", REGRESSORS)
def test_regressors_are_those_of_scikit_learn(loss):
    ours = trained(DENSE, NUMBERS, loss=loss, learning_rate="invscaling")
    theirs = by_sklearn(SGDRegressor, DENSE, NUMBERS, loss=loss)
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_squared_hinge_l1_weights_and_float32_are_those_of_scikit_learn():
    weights = RANDOM.random(ROWS)
    rate = {"learning_rate": "constant", "eta0": 0.001}
    ours = trained(DENSE, SIGNS, weights=weights, loss="squared_hinge", l1_ratio=1.0, **rate)
    theirs = by_sklearn(
        SGDClassifier, DENSE, SIGNS, weights, loss="squared_hinge", penalty="l1", **rate
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-8)
    ours = trained(SPARSE, SIGNS, loss="log_loss", dtype=np.float32)
    theirs = by_sklearn(SGDClassifier, SPARSE, SIGNS, loss="log_loss")
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_one_against_the_rest_is_that_of_scikit_learn():
    ours = trained(SPARSE, CLASSES, outputs=3, loss="log_loss")
    theirs = by_sklearn(SGDClassifier, SPARSE, CLASSES, loss="log_loss")
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_softmax_finds_the_classes():
    weights = trained(DENSE, CLASSES, outputs=3, loss="softmax")
    values = _core.linear_decisions(examples(DENSE), weights, outputs=3)
    np.testing.assert_allclose(values, DENSE @ weights[:-1] + weights[-1])
    assert (values.argmax(axis=1) == CLASSES).mean() > 0.8


def test_a_model_goes_on_where_its_arrays_were_left():
    once, twice = np.zeros(FEATURES + 1), np.zeros(FEATURES + 1)
    order = np.empty(ROWS, np.uint32)
    _core.shuffle(order, 5)
    rows = examples(SPARSE, SIGNS)
    whole = _core.LinearFloat64(once, features=FEATURES)
    whole.train(rows, order=order)
    assert whole.finish()
    for first, last in ((0, 100), (100, ROWS)):
        part = _core.LinearFloat64(twice, features=FEATURES, steps=first)
        part.train(rows, first, last, order=order)
        assert part.finish()
    np.testing.assert_allclose(twice, once, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _core.ExamplesFloat32.dense(DENSE), "must be a C-contiguous one of float32"),
        (lambda: _core.ExamplesFloat64.dense(DENSE.T), "C-contiguous"),
        (
            lambda: _core.ExamplesFloat64.csr(
                SPARSE.indptr, SPARSE.indices, SPARSE.data, FEATURES - 1
            ),
            "it has 19 columns",
        ),
        (lambda: trained(DENSE, SIGNS[:-1]), "targets has 299 values; it needs 300"),
        (lambda: trained(DENSE, SIGNS, loss="hing"), "loss is 'hing'; it is one of"),
        (lambda: trained(DENSE, SIGNS, learning_rate="adagrad"), "squares has 0 values"),
        (
            lambda: _core.linear_decisions(examples(DENSE), np.zeros(FEATURES)),
            "weights has 20 values; it needs 21",
        ),
        (
            lambda: _core.LinearFloat64(np.broadcast_to(0.0, 21), features=FEATURES),
            "C-contiguous",
        ),
    ],
)
def test_unfit_arrays_and_options_are_refused(call, words):
    with pytest.raises(malt.ConfigError, match=words):
        call()
