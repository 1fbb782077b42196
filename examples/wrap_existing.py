"""Logistic regression by stochastic gradient descent, in plain NumPy: before and after MALT.

    python examples/wrap_existing_serial.py     # before: one process
    malt run -n 4 examples/wrap_existing.py     # after

This command shows the lines that were added, an import and three more:
    diff examples/wrap_existing_serial.py examples/wrap_existing.py
"""

import numpy as np

import malt

examples, features = 20_000, 500
epochs, batch, rate = 5, 20, 0.5


def generate(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.standard_normal((examples, features), dtype=np.float32)
    truth = rng.standard_normal(features, dtype=np.float32)
    noise = rng.logistic(size=examples)
    return x, (x @ truth / 4 + noise > 0).astype(np.float32)


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    probability = 1 / (1 + np.exp(-(x @ w)))
    return x.T @ (probability - y) / len(y)


def accuracy(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((x @ w > 0) == (y > 0)))


x, y = generate(np.random.default_rng(0))
x, y, x_test, y_test = x[5_000:], y[5_000:], x[:5_000], y[:5_000]
w = np.zeros(features, dtype=np.float32)
malt.init()
x, y, m = malt.shard(x), malt.shard(y), malt.vector(w)

rng = np.random.default_rng(1)
for epoch in range(epochs):
    order = rng.permutation(len(x))
    for rows in np.array_split(order, len(x) // batch):
        w -= rate * gradient(w, x[rows], y[rows])
    m.allreduce(malt.AVG)
    rate *= 0.6
    print(f"epoch {epoch + 1}: test accuracy {accuracy(w, x_test, y_test):.3f}")
