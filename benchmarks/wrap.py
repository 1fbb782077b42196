"""What malt.learn.wrap(SGDClassifier()) takes beside scikit-learn alone and
malt.learn.SGDClassifier.

    . .venv/bin/activate                                  # after ./dev test
    python benchmarks/wrap.py

Each round runs a job of one rank and a job of two, one after the other. In each, the trainings take
turns: 5 passes over the same rows. The least of all rounds counts, as what else runs on the machine
only makes it slower. If much does, look at the processor's time of rank 0, waiting included, rather
than the clock's.
"""

import argparse
import json
import logging
import statistics
import time
from pathlib import Path

import numpy as np
import report
import scipy.sparse
from report import parser, run_ranks, say, table
from sklearn.linear_model import SGDClassifier

import malt

PASSES = 5
RANKS = (1, 2)
ALONE = "scikit-learn alone"


def dense(random):
    """100,000 rows of 100 features, two classes."""
    x = random.normal(size=(100_000, 100))
    return x, (x @ random.normal(size=100) + 3 * random.normal(size=len(x)) > 0).astype(int)


def text(random):
    """20,000 rows of 100 words each out of 50,000 by Zipf's law, four classes."""
    rows, words, each = 20_000, 50_000, 100
    share = 1 / np.arange(1, words + 1)
    columns = random.choice(words, rows * each, p=share / share.sum())
    x = scipy.sparse.csr_matrix(
        (np.full(len(columns), each**-0.5), columns, np.arange(0, len(columns) + 1, each)),
        shape=(rows, words),
    )
    x.sum_duplicates()
    return x, np.argmax(x @ random.normal(size=(words, 4)), axis=1)


DATA = {"100,000 x 100, dense": dense, "20,000 x 50,000, sparse, 4 classes": text}


class Passes(SGDClassifier):
    """scikit-learn's, fitted by a partial_fit for each pass."""

    def fit(self, x, y):
        for name in ("coef_", "t_"):
            self.__dict__.pop(name, None)
        for _ in range(PASSES):
            self.partial_fit(x, y, classes=np.unique(y))


def trainings():
    """By name, what is called with this rank's rows."""
    options = {"max_iter": PASSES, "tol": None, "random_state": 0}
    made = {
        "malt.learn.wrap": malt.learn.wrap(SGDClassifier(random_state=0), passes=PASSES),
        "malt.learn.wrap, every=1000": malt.learn.wrap(
            SGDClassifier(random_state=0), every=1000, passes=PASSES
        ),
        "malt.learn.SGDClassifier": malt.learn.SGDClassifier(**options),
    }
    if malt.size() > 1:
        return made
    return {ALONE: SGDClassifier(**options), "its partial_fit": Passes(random_state=0), **made}


def work(rounds):
    """As a rank: each training's seconds by the clock and the processor, and its accuracy."""
    logging.getLogger("malt").setLevel(logging.ERROR)
    malt.init()
    found = {}
    for name, make in DATA.items():
        x, y = make(np.random.default_rng(0))
        held_out = len(y) // 10
        test, train = (x[:held_out], y[:held_out]), (x[held_out:], y[held_out:])
        mine = train if malt.size() == 1 else tuple(malt.shard(each) for each in train)
        for _ in range(rounds):
            for what, model in trainings().items():
                malt.barrier()
                start, own = time.perf_counter(), time.process_time()
                model.fit(*mine)
                own = time.process_time() - own
                malt.barrier()
                seconds = time.perf_counter() - start
                found.setdefault(f"{name}/{what}", []).append((seconds, own, model.score(*test)))
    return found


def jobs(rounds):
    """By data, training and ranks: the seconds and the accuracies."""
    found = {}
    for n in range(rounds):
        for ranks in RANKS:
            say(f"round {n + 1} of {rounds}, {ranks} ranks")
            of_job = run_ranks(ranks, __file__, OMP_NUM_THREADS="1")  # a core a rank
            for name, values in of_job.items():
                found.setdefault((*name.split("/"), ranks), []).extend(values)
    return found


def show(found):
    rows = []
    for (data, what, ranks), values in sorted(found.items()):
        alone = found[data, ALONE, 1]
        row = [data, what, str(ranks)]
        for clock in (0, 1):
            least = min(each[clock] for each in values)
            ratio = min(each[clock] for each in alone) / least
            row += [f"{least * 1000:.0f}", report.times(ratio)]
        right = statistics.mean(each[2] for each in values)
        rows.append([*row, f"{100 * right:.1f}"])
    print(f"Measured on {report.machine()}.\n")
    header = ["rows", "training", "ranks", "ms", "x alone", "processor's ms", "x alone", "% right"]
    print(table(header, rows))


def main():
    p = parser(__doc__)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    knobs = p.parse_args()
    if not knobs.out:
        show(jobs(knobs.rounds))
        return
    found = work(3)
    if malt.rank() == 0:
        knobs.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
