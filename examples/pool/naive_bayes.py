"""Naive Bayes on word counts, from one process: the classes' counts are sums over rows.

    python examples/pool/naive_bayes.py

Needs SciPy and cloudpickle: pip install "malt-sgd[examples,pool]".
"""

import numpy as np
import scipy.sparse as sp

import malt

WORDS, CLASSES = 1000, 4
rng = np.random.default_rng(0)
y = rng.integers(CLASSES, size=20_000)
rates = rng.gamma(0.5, size=(CLASSES, WORDS)) / 100
X = sp.csr_array(rng.poisson(rates[y]))


def count(classes, X, y):
    member = np.eye(classes)[y]
    return member.sum(axis=0), (X.T @ member).T


def main():
    with malt.Pool() as pool:
        documents, words = pool.sum(count, CLASSES, pool.share(X, y))
    prior = np.log(documents / documents.sum())
    likelihood = np.log((words + 1) / (words + 1).sum(axis=1, keepdims=True))
    accuracy = np.mean((X @ likelihood.T + prior).argmax(axis=1) == y)
    print(f"{len(y):,} documents, {int(words.sum()):,} words, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
