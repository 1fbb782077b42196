"""The estimators at their defaults, on small and middling data, beside scikit-learn's.

    . .venv/bin/activate                                  # after ./dev build
    pip install scikit-learn
    python benchmarks/estimators.py
    python benchmarks/estimators.py --output docs/performance.md

Twelve data sets that scikit-learn ships, makes or documents. Columns of unlike scale are
standardised first. The two estimators of a name are fitted in turn, on one core.
"""

import os
import statistics
import sys
import warnings
from typing import Any, NamedTuple

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before NumPy

import linear  # it adds the examples to the path
import numpy as np
import report
import sklearn.linear_model
import sklearn.svm
from linear import timed
from report import over, parser_with_output, say, table, times
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

import malt

MOST = 1.2  # times scikit-learn's time
LEAST_FITS, MOST_FITS = 5, 201
SECONDS = 1.0  # a row, for both
CLASSIFIERS = {"LinearSVC": sklearn.svm, "LogisticRegression": sklearn.linear_model}
REGRESSORS = {
    "Ridge": sklearn.linear_model,
    "LinearSVR": sklearn.svm,
    "Lasso": sklearn.linear_model,
    "ElasticNet": sklearn.linear_model,
}
SEVERAL_TARGETS = ("Ridge", "Lasso", "ElasticNet")  # scikit-learn's, too


class Data(NamedTuple):
    X: Any
    y: np.ndarray
    estimators: dict[str, Any]  # name -> scikit-learn's module of it


def scaled(loaded):
    return StandardScaler().fit_transform(loaded[0]), loaded[1]


def news():
    train, _ = linear.news()
    return train


def load():
    """The data, by name."""

    def of(estimators, X, y):
        return Data(
            X, y, {k: v for k, v in estimators.items() if y.ndim == 1 or k in SEVERAL_TARGETS}
        )

    made = {"random_state": 0}
    for name, X, y in (
        ("iris", *datasets.load_iris(return_X_y=True)),
        ("wine", *scaled(datasets.load_wine(return_X_y=True))),
        ("breast cancer", *scaled(datasets.load_breast_cancer(return_X_y=True))),
        ("digits", *datasets.load_digits(return_X_y=True)),
        ("make_moons", *datasets.make_moons(1_000, noise=0.2, **made)),
        ("make_classification", *datasets.make_classification(2_000, **made)),
        ("20 Newsgroups", *news()),
    ):
        yield name, of(CLASSIFIERS, X, y)
    for name, X, y in (
        ("diabetes", *datasets.load_diabetes(return_X_y=True)),
        ("linnerud", *scaled(datasets.load_linnerud(return_X_y=True))),
        ("make_friedman1", *datasets.make_friedman1(1_000, **made)),
        ("make_regression", *datasets.make_regression(1_000, 50, noise=10, **made)),
        ("make_regression, wide", *datasets.make_regression(200, 2_000, noise=10, **made)),
    ):
        yield name, of(REGRESSORS, X, y)


class Estimators(report.Report):
    def __init__(self):
        super().__init__("estimators.py", "Estimators at their defaults", "all fits")

    def defaults(self):
        rows = []
        for name, data in load():
            for kind, module in data.estimators.items():
                say(f"{kind}, {name}")
                ours, theirs, scores = compare(kind, module, data)
                ratio = ours / theirs
                missed = "" if over(1 / ratio, 1 / MOST) else f"{times(ratio)} times as long"
                row = [name, "{:,} x {:,}".format(*data.X.shape), kind]
                row += [milliseconds(ours), milliseconds(theirs), times(ratio)]
                row += [f"{score:.4f}" for score in scores]
                rows.append([*row, self._verdict(f"{kind}, {name}", missed)])
        header = ["data", "rows x columns", "estimator", "MALT, ms", "scikit-learn, ms", "x"]
        header += ["MALT's score", "scikit-learn's", ""]
        self._sections.append(
            "Milliseconds a fit at the defaults of each, on one core: *x* is MALT's time by "
            f"scikit-learn's, at most {MOST}. The scores are of the rows that were "
            f"fitted.\n\n{table(header, rows)}"
        )


def compare(kind, module, data):
    """Median seconds of MALT's fit and of scikit-learn's, and their scores."""
    makers = getattr(malt.learn, kind), getattr(module, kind)
    seconds, scores = ([], []), []
    fits = 0
    while (
        not scores or fits < LEAST_FITS or (sum(map(sum, seconds)) < SECONDS and fits < MOST_FITS)
    ):
        models = [make() for make in makers]
        found = [timed(lambda model=model: model.fit(data.X, data.y))[0] for model in models]
        if scores:  # the first fits import and allocate
            for kept, each in zip(seconds, found, strict=True):
                kept.append(each)
            fits += 1
        scores = [model.score(data.X, data.y) for model in models]
    return *map(statistics.median, seconds), scores


def milliseconds(seconds):
    return f"{1e3 * seconds:.3g}"


def main():
    knobs = parser_with_output(__doc__).parse_args()
    warnings.simplefilter("ignore")  # both warn of what has not converged
    result = Estimators()
    result.defaults()
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
