"""scikit-learn: MLPClassifier, fed by partial_fit in batches from a loop."""

import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.neural_network import MLPClassifier

import malt  # +

x, y = make_classification(
    14_000, 60, n_informative=30, n_classes=8, n_clusters_per_class=3, random_state=0
)
x, y, x_test, y_test = x[4_000:], y[4_000:], x[:4_000], y[:4_000]
classes = np.unique(y)
model = MLPClassifier((100,), learning_rate_init=0.002, random_state=0)
malt.init()  # +
x, y = malt.shard(x, even=True), malt.shard(y, even=True)  # +
model = malt.learn.wrap(model)  # +

random = np.random.default_rng(0)
start, own = time.perf_counter(), time.process_time()
for _ in range(12):
    order = random.permutation(len(x))
    for rows in np.split(order, range(200, len(x), 200)):
        model.partial_fit(x[rows], y[rows], classes=classes)
own, seconds = time.process_time() - own, time.perf_counter() - start

right = 100 * model.score(x_test, y_test)
print(f"score {right:.4f} seconds {seconds:.3f} processor {own:.3f}")
