"""L1-regularised logistic regression by FTRL-proximal: over a parameter server, and averaged.

    malt run -n 2 examples/ftrl.py

The data are clicks: an example has ten features out of 20,000, few of them frequent, most rare. The
served program pulls the weights of a batch's features and pushes their gradients; the servers are
the ranks themselves. The averaged one keeps FTRL's state on every rank and averages it. Both end
when the loss on held-out examples is low enough. FTRL: McMahan et al., KDD 2013, algorithm 1.
"""

import argparse
import time

import numpy as np

import malt

features, fields, batch, held_out = 20_000, 10, 200, 20_000
alpha, l1 = 1.0, 0.2

arguments = argparse.ArgumentParser()
arguments.add_argument("--loss", type=float, default=0.59, help="of the held-out examples, the end")
arguments.add_argument("--most", type=int, default=1500, help="batches of a rank")
arguments = arguments.parse_args()

malt.init()
truth = np.random.default_rng(0).normal(0, 2, features) * (np.arange(features) % 5 == 0)
popular = (np.random.default_rng(1).zipf(1.3, size=4_000_000) - 1) % features


def draw(rng, count):
    x = popular[rng.integers(len(popular), size=(count, fields))]
    return x, rng.random(count) < 1 / (1 + np.exp(-truth[x].sum(1)))


def gradients(w, x, y):
    """The keys of a batch's features, and the mean gradient of each."""
    keys, place = np.unique(x, return_inverse=True)
    place = place.reshape(x.shape)
    error = 1 / (1 + np.exp(-w(keys)[place].sum(1))) - y
    return keys, np.bincount(place.ravel(), np.repeat(error, fields)) / np.sqrt(batch)


def loss(w):
    score = w[x_test].sum(1)
    return np.mean(np.logaddexp(0, np.where(y_test, -score, score)))


def weights(z, n):
    shrunk = np.where(np.abs(z) <= l1, 0, z - np.sign(z) * l1)
    return -shrunk * alpha / (1 + np.sqrt(n))


def served(table):
    """Yields after each batch; gives the weights when asked."""
    while True:
        table.push(*gradients(table.pull, *draw(rng, batch)))
        table.clock()
        yield lambda: table.pull(), table.stats().bytes_out + table.stats().bytes_in


def averaged(vector, z, n):
    while True:
        keys, g = gradients(lambda keys: weights(z[keys], n[keys]), *draw(rng, batch))
        z[keys] += g - (np.sqrt(n[keys] + g**2) - np.sqrt(n[keys])) / alpha * weights(
            z[keys], n[keys]
        )
        n[keys] += g**2
        vector.scatter()
        vector.gather(malt.AVG, staleness=0)
        yield lambda: weights(z, n), vector.stats().bytes_out + vector.stats().bytes_in


def train(name, batches):
    reached = malt.vector(np.zeros(1), name=name)
    seconds, updates, moved, value = 0.0, 0, 0, np.inf
    while value > arguments.loss and updates < arguments.most:
        start = time.perf_counter()
        for _ in range(50):
            w, moved = next(batches)
        seconds, updates = seconds + time.perf_counter() - start, updates + 50
        reached.array[0] = loss(w())
        reached.allreduce(malt.AVG)  # so all ranks end together
        value = reached.array[0]
    if malt.rank() == 0:
        zeros = np.mean(w() == 0)
        print(
            f"{name}: loss {value:.3f} after {updates} batches a rank, {seconds:.2f} s, "
            f"{moved / 1e6:.1f} MB of rank 0, {zeros:.0%} of the weights are 0",
            flush=True,
        )


x_test, y_test = draw(np.random.default_rng(2), held_out)
rng = np.random.default_rng(10 + malt.rank())
rule = malt.ps.FTRL(alpha, l1=l1)
with malt.ps.Table(features, update=rule, dtype=np.float64, staleness=1) as table:
    train("served", served(table))

rng = np.random.default_rng(10 + malt.rank())
z, n = np.zeros(features), np.zeros(features)
train("averaged", averaged(malt.vector([z, n]), z, n))
