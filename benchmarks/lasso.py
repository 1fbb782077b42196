"""The lasso: seconds and coordinate steps to the optimum, beside scikit-learn, skglm and celer.

    . .venv/bin/activate                                  # after ./dev build
    pip install scikit-learn skglm celer                  # the last two may be missing
    python benchmarks/lasso.py
    python benchmarks/lasso.py --output docs/performance.md

WIDE has 10^6 sparse columns of random numbers, CORRELATED 5,000 dense ones, each like the one
before. NG is 20 Newsgroups (examples/newsgroups.py): words by which the groups differ.
"""

import importlib
import os
import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before NumPy

import linear
import numpy as np
import report
from linear import timed
from report import over, parser_with_output, say, table, times
from scipy import sparse
from sklearn.linear_model import Lasso

import malt
from malt._linear import lasso

CLOSE = 1e-6  # of the optimum
TWO_RANKS, SKLEARN, RANDOM = 1.8, 1.0, 3.0  # times as much as MALT's dynamic schedule, at least
LONG = 60  # seconds
TOLS = (1e-4, 1e-5, 1e-6, 1e-8)
ONE, TWO, DRAWN = "MALT, 1 rank", "MALT, 2 ranks", "MALT, random schedule"


class Data(NamedTuple):
    X: Any
    y: Any
    share: float  # of the least alpha without weights


class Solver(NamedTuple):
    name: str
    make: Callable[..., Any]
    ladder: tuple[float, ...]  # of tol


class Run(NamedTuple):
    seconds: float
    objective: float
    steps: float | None


