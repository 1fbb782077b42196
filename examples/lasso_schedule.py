"""The lasso with its columns divided among ranks, anew in each round: STRADS on
malt.optimize.schedule.

    malt run -n 2 examples/lasso_schedule.py
    malt run -n 2 examples/lasso_schedule.py --random --staleness 0

A round updates some columns on each rank at the same time. The schedule draws candidates, more
often those that changed most of late, and leaves out those that are correlated with another one:
their updates would disturb one another. All ranks draw the same, from the same seed and state. The
objective is compared with malt.learn.Lasso's, which does the same in a compiled kernel, to a known
gap. Lee et al. 2014, On Model Parallelization and Scheduling Strategies for Distributed Machine
Learning.
"""

import argparse

import numpy as np

import malt

rows, columns, alpha = 400, 2000, 0.05
candidates, of_a_rank, bound, unseen = 64, 8, 0.2, 10.0

arguments = argparse.ArgumentParser()
arguments.add_argument("--rounds", type=int, default=3000)
arguments.add_argument("--close", type=float, default=1e-2, help="to the least objective: the end")
arguments.add_argument("--staleness", type=int, default=1)
arguments.add_argument("--random", action="store_true", help="draw all columns equally often")
arguments = arguments.parse_args()


class ScheduledLasso:
    def __init__(self, X, y):
        self.X, self.w = X, np.zeros(columns)
        self.residual = y.copy()
        self.changes = np.full(columns, unseen)  # each column's last one
        self.random = np.random.default_rng(0)  # of the same seed on all ranks
        self.flight = []  # parts that are not pulled yet
        self.updates = 0

    def objective(self):
        return self.residual @ self.residual / (2 * rows) + alpha * np.abs(self.w).sum()

    def schedule(self, ranks):
        if self.objective() <= least * (1 + arguments.close):
            return None
        odds = np.ones(columns) if arguments.random else self.changes + 1e-4
        odds[[j for parts in self.flight for part in parts for j in part]] = 0
        drawn = self.random.choice(columns, candidates, replace=False, p=odds / odds.sum())
        correlations = np.corrcoef(self.X[:, drawn], rowvar=False)
        picked = malt.optimize.schedule.independent(
            odds[drawn], correlations, bound=bound, most=ranks * of_a_rank
        )
        parts = np.array_split(drawn[picked], ranks)
        self.flight.append(parts)
        return parts

    def push(self, part):
        X, squares = self.X[:, part], (self.X[:, part] ** 2).sum(axis=0)
        target = self.w[part] * squares + X.T @ self.residual
        w = np.sign(target) * np.maximum(0, np.abs(target) - rows * alpha) / squares
        return w - self.w[part]

    def pull(self, results):
        self.flight.pop(0)
        for _, part, values in results:
            change = values[: len(part)]
            self.w[part] += change
            self.residual -= self.X[:, part] @ change
            self.changes[part] = np.abs(change)
            self.updates += len(part)


malt.init()
random = np.random.default_rng(1)
X = random.standard_normal((rows, columns))
X[:, 1:] += 0.5 * X[:, :-1]
y = X[:, ::100] @ random.standard_normal(columns // 100) + random.standard_normal(rows) / 2
exact = malt.learn.Lasso(alpha, fit_intercept=False).fit(X, y)  # on the ranks of this job
least = exact.objective_

program = ScheduledLasso(X, y)
rounds = malt.optimize.schedule.run(
    program, length=of_a_rank, rounds=arguments.rounds, staleness=arguments.staleness
)
if malt.rank() == 0:
    print(
        f"{rounds} rounds, {program.updates} updates: {program.objective() / least - 1:.1e} above "
        f"malt.learn.Lasso's {least:.6f} ({exact.n_updates_} updates, gap {exact.dual_gap_:.1e})"
    )
