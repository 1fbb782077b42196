"""Graph factorisation with replicated boundary vertices: consensus on the rows that ranks share.

    malt run -n 4 examples/graph_factorization.py
    malt run -n 4 examples/graph_factorization.py --max-delay 4

Each rank has some edges of a graph, and a vector for each vertex of these edges. The products of
two vectors come close to the values of the edges. A vertex with edges on several ranks has a copy
on each: `ids` names the vertices, and the consensus makes their copies equal. Ranks only come near
the minimum of their function in each round, by a few steps of gradient descent. Ahmed et al. 2013,
Distributed Large-scale Natural Graph Factorization.
"""

import argparse

import numpy as np

import malt

of_a_rank, width, inside, across, noise, ridge = 30, 4, 0.5, 0.05, 0.1, 0.1
steps, rate = 5, 0.02

arguments = argparse.ArgumentParser()
arguments.add_argument("--rho", type=float, default=5.0)
arguments.add_argument("--rounds", type=int, default=300)
arguments.add_argument(
    "--max-delay", type=int, help="asynchronous: rounds without an update of a rank"
)
arguments = arguments.parse_args()


def graph(ranks):
    """Edges, their values, and the rank of each: that of one of its vertices."""
    random = np.random.default_rng(0)
    vertices = of_a_rank * ranks
    block = np.arange(vertices) // of_a_rank
    odds = np.where(block[:, None] == block, inside, across)
    edges = np.argwhere(np.triu(random.random((vertices, vertices)) < odds, 1))
    truth = random.standard_normal((vertices, width))
    values = errors(truth, edges, noise * random.standard_normal(len(edges)))
    return edges, values, block[edges[np.arange(len(edges)), random.integers(2, size=len(edges))]]


def errors(x, edges, values):
    return (x[edges[:, 0]] * x[edges[:, 1]]).sum(1) - values


def objective(x, edges, values):
    squares = sum((x[ends] ** 2).sum() for ends in edges.T)
    return np.sum(errors(x, edges, values) ** 2) / 2 + ridge / 2 * squares


def gradient(x, edges, values):
    e, change = errors(x, edges, values)[:, None], np.zeros_like(x)
    for one, other in (edges.T, edges.T[::-1]):
        np.add.at(change, one, e * x[other] + ridge * x[one])
    return change


malt.init()
edges, values, owner = graph(malt.size())
start = 0.3 * np.random.default_rng(1).standard_normal((of_a_rank * malt.size(), width))
mine = owner == malt.rank()
ids, local = np.unique(edges[mine], return_inverse=True)  # this rank's vertices; edges by their row
local = local.reshape(-1, 2)

x = start[ids]
c = malt.optimize.Consensus(x, arguments.rho, ids=ids, max_delay=arguments.max_delay, rtol=1e-3)
pull = c.is_shared[:, None].copy()  # no penalty for a vertex that only this rank has
while not c.converged and c.rounds < arguments.rounds:
    for _ in range(steps):
        x -= rate * (gradient(x, local, values[mine]) + c.rho * pull * (x - c.target))
    c.exchange()
c.close()  # where a rank has ended by its rounds, the others no longer wait for it

# The mean of all copies, which are equal if the rounds have converged.
copies, holders = np.zeros_like(start), np.zeros((len(start), 1))
copies[ids], holders[ids] = c.z, 1
everywhere = malt.allreduce(holders, malt.SUM)
found = malt.allreduce(copies, malt.SUM) / np.maximum(everywhere, 1)

# The same steps in one place, on all edges.
alone = start.copy()
for _ in range(steps * arguments.rounds):
    alone -= rate * gradient(alone, edges, values)
if malt.rank() == 0:
    print(
        f"{len(edges)} edges, {(everywhere > 1).sum()} of {len(start)} vertices on several ranks; "
        f"{c.rounds} rounds: objective {objective(found, edges, values):.1f}, in one place "
        f"{objective(alone, edges, values):.1f}"
    )
