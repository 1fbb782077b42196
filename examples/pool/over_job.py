"""Least squares by the ranks of a job, on one host or several: the pool of a running job.

    malt run -n 4 examples/pool/over_job.py

Needs cloudpickle: pip install "malt-sgd[pool]".
"""

import numpy as np

import malt


def moments(_, X, y):  # every rank has it by this name
    return X.T @ X, X.T @ y


def main():
    with malt.Pool(over=malt.init()) as pool:
        if pool:  # on rank 0; the other ranks are in malt.Pool() until it closes
            rng = np.random.default_rng(0)
            X = rng.normal(size=(100_000, 30))
            y = X @ np.arange(30) + rng.normal(size=len(X))
            products, targets = pool.sum(moments, None, pool.share(X, y))
            off = abs(np.linalg.solve(products, targets) - np.arange(30)).max()
            print(f"{pool.ranks} ranks, off by at most {off:.4f}")


if __name__ == "__main__":
    main()
