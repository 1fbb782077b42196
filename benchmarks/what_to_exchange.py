"""What a loop loses or gains by exchanging weights, differences or gradients, and how often.

    . .venv/bin/activate                                  # after ./dev test
    python benchmarks/what_to_exchange.py

Three small programs in NumPy are trained with 1, 2 and 4 ranks: a network on scikit-learn's digits,
matrix factorisation on ratings made from known factors, and word vectors on sentences made from
known topics. All make the same passes: N ranks take a step each where one rank takes N. Figures are
means over seeds; of the first two programs, on data held out. No times: the programs are tiny.
"""

import statistics

import numpy as np
import report
from report import table
from sklearn.datasets import load_digits

import malt

RANKS = (1, 2, 4)
EXCHANGES = [  # what, and after how many batches; None: once a pass
    ("weights", 1),
    ("weights", 10),
    ("weights", None),
    ("differences", 1),
    ("differences", 10),
    ("differences", None),
    ("gradients", 1),
]


class Network:
    """64 inputs, 64 hidden units, 10 classes. Right answers, in percent."""

    rate, batch, passes = 0.1, 16, 15

    def __init__(self, random):
        x, y = load_digits(return_X_y=True)
        order = random.permutation(len(x))
        x, y = x[order] / 16, y[order]
        self.x, self.y, self.x_test, self.y_test = x[450:], y[450:], x[:450], y[:450]
        self.rows = len(self.x)
        first, second = random.normal(size=(64, 64)) / 8, random.normal(size=(64, 10)) / 8
        self.start = np.concatenate([first.ravel(), np.zeros(64), second.ravel(), np.zeros(10)])

    def _forward(self, w, x):
        first, bias, second, last = np.split(w, [4096, 4160, 4800])
        hidden = np.maximum(x @ first.reshape(64, 64) + bias, 0)
        return hidden, second.reshape(64, 10), hidden @ second.reshape(64, 10) + last

    def gradient(self, w, rows):
        x, y = self.x[rows], self.y[rows]
        hidden, second, out = self._forward(w, x)
        slope = np.exp(out - out.max(axis=1, keepdims=True))
        slope /= slope.sum(axis=1, keepdims=True)
        slope[np.arange(len(y)), y] -= 1
        slope /= len(y)
        inner = slope @ second.T * (hidden > 0)
        parts = (x.T @ inner, inner.sum(axis=0), hidden.T @ slope, slope.sum(axis=0))
        return np.concatenate([part.ravel() for part in parts])

    def score(self, w):
        return 100 * np.mean(self._forward(w, self.x_test)[2].argmax(axis=1) == self.y_test)


class Ratings:
    """40,000 of 800 users and 400 items, 5 factors and noise of 0.5. Root mean squared error."""

    rate, batch, passes = 0.03, 40, 10
    users, items, factors = 800, 400, 5

    def __init__(self, random):
        count = 40_000
        left = random.normal(size=(self.users, self.factors))
        right = random.normal(size=(self.items, self.factors))
        self.user = random.integers(self.users, size=count)
        self.item = random.integers(self.items, size=count)
        self.value = np.sum(left[self.user] * right[self.item], axis=1)
        self.value += 0.5 * random.normal(size=count)
        self.rows = 36_000  # the others are held out
        self.start = 0.1 * random.normal(size=(self.users + self.items) * self.factors)

    def _error(self, w, rows):
        table = w.reshape(-1, self.factors)
        left, right = table[self.user[rows]], table[self.users + self.item[rows]]
        return left, right, np.sum(left * right, axis=1) - self.value[rows]

    def gradient(self, w, rows):
        left, right, error = self._error(w, rows)
        slope = np.zeros((self.users + self.items, self.factors))
        np.add.at(slope, self.user[rows], error[:, None] * right + 0.02 * left)
        np.add.at(slope, self.users + self.item[rows], error[:, None] * left + 0.02 * right)
        return slope.ravel()

    def score(self, w):
        return np.sqrt(np.mean(self._error(w, np.arange(self.rows, len(self.value)))[2] ** 2))


