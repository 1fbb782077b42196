"""Principal components, from one process: the moments are sums over rows.

    python examples/pool/pca.py

Needs cloudpickle: pip install "malt-sgd[pool]".
"""

import numpy as np

import malt

rng = np.random.default_rng(0)
X = rng.normal(size=(100_000, 3)) @ rng.normal(size=(3, 30)) + rng.normal(size=(100_000, 30)) / 10


def moments(_, X):
    return len(X), X.sum(axis=0), X.T @ X


def main():
    with malt.Pool() as pool:
        rows, total, products = pool.sum(moments, None, pool.share(X))
    mean = total / rows
    variances, components = np.linalg.eigh(products / rows - np.outer(mean, mean))
    explained = variances[::-1][:3].sum() / variances.sum()
    print(f"3 of {len(components)} components explain {100 * explained:.1f}% of the variance")


if __name__ == "__main__":
    main()
