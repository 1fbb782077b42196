"""A scikit-learn estimator made data-parallel by malt.learn.wrap(), on 20 Newsgroups.

    malt run -n 4 examples/sklearn_wrap.py
    malt run -n 4 examples/sklearn_wrap.py --estimator perceptron --every 250
    python examples/sklearn_wrap.py                      # one rank

Needs scikit-learn and SciPy: pip install "malt-sgd[examples,learn]". The data are fetched once (see
newsgroups.py). Afterwards rank 0 fits the same estimator, without the wrapper, on all rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import newsgroups
from sklearn.base import clone
from sklearn.linear_model import Perceptron, SGDClassifier

import malt

ESTIMATORS = {
    "svm": SGDClassifier(loss="hinge", alpha=1e-5, random_state=0),
    "logistic": SGDClassifier(loss="log_loss", alpha=1e-6, random_state=0),
    "perceptron": Perceptron(random_state=0),
}


def parse_knobs() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description="A wrapped estimator on 20 Newsgroups.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--estimator", choices=ESTIMATORS, default="svm")
    p.add_argument("--every", type=int, help="rows from one average to the next")
    p.add_argument("--epochs", type=int, default=10, help="passes over the rows")
    p.add_argument("--staleness", type=int, default=0, help="exchanges that others may be behind")
    return p.parse_args()


def report(what: str, fitted: Any, seconds: float, data: newsgroups.Newsgroups) -> None:
    right = fitted.score(data.x_test, data.y_test)
    print(f"{what}: {seconds:.2f} s, test accuracy {100 * right:.2f}%", flush=True)


def main() -> None:
    knobs = parse_knobs()
    estimator = ESTIMATORS[knobs.estimator]
    try:
        data = newsgroups.load()
    except newsgroups.DataError as error:
        sys.exit(str(error))

    malt.init()
    model = malt.learn.wrap(
        estimator, every=knobs.every, passes=knobs.epochs, staleness=knobs.staleness
    )
    x, y = malt.shard(data.x_train), malt.shard(data.y_train)
    malt.barrier()
    start = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - start
    if malt.rank() == 0:
        report(f"{malt.size()} ranks", model, seconds, data)
        alone = clone(estimator).set_params(max_iter=knobs.epochs, tol=None)
        start = time.perf_counter()
        alone.fit(data.x_train, data.y_train)
        report("scikit-learn alone", alone, time.perf_counter() - start, data)
    malt.finalize()


if __name__ == "__main__":
    main()
