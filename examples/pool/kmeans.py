"""k-means, from one process: counts, sums and distances of the clusters are sums over rows.

    python examples/pool/kmeans.py

Needs SciPy and cloudpickle: pip install "malt-sgd[examples,pool]".
"""

import numpy as np
from scipy.spatial.distance import cdist

import malt

K = 5
rng = np.random.default_rng(0)
middles = rng.normal(scale=4, size=(K, 10))
X = middles[rng.integers(K, size=100_000)] + rng.normal(size=(100_000, 10))


def assign(centres, X):
    distances = cdist(X, centres, "sqeuclidean")
    nearest = distances.argmin(axis=1)
    member = np.eye(len(centres))[nearest]
    return member.sum(axis=0), member.T @ X, distances.min(axis=1).sum()


def main():
    centres, before = X[:K], np.inf
    with malt.Pool() as pool:
        data = pool.share(X)
        while True:
            counts, sums, inertia = pool.sum(assign, centres, data)
            if inertia >= before * (1 - 1e-9):
                break
            centres, before = sums / np.maximum(counts, 1)[:, None], inertia
    print(f"inertia {inertia / len(X):.4f} a row, clusters of {np.sort(counts).astype(int)} rows")


if __name__ == "__main__":
    main()
