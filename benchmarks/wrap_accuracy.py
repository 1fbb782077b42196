"""What averaging costs small estimators: malt.learn.wrap() on digits with 1, 2 and 4 ranks.

    . .venv/bin/activate                                  # after ./dev test
    python benchmarks/wrap_accuracy.py

The data are scikit-learn's digits. The share of right answers is that on rows held out. The index
for clusters is the adjusted Rand index on all rows. Each is a mean over seeds.
"""

import logging
import statistics

import numpy as np
from report import by_ranks, table
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import adjusted_rand_score
from sklearn.neural_network import MLPClassifier

import malt

RANKS = (1, 2, 4)
PASSES = 10
ESTIMATORS = {
    "MLPClassifier((32,)), % right": lambda seed: MLPClassifier((32,), random_state=seed),
    "SGDClassifier(), % right": lambda seed: SGDClassifier(random_state=seed),
    "MiniBatchKMeans(10), Rand index": lambda seed: MiniBatchKMeans(
        10, batch_size=100, n_init=1, random_state=seed
    ),
}


def work(seeds):
    """As a rank: the scores of every seed, by estimator and interval."""
    logging.getLogger("malt").setLevel(logging.ERROR)
    malt.init()
    x, y = load_digits(return_X_y=True)
    x /= 16
    found = {}
    for name, make in ESTIMATORS.items():
        for every in (None, 100):
            for seed in range(seeds):
                order = np.random.default_rng(seed).permutation(len(x))
                train, test = order[450:], order[:450]
                model = malt.learn.wrap(make(seed), every=every, passes=PASSES)
                model.fit(malt.shard(x[train]), malt.shard(y[train]))
                if name.endswith("index"):
                    score = adjusted_rand_score(y, model.predict(x))
                else:
                    score = 100 * model.score(x[test], y[test])
                found.setdefault(f"{name}/{every}", []).append(score)
    return found


def main():
    found = by_ranks(RANKS, work, __doc__, __file__, seeds=10)
    if found is None:
        return
    rows = []
    for key in found[1]:
        name, every = key.split("/")
        digits = 3 if name.endswith("index") else 1
        means = [f"{statistics.mean(found[ranks][key]):.{digits}f}" for ranks in RANKS]
        rows.append([name, "once a pass" if every == "None" else f"{every} rows", *means])
    print(table(["estimator", "every", *(f"{ranks} ranks" for ranks in RANKS)], rows))


if __name__ == "__main__":
    main()
