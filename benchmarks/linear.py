"""Linear models on one core: non-zeros a second and accuracy, beside the libraries in use.

    pip install scikit-learn vowpalwabbit                 # Vowpal Wabbit may be missing
    python benchmarks/linear.py
    python benchmarks/linear.py --output docs/performance.md

NG is 20 Newsgroups, comp.* against the rest (see examples/newsgroups.py); SYN has the shape of
RCV1: Zipf's columns, tf-idf values, rows of length 1, 5 % of the labels turned. No intercepts.
MALT and scikit-learn train in turn, shuffled at each epoch, with the same rate and penalty, and
another seed in each run; Vowpal Wabbit in the order of the rows, from its cache, which it reads on
another core.
"""

import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before NumPy

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import newsgroups  # after the path
import report
import vowpal_wabbit
from report import parser_with_output, say, table, times

from malt import _core

CACHE = Path.home() / ".cache" / "malt" / "rcv1-shaped-1.npz"
ALPHA = {"NG": 1e-5, "SYN": 1e-6}
TARGET = {"NG": 1.5, "SYN": 3.0}  # times scikit-learn's non-zeros a second
ACCURACY = 0.003  # at most this much below scikit-learn's
RUNS = {"NG": 4, "SYN": 1}  # times --repeats: NG's take milliseconds, and its test set is small
LOSSES = ("hinge", "log_loss")


def synthetic(rows=781_265, features=47_236, seed=0):
    """The matrix and its labels, -1 or 1, made once."""
    if not CACHE.exists():
        say("making SYN")
        random = np.random.default_rng(seed)
        draws = np.maximum(random.poisson(76, rows), 1)
        chance = np.cumsum(1 / np.arange(1, features + 1) ** 1.1)
        drawn = np.searchsorted(chance / chance[-1], random.random(draws.sum()))
        columns = random.permutation(features)[np.minimum(drawn, features - 1)]
        cells, counts = np.unique(
            np.repeat(np.arange(rows), draws) * features + columns, return_counts=True
        )
        row, columns = np.divmod(cells, features)
        idf = np.log((1 + rows) / (1 + np.bincount(columns, minlength=features))) + 1
        values = (1 + np.log(counts)) * idf[columns]
        values /= np.sqrt(np.bincount(row, weights=values**2))[row]
        starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
        true = random.standard_normal(features) * (random.random(features) < 0.1)
        signs = np.where(np.add.reduceat(values * true[columns], starts[:-1]) >= 0, 1, -1)
        signs[random.random(rows) < 0.05] *= -1
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        partial = CACHE.with_suffix(".partial.npz")
        np.savez(
            partial,
            values=values.astype(np.float32),
            columns=columns.astype(np.int32),
            starts=starts.astype(np.int32),
            signs=signs.astype(np.float32),
        )
        partial.replace(CACHE)
    with np.load(CACHE) as saved:
        arrays = saved["values"], saved["columns"], saved["starts"]
        matrix = sp.csr_matrix(arrays, shape=(rows, features))
        signs = saved["signs"]
    train = rows * 9 // 10
    return (matrix[:train], signs[:train]), (matrix[train:], signs[train:])


def news():
    data = newsgroups.load()
    return (data.x_train, data.y_train), (data.x_test, data.y_test)


class Malt:
    def __init__(self, matrix, signs, loss, alpha):
        self.weights = np.zeros(matrix.shape[1] + 1, np.float32)
        self._order = np.empty(matrix.shape[0], np.uint32)
        self._examples = _core.ExamplesFloat32.csr(
            matrix.indptr, matrix.indices, matrix.data, matrix.shape[1], signs
        )
        self._model = _core.LinearFloat32(
            self.weights,
            features=matrix.shape[1],
            loss=loss,
            alpha=alpha,
            intercept=False,
        )

    def train(self, epochs, seed):
        for epoch in range(epochs):
            _core.shuffle(self._order, seed * epochs + epoch)
            self._model.train(self._examples, order=self._order)
            assert self._model.finish()

    def accuracy(self, matrix, signs):
        return float(np.mean((matrix @ self.weights[:-1] > 0) == (signs > 0)))


def timed(call):
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


class LinearReport(report.Report):
    def __init__(self, repeats):
        super().__init__(
            "linear.py", "Linear models", f"{repeats} runs (NG: {RUNS['NG'] * repeats})"
        )
        self._rows = []

    def measure(self, name, train, test, epochs, repeats):
        matrix, signs = train
        work = matrix.nnz * epochs
        vw = self._vowpal_wabbit(name, train, test, epochs)
        for loss in LOSSES:
            runs = {"malt": [], "sklearn": []}
            accuracies = {"malt": [], "sklearn": []}
            for repeat in range(RUNS[name] * repeats):
                say(f"{name} {loss}, run {repeat + 1} of {RUNS[name] * repeats}")
                model = Malt(matrix, signs, loss, ALPHA[name])
                seconds, _ = timed(partial(model.train, epochs, repeat))
                runs["malt"].append(seconds)
                accuracies["malt"].append(model.accuracy(*test))
                peer = SGDClassifier(
                    loss=loss, alpha=ALPHA[name], max_iter=epochs, tol=None, fit_intercept=False,
                    random_state=repeat,
                )  # fmt: skip
                seconds, _ = timed(partial(peer.fit, matrix, signs))
                runs["sklearn"].append(seconds)
                accuracies["sklearn"].append(peer.score(*test))
            accuracy, peer_accuracy = map(statistics.median, accuracies.values())
            medians = {key: statistics.median(seconds) for key, seconds in runs.items()}
            ratio = medians["sklearn"] / medians["malt"]
            verdict = self._verdict(
                f"{name} {loss}",
                f"{ratio:.2f} times scikit-learn" if ratio < TARGET[name] else "",
                f"accuracy {accuracy:.3f}" if accuracy < peer_accuracy - ACCURACY else "",
            )
            self._rows.append(
                [
                    f"{name}, {loss}",
                    f"{work / medians['malt']:.2g}",
                    f"{work / medians['sklearn']:.2g}",
                    times(ratio),
                    times(TARGET[name]),
                    f"{work / vw[loss]:.2g}" if vw else "not installed",
                    f"{accuracy:.3f}",
                    f"{peer_accuracy:.3f}",
                    verdict,
                ]
            )

    def _vowpal_wabbit(self, name, train, test, epochs):
        """Seconds by loss; None where it is missing."""
        if not vowpal_wabbit.is_installed():
            return None
        with tempfile.TemporaryDirectory() as directory:
            say(f"{name}, Vowpal Wabbit")
            peer = vowpal_wabbit.VowpalWabbit(Path(directory), train, test)
            return {loss: peer.train(loss, ALPHA[name], epochs)[0] for loss in LOSSES}

    def tabulate(self):
        header = ["", "MALT nnz/s", "scikit-learn nnz/s", "ratio", "target", "Vowpal Wabbit nnz/s"]
        header += ["accuracy", "scikit-learn's", ""]
        self._sections.insert(1, table(header, self._rows))


def main():
    p = parser_with_output(__doc__)
    p.add_argument("--only", choices=ALPHA, help="of the data sets")
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--repeats", type=int, default=5)
    knobs = p.parse_args()
    result = LinearReport(knobs.repeats)
    for name, load in (("NG", news), ("SYN", synthetic)):
        if knobs.only in (None, name):
            train, test = load()
            result.measure(name, train, test, knobs.epochs, knobs.repeats)
    result.tabulate()
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
