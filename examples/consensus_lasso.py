"""The lasso by consensus: rows divided among ranks, and a penalty that they have in common.

    malt run -n 2 examples/consensus_lasso.py
    malt run -n 4 examples/consensus_lasso.py --max-delay 10

The squares of each rank's rows are its own function. The L1 norm is common to all ranks: it is the
`prox` of the consensus, a soft threshold. Each rank factors its matrix once for each value of rho.
The objective is compared with that of malt.learn.Lasso. Boyd et al. 2011, sections 6.4 and 8.2.
"""

import argparse

import numpy as np

import malt

rows, columns, alpha = 300, 100, 0.1  # rows of each rank

arguments = argparse.ArgumentParser()
arguments.add_argument("--rho", type=float, default=1.0)
arguments.add_argument(
    "--max-delay", type=int, help="asynchronous: rounds without an update of a rank"
)
arguments = arguments.parse_args()

malt.init()
everywhere = np.random.default_rng(0)
truth = everywhere.standard_normal(columns) * (everywhere.random(columns) < 0.1)
random = np.random.default_rng(1 + malt.rank())
X = random.standard_normal((rows, columns))
X[:, 1:] += 0.5 * X[:, :-1]
y = X @ truth + random.standard_normal(rows) / 2
n = rows * malt.size()  # the objective is |y - X w|^2 / (2 n) + alpha |w|_1 over all rows


def soft_threshold(v, step):
    return np.sign(v) * np.maximum(0, np.abs(v) - alpha * step)


w = np.zeros(columns)
c = malt.optimize.Consensus(
    w, arguments.rho, prox=soft_threshold, max_delay=arguments.max_delay, rtol=1e-6
)
eigenvalues, basis = np.linalg.eigh(X.T @ X / n)  # solves for every rho
while not c.converged:
    right = basis.T @ (X.T @ y / n + c.rho * c.target)
    w[:] = basis @ (right / (eigenvalues + c.rho))
    c.exchange()

squares = malt.allreduce(float(np.sum((y - X @ c.z) ** 2)), malt.SUM)
objective = squares / (2 * n) + alpha * np.abs(c.z).sum()
all_X, all_y = np.vstack(malt.allreduce(X, list)), np.hstack(malt.allreduce(y, list))
exact = malt.learn.Lasso(alpha, fit_intercept=False).fit(all_X, all_y)
if malt.rank() == 0:
    print(
        f"{c.rounds} rounds, {np.count_nonzero(c.z)} of {columns} weights: "
        f"{objective / exact.objective_ - 1:.1e} above malt.learn.Lasso's {exact.objective_:.6f}"
    )
