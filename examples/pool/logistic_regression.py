"""Logistic regression by L-BFGS, from one process: cost and gradient are sums over rows.

    python examples/pool/logistic_regression.py

Needs SciPy and cloudpickle: pip install "malt-sgd[examples,pool]".
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

import malt

rng = np.random.default_rng(0)
X = rng.normal(size=(100_000, 20))
y = np.where(X @ rng.normal(size=20) + rng.logistic(size=len(X)) > 0, 1.0, -1.0)


def cost_and_gradient(w, X, y):
    margin = y * (X @ w)
    return np.logaddexp(0, -margin).sum(), -X.T @ (y * expit(-margin))


def main():
    with malt.Pool() as pool:
        data = pool.share(X, y)
        found = minimize(
            lambda w: pool.sum(cost_and_gradient, w, data),
            np.zeros(X.shape[1]),
            jac=True,
            method="L-BFGS-B",
        )
    accuracy = np.mean(np.sign(X @ found.x) == y)
    print(f"loss {found.fun / len(X):.4f} in {found.nit} iterations, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