class Words:
    """600 words of 20 topics, word2vec with 5 negatives. Nearest words of one topic, in percent."""

    rate, batch, passes = 0.1, 50, 3
    words, topics, size = 600, 20, 16

    def __init__(self, random):
        self.rows = 30_000  # pairs of words in a sentence: half of them of one topic
        self.centre = random.integers(self.words, size=self.rows)
        near = self.centre % self.topics + self.topics * random.integers(
            self.words // self.topics, size=self.rows
        )
        far = random.integers(self.words, size=self.rows)
        self.context = np.where(random.random(self.rows) < 0.5, near, far)
        self.random = random
        self.start = random.normal(size=2 * self.words * self.size) / self.size

    def gradient(self, w, rows):
        table = w.reshape(2 * self.words, self.size)
        negatives = self.random.integers(self.words, size=(len(rows), 5))
        others = self.words + np.column_stack([self.context[rows], negatives])
        centre = table[self.centre[rows]]
        slopes = 1 / (1 + np.exp(-np.einsum("ij,ikj->ik", centre, table[others])))
        slopes[:, 0] -= 1
        slope = np.zeros_like(table)
        np.add.at(slope, self.centre[rows], np.einsum("ik,ikj->ij", slopes, table[others]))
        np.add.at(slope, others, slopes[:, :, None] * centre[:, None, :])
        return slope.ravel()

    def score(self, w):
        table = w.reshape(2 * self.words, self.size)[: self.words]
        table = table / np.linalg.norm(table, axis=1, keepdims=True)
        alike = table @ table.T - 2 * np.eye(self.words)
        nearest = np.argsort(-alike, axis=1)[:, :20]
        return 100 * np.mean(nearest % self.topics == np.arange(self.words)[:, None] % self.topics)


TASKS = {task.__name__: task for task in (Network, Ratings, Words)}


def train(task, what, every, seed):
    """As a rank; all have the same weights afterwards."""
    random = np.random.default_rng([seed, malt.rank()])
    mine = malt.shard(np.arange(task.rows))
    batches = task.rows // malt.size() // task.batch  # equally many on all ranks
    every = min(every or batches, batches)
    w = task.start.copy()
    v = malt.vector(w.size, dtype="float64")
    before = w.copy()
    for _ in range(task.passes):
        order = random.permutation(mine)
        for n, rows in enumerate(np.split(order[: batches * task.batch], batches)):
            slope = task.gradient(w, rows)
            if what == "gradients":
                v.array[:] = slope
                v.allreduce(malt.AVG)
                slope = v.array
            w -= task.rate * slope
            if what != "gradients" and ((n + 1) % every == 0 or n + 1 == batches):
                if what == "weights":
                    v.array[:] = w
                    v.allreduce(malt.AVG)
                    w[:] = v.array
                else:
                    v.array[:] = w - before
                    v.allreduce(malt.SUM)
                    w[:] = before + v.array
                    before[:] = w
    v.close()
    return w


def work(seeds):
    """As a rank: the scores of every seed, by task, exchange and interval."""
    malt.init()
    found = {}
    for name, make in TASKS.items():
        for what, every in EXCHANGES if malt.size() > 1 else EXCHANGES[:1]:
            for seed in range(seeds):
                task = make(np.random.default_rng(seed))
                with np.errstate(all="ignore"):  # what diverges is in the table
                    score = float(task.score(train(task, what, every, seed)))
                found.setdefault(f"{name}/{what}/{every}", []).append(score)
    return found


def show(found):
    print(f"Measured on {report.machine()}.\n")
    rows = []
    for name, scores in found[1].items():
        task = name.partition("/")[0]
        digits = 2 if task == "Ratings" else 1

        def cell(scores, digits=digits):
            mean = statistics.mean(scores)
            return f"{mean:.{digits}f}" if 0 <= mean < 1e3 else "diverges"

        rows.append([task, "none: one rank", "", cell(scores), ""])
        for what, every in EXCHANGES:
            several = [cell(found[ranks][f"{task}/{what}/{every}"]) for ranks in RANKS[1:]]
            often = {None: "once a pass", 1: "1 batch"}.get(every, f"{every} batches")
            rows.append([task, what, often, *several])
    print(table(["program", "exchanged", "every", "2 ranks", "4 ranks"], rows))


def main():
    found = report.by_ranks(RANKS, work, __doc__, __file__, seeds=3)
    if found is not None:
        show(found)


if __name__ == "__main__":
    main()