def wide():
    random = np.random.default_rng(0)
    rows, columns, values = 10_000, 1_000_000, 50
    places = np.sort(random.integers(0, rows, (columns, values)), axis=1)
    starts = np.arange(columns + 1) * values
    parts = (random.standard_normal(columns * values), places.ravel(), starts)
    X = sparse.csc_matrix(parts, (rows, columns))
    X.sum_duplicates()
    y = X[:, :: columns // 300] @ (3 * random.standard_normal(columns // (columns // 300) + 1))
    return Data(X, y + 0.3 * y.std() * random.standard_normal(rows) + 1, 0.1)


def correlated():
    random = np.random.default_rng(0)
    X = np.asfortranarray(random.standard_normal((1000, 5000)))
    for j in range(1, X.shape[1]):
        X[:, j] = 0.9 * X[:, j - 1] + np.sqrt(1 - 0.9**2) * X[:, j]
    y = X[:, ::50] @ random.standard_normal(100) + random.standard_normal(1000)
    return Data(X, y, 0.01)


def news():
    X, y = linear.news()[0]
    return Data(sparse.csc_matrix(X, dtype=np.float64), np.asarray(y, np.float64), 0.02)


LOAD = {"WIDE": wide, "CORRELATED": correlated, "NG": news}


def solvers(alpha, is_large):
    ours = partial(malt.learn.Lasso, alpha, max_iter=100_000)
    listed = [
        Solver(ONE, ours, (CLOSE,)),
        Solver(DRAWN, partial(ours, schedule="random", random_state=0), (CLOSE,)),
        Solver("scikit-learn", partial(Lasso, alpha, max_iter=100_000), TOLS),
    ]
    if is_large:
        listed.insert(1, Solver(TWO, partial(ours, ranks=2), (CLOSE,)))
    for name in ("skglm", "celer"):
        try:
            kind = importlib.import_module(name).Lasso
        except ImportError:
            continue
        listed.append(Solver(name, partial(kind, alpha, max_iter=1000), TOLS))
    return listed


def objective(model, data, alpha):
    errors = data.y - (data.X @ model.coef_ + model.intercept_)
    return errors @ errors / (2 * len(errors)) + alpha * np.abs(model.coef_).sum()


def run(solver, tol, data, alpha):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds, model = timed(lambda: solver.make(tol=tol).fit(data.X, data.y))
    steps = getattr(model, "n_updates_", None)
    if solver.name == "scikit-learn":
        steps = model.n_iter_ * data.X.shape[1]
    return Run(seconds, objective(model, data, alpha), steps)


class Lassos(report.Report):
    def __init__(self, repeats):
        super().__init__("lasso.py", "The lasso", f"{repeats} runs")
        self._sections.append(
            "Seconds are those of the whole `fit`, on matrices that each solver reads as they are, "
            "with checks and the start of ranks. They are of the fastest run, over values of "
            f"`tol`, that ends at most {CLOSE:g} of the optimum above it; MALT's `tol` is that "
            "share. The optimum is the lowest objective of all runs. *x* is the time by that of "
            "MALT on 1 rank, or the time on 1 rank by that on 2. *steps* are coordinate steps: of "
            "the random schedule those over columns that screening has not excluded, of "
            "scikit-learn its passes times the columns. *x* in the last columns is the number of "
            "steps by that of the dynamic schedule. *at least* are the goals. Two ranks are not "
            "measured on data for which MALT starts one."
        )

    def measure(self, name, data, repeats):
        centred = data.y - data.y.mean()
        alpha = data.share * float(np.abs(data.X.T @ centred).max() / len(centred))
        values = data.X.nnz if sparse.issparse(data.X) else data.X.size
        listed = solvers(alpha, values >= 2 * lasso.LEAST_VALUES)
        for solver in listed:  # some compile code at their first fit
            solver.make(tol=0.1).fit(data.X[:100, :1000], data.y[:100])
        found = {}
        for solver in listed:
            found[solver.name] = []
            for tol in solver.ladder:
                say(f"{name}, {solver.name}, {tol:g}")
                runs = [run(solver, tol, data, alpha) for _ in range(repeats)]
                middle = Run(statistics.median(each.seconds for each in runs), *runs[0][1:])
                found[solver.name].append(middle)
                if middle.seconds > LONG:
                    break
        optimum = min(each.objective for runs in found.values() for each in runs)
        best = {
            key: min(
                (each for each in runs if each.objective <= optimum * (1 + CLOSE)), default=None
            )
            for key, runs in found.items()
        }
        lines = [self._line(name, key, best) for key in found]
        header = ["solver", "s", "x", "at least", "", "steps", "x", "at least", ""]
        model = malt.learn.Lasso(alpha).fit(data.X, data.y)
        rows, columns = data.X.shape
        self._sections.append(
            f"### {name} and the lasso\n\n{rows:,} rows, {columns:,} columns, alpha = {alpha:.3g}, "
            f"{np.count_nonzero(model.coef_):,} weights that are not 0.\n\n{table(header, lines)}"
        )

    def _line(self, name, key, best):
        one, this = best[ONE], best[key]
        if this is None or one is None:
            missed = self._verdict(f"{name}, {key}", "not close enough") if key == TWO else ""
            return [key, "-", "", "", missed, "", "", "", ""]
        ratio = this.seconds / one.seconds
        goal = {TWO: TWO_RANKS, "scikit-learn": SKLEARN}.get(key)
        if key == TWO:
            ratio = 1 / ratio
        cells = [key, f"{this.seconds:.3g}", "" if key == ONE else times(ratio)]
        cells += self._cells(f"{name}, {key}", ratio, goal)
        if this.steps is None:
            return [*cells, "", "", "", ""]
        steps = this.steps / one.steps
        cells += [f"{this.steps:,.0f}", "" if key == ONE else times(steps)]
        goal = RANDOM if key == DRAWN else None
        return [*cells, *self._cells(f"{name}, {key}, steps", steps, goal)]

    def _cells(self, what, ratio, goal):
        if goal is None:
            return ["", ""]
        missed = None if over(ratio, goal) else f"{times(ratio)}"
        return [times(goal), self._verdict(what, missed)]


def main():
    p = parser_with_output(__doc__)
    p.add_argument("--only", choices=LOAD, nargs="+", help="of the data sets")
    p.add_argument("--repeats", type=int, default=3)
    knobs = p.parse_args()
    result = Lassos(knobs.repeats)
    for name in knobs.only or LOAD:
        result.measure(name, LOAD[name](), knobs.repeats)
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
