"""Plain NumPy: a network with two hidden layers and hand-written SGD, on scikit-learn's digits."""

import itertools
import time

import numpy as np
from sklearn.datasets import load_digits

import malt  # +


class Network:
    def __init__(self, sizes, random):
        pairs = list(itertools.pairwise(sizes))
        self.weights = [random.normal(size=pair) * np.sqrt(2 / pair[0]) for pair in pairs]
        self.biases = [np.zeros(size) for size in sizes[1:]]

    def forward(self, x):
        outputs = [x]
        for w, b in zip(self.weights, self.biases, strict=True):
            x = x @ w + b
            outputs.append(np.maximum(x, 0))
        return outputs, x

    def gradients(self, x, y):
        outputs, logits = self.forward(x)
        delta = np.exp(logits - logits.max(axis=1, keepdims=True))
        delta /= delta.sum(axis=1, keepdims=True)
        delta[np.arange(len(y)), y] -= 1
        delta /= len(y)
        found = []
        for n in reversed(range(len(self.weights))):
            found.insert(0, (outputs[n].T @ delta, delta.sum(axis=0)))
            delta = delta @ self.weights[n].T * (outputs[n] > 0)
        return zip(*found, strict=True)

    def step(self, x, y, rate):
        by_weights, by_biases = self.gradients(x, y)
        # - self.weights = [w - rate * g for w, g in zip(self.weights, by_weights, strict=True)]
        # - self.biases = [b - rate * g for b, g in zip(self.biases, by_biases, strict=True)]
        for p, g in zip(self.weights + self.biases, by_weights + by_biases, strict=True):  # +
            p -= rate * g  # +


x, y = load_digits(return_X_y=True)
random = np.random.default_rng(0)
order = random.permutation(len(x))
x, y = x[order] / 16, y[order]
x, y, x_test, y_test = x[450:], y[450:], x[:450], y[:450]
network = Network([64, 128, 64, 10], random)
malt.init()  # +
x, y = malt.shard(x), malt.shard(y)  # +
v = malt.vector(network.weights + network.biases)  # +

start, own = time.perf_counter(), time.process_time()
for _ in range(40):
    order = random.permutation(len(x))
    for rows in np.split(order, range(10, len(x), 10)):
        network.step(x[rows], y[rows], rate=0.05)
    v.allreduce(malt.AVG)  # +
own, seconds = time.process_time() - own, time.perf_counter() - start

right = 100 * np.mean(network.forward(x_test)[1].argmax(axis=1) == y_test)
print(f"score {right:.4f} seconds {seconds:.3f} processor {own:.3f}")
