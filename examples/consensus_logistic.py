"""Logistic regression by consensus: each rank solves its own rows, with a solver of its own.

    malt run -n 2 examples/consensus_logistic.py
    malt run -n 4 examples/consensus_logistic.py --quorum 0.5

Every rank minimises the loss of its rows, drawn to what all ranks have in common; only weights
travel. The result is the optimum over all rows, not a mean of the ranks' own optima. With --quorum
a rank goes on when so many of the others have sent an update. Boyd et al. 2011, section 8.1.
"""

import argparse

import numpy as np

import malt

rows, columns, ridge = 2000, 20, 1.0  # rows of each rank

arguments = argparse.ArgumentParser()
arguments.add_argument("--rho", type=float, default=10.0)
arguments.add_argument("--quorum", type=float, help="of the other ranks; else all, in step")
arguments.add_argument("--rtol", type=float, default=1e-5)
arguments = arguments.parse_args()


def newton(X, y, w, rho, target, steps=3):
    """Come closer to the minimum of the loss of these rows + rho/2 |w - target|^2."""
    for _ in range(steps):
        p = 1 / (1 + np.exp(-X @ w))
        gradient = X.T @ (p - y) + rho * (w - target)
        w = w - np.linalg.solve((X.T * (p * (1 - p))) @ X + rho * np.eye(len(w)), gradient)
    return w


def loss(w, X, y):
    margins = X @ w
    return np.sum(np.logaddexp(0, margins) - y * margins)


malt.init()
random = np.random.default_rng(malt.rank())
X = (
    random.standard_normal((rows, columns)) + malt.rank() / 4
)  # each rank's rows are of another kind
truth = np.cos(np.arange(columns))
y = (random.random(rows) < 1 / (1 + np.exp(-X @ truth / 2))) * 1.0


def ridge_prox(v, step):  # of g(z) = ridge/2 |z|^2, which the ranks have in common
    return v / (1 + step * ridge)


w = np.zeros(columns)
c = malt.optimize.Consensus(
    w, arguments.rho, prox=ridge_prox, quorum=arguments.quorum, rtol=arguments.rtol
)
while not c.converged:
    w[:] = newton(X, y, w, c.rho, c.target)
    c.exchange()


def total(w):
    """The objective over all ranks' rows."""
    return malt.allreduce(float(loss(w, X, y)), malt.SUM) + ridge / 2 * w @ w


# The same problem with all rows in one place: the ridge term is a penalty to 0.
all_X, all_y = (malt.allreduce(each, list) for each in (X, y))
exact = newton(np.vstack(all_X), np.hstack(all_y), np.zeros(columns), ridge, 0, steps=30)
own = newton(X, y, np.zeros(columns), ridge, 0, steps=30)
least, consensus, averaged = total(exact), total(c.z), total(malt.allreduce(own))
if malt.rank() == 0:
    print(
        f"{c.rounds} rounds: {consensus / least - 1:.1e} above the optimum {least:.2f}; the mean of"
        f" the ranks' own optima is {averaged / least - 1:.1e} above it"
    )
