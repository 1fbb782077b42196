"""Logistic regression over a table whose rows lie where they are used: malt.data.partition.

    MALT_TRANSPORT=tcp malt run -n 2 examples/partition.py

The examples are of groups, such as topics or shops; most features of an example are those of its
group. The program trains twice: on examples dealt out in turn, with the table's rows where hashing
puts them; and with both where malt.data.partition puts them. Much less travels, to about the same
loss. Over TCP, as between hosts, pulls and pushes are messages; without MALT_TRANSPORT=tcp the
ranks of a host read the table in place. Parsa: Li, Andersen, Smola 2015.
"""

import argparse

import numpy as np
from scipy import sparse

import malt

examples, features, groups, of_example = 20_000, 20_000, 40, 12
rate, batches = 0.01, 50

arguments = argparse.ArgumentParser()
arguments.add_argument("--passes", type=int, default=3)
arguments.add_argument("--any", type=float, default=0.1, help="share of features of any group")
arguments = arguments.parse_args()

malt.init()
random = np.random.default_rng(0)  # all ranks draw the same
popular = (random.zipf(1.3, (examples, of_example)) - 1) % features
of_group = popular % (features // groups) * groups + random.integers(0, groups, (examples, 1))
columns = np.where(random.random(popular.shape) < arguments.any, popular, of_group)
starts = np.arange(0, columns.size + 1, of_example)
X = sparse.csr_matrix((np.ones(columns.size), columns.ravel(), starts), (examples, features))
X.sum_duplicates()
truth = random.normal(0, 1, features)
y = random.random(examples) < 1 / (1 + np.exp(-(X @ truth)))


def train(mine, partition):
    """The loss, and the bytes that this rank's calls moved to and from other ranks."""
    with malt.ps.Table(
        features, update=malt.ps.SGD(rate), dtype=np.float64, staleness=1, partition=partition
    ) as table:
        for _ in range(arguments.passes):
            for batch in np.array_split(mine, batches):
                keys = np.unique(X[batch].indices).astype(np.int64)
                part = X[batch][:, keys]
                error = 1 / (1 + np.exp(-(part @ table.pull(keys)))) - y[batch]
                table.push(keys, part.T @ error)
                table.clock()
        moved = table.stats()  # before the whole table is pulled
        scores = X @ table.pull()
        loss = np.mean(np.logaddexp(0, np.where(y, -scores, scores)))
        return loss, moved.bytes_out + moved.bytes_in - moved.bytes_own


rank, size = malt.rank(), malt.size()
p = malt.data.partition(X, size)
for name, mine, given in (
    ("in turn", np.arange(rank, examples, size), None),
    ("malt.data.partition", p.rows_of(rank), p),
):
    loss, moved = train(np.random.default_rng(1).permutation(mine), given)
    total = malt.vector(np.array([float(moved)]))
    total.allreduce(malt.SUM)
    if rank == 0:
        print(f"{name}: loss {loss:.3f}, {total.array[0] / 1e6:.2f} MB")
if rank == 0:
    traffic = p.traffic(X)
    print(f"columns that travel in a pass: {traffic.total:,}, at random {traffic.random:,.0f}")
