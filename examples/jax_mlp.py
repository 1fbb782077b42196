"""A JAX network on Fashion-MNIST, trained by Optax on several ranks that average their models.

    malt run -n 2 examples/jax_mlp.py
    python examples/jax_mlp.py             # one rank: the serial loop

Needs JAX, Optax and SciPy: pip install jax optax scipy. The loop becomes parallel by `malt.shard`
and the two lines with `average`.
"""

import argparse

import fashion_mnist
import jax
import jax.numpy as jnp
import numpy as np
import optax

import malt

arguments = argparse.ArgumentParser()
arguments.add_argument("--epochs", type=int, default=4, help="passes over all pictures")
arguments.add_argument("--every", type=int, default=16, help="steps from one average to the next")
arguments = arguments.parse_args()
BATCH = 64

malt.init()
data = fashion_mnist.load()
x, y = malt.shard(data.x_train, even=True), malt.shard(data.y_train, even=True)

keys = jax.random.split(jax.random.key(0), 2)  # all ranks start with the same weights
params = [
    (jax.random.normal(key, (n, m)) * jnp.sqrt(2 / n), jnp.zeros(m))
    for key, n, m in zip(keys, (784, 256), (256, 10), strict=True)
]
optimizer = optax.sgd(0.05, momentum=0.9)
state = optimizer.init(params)


def scores(params, x):
    (w1, b1), (w2, b2) = params
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, x), y).mean()


@jax.jit
def step(params, state, x, y):
    changes, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
    return optax.apply_updates(params, changes), state


rng = np.random.default_rng(malt.rank())
for epoch in range(1, arguments.epochs + 1):
    batches = np.array_split(rng.permutation(len(x)), len(x) // BATCH)
    for k, rows in enumerate(batches, 1):
        params, state = step(params, state, x[rows], y[rows])
        if k % arguments.every == 0:
            params = malt.jax.average(params)
    params = malt.jax.average(params)
    right = float((scores(params, data.x_test).argmax(axis=1) == data.y_test).mean())
    if malt.rank() == 0:
        print(f"epoch {epoch}: {right:.1%} of the test pictures right")
