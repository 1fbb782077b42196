"""A sparse autoencoder by L-BFGS, from one process, as Qjam's master trains it.

    python examples/pool/autoencoder.py

Needs SciPy and cloudpickle: pip install "malt-sgd[examples,pool]". The patches are smooth noise.
The network and its cost are those of Ng's "Sparse autoencoder" (CS294A lecture notes, sections 2
and 3). The hidden units' mean activity is a first sum, on which the second one depends.
examples/autoencoder_lbfgs.py is the same without a process that leads.
"""

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.optimize import minimize
from scipy.special import expit

import malt

PATCHES, SIDE, HIDDEN = 10_000, 8, 25
ACTIVITY, SPARSITY, DECAY = 0.05, 1.0, 3e-3
SHAPES = [(SIDE**2, HIDDEN), (HIDDEN, SIDE**2), (HIDDEN,), (SIDE**2,)]


def draw_patches(count):
    rng = np.random.default_rng(0)
    image = gaussian_filter(rng.normal(size=(1024, 1024)), 1.5)
    windows = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE))
    top, left = rng.integers(1024 - SIDE, size=(2, count))
    patches = windows[top, left].reshape(count, -1)
    patches = patches - patches.mean(axis=1, keepdims=True)
    return 0.5 + 0.4 * np.clip(patches / (3 * patches.std()), -1, 1)


def parts(theta):
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    return [p.reshape(shape) for p, shape in zip(np.split(theta, ends), SHAPES, strict=True)]


def activity(theta, x):
    w1, _, b1, _ = parts(theta)
    return expit(x @ w1 + b1).sum(axis=0)


def cost_and_gradient(given, x):
    theta, pull = given
    w1, w2, b1, b2 = parts(theta)
    hidden = expit(x @ w1 + b1)
    output = expit(hidden @ w2 + b2)
    error = output - x
    at_output = error * output * (1 - output)
    at_hidden = (at_output @ w2.T + pull) * hidden * (1 - hidden)
    slopes = x.T @ at_hidden, hidden.T @ at_output, at_hidden.sum(axis=0), at_output.sum(axis=0)
    return (error**2).sum() / 2, np.concatenate([slope.ravel() for slope in slopes])


class Cost:
    """Cost and gradient over all patches that a pool has."""

    def __init__(self, pool, patches):
        self.pool, self.count, self.data = pool, len(patches), pool.share(patches)

    def __call__(self, theta):
        active = self.pool.sum(activity, theta, self.data) / self.count
        pull = SPARSITY * ((1 - ACTIVITY) / (1 - active) - ACTIVITY / active)
        cost, gradient = self.pool.sum(cost_and_gradient, (theta, pull), self.data)
        weights = 2 * SIDE**2 * HIDDEN
        gradient = gradient / self.count
        gradient[:weights] += DECAY * theta[:weights]
        divergence = ACTIVITY * np.log(ACTIVITY / active)
        divergence += (1 - ACTIVITY) * np.log((1 - ACTIVITY) / (1 - active))
        decay = DECAY / 2 * theta[:weights] @ theta[:weights]
        return cost / self.count + decay + SPARSITY * divergence.sum(), gradient


def start():
    limit = np.sqrt(6 / (SIDE**2 + HIDDEN + 1))
    weights = np.random.default_rng(0).uniform(-limit, limit, size=2 * SIDE**2 * HIDDEN)
    return np.concatenate([weights, np.zeros(HIDDEN + SIDE**2)])


def main():
    with malt.Pool() as pool:
        cost = Cost(pool, draw_patches(PATCHES))
        first, _ = cost(start())
        found = minimize(cost, start(), jac=True, method="L-BFGS-B", options={"maxiter": 50})
    print(f"cost {first:.4f} -> {found.fun:.4f} in {found.nit} iterations")


if __name__ == "__main__":
    main()
