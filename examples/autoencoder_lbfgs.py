"""A sparse autoencoder of image patches, by SciPy's L-BFGS-B over the sum of all ranks' costs.

    malt run -n 4 examples/autoencoder_lbfgs.py
    python examples/autoencoder_lbfgs.py              # one rank: the same optimum

Needs SciPy: pip install "malt-sgd[examples]". The data, patches of Fashion-MNIST, are fetched once
(see fashion_mnist.py).

This is how Qjam (Batiz-Benet, Slack, Sparks and Yahya, "Parallelizing Machine Learning Algorithms")
trains: cost and gradient have summation form (Chu et al., NIPS 2006), so each rank computes them
over its patches and one exact sum gives every rank those over all. As every rank gets the same
bits, every rank's L-BFGS-B takes the same step; nothing else is exchanged. The network and its cost
are those of Ng's "Sparse autoencoder" (CS294A lecture notes, sections 2 and 3).
"""

from __future__ import annotations

import argparse
import sys
import time

import fashion_mnist
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

import malt


def parse_knobs() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description="A sparse autoencoder by L-BFGS.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--patches", type=int, default=10_000)
    p.add_argument("--side", type=int, default=8, help="pixels of a patch's edge, up to 28")
    p.add_argument("--hidden", type=int, default=25, help="hidden units")
    p.add_argument("--activity", type=float, default=0.05, help="wanted mean of a hidden unit")
    p.add_argument("--sparsity", type=float, default=1.0, help="weight of that wish")
    p.add_argument("--l2", type=float, default=3e-3, help="weight decay")
    p.add_argument("--iterations", type=int, default=1000, help="of L-BFGS-B, at most")
    p.add_argument("--seed", type=int, default=0)
    knobs = p.parse_args()
    if min(knobs.patches, knobs.hidden, knobs.iterations) < 1 or not 1 <= knobs.side <= 28:
        p.error("--patches, --hidden and --iterations start at 1; --side is from 1 to 28")
    return knobs


def draw_patches(images: np.ndarray, knobs: argparse.Namespace) -> np.ndarray:
    """Rows of side x side pixels, without their mean, cut off at 3 deviations, from 0.1 to 0.9."""
    rng = np.random.default_rng(knobs.seed)
    images = images.reshape(-1, 28, 28)
    which = rng.integers(len(images), size=knobs.patches)
    top, left = rng.integers(29 - knobs.side, size=(2, knobs.patches))
    edge = np.arange(knobs.side)
    rows, columns = top[:, None, None] + edge[:, None], left[:, None, None] + edge
    patches = images[which[:, None, None], rows, columns].reshape(knobs.patches, -1).astype(float)
    patches -= patches.mean(axis=1, keepdims=True)
    limit = 3 * patches.std()
    return 0.5 + 0.4 * np.clip(patches / limit, -1, 1)


class SummedCost:
    """Cost and gradient over the patches of all ranks. Collective to make and to call.

    Two sums a call: the hidden units' activity, on which the gradient depends, then the rest.
    """

    def __init__(self, patches: np.ndarray, knobs: argparse.Namespace) -> None:
        self.x, self.knobs = malt.shard(patches), knobs
        self.count, pixels = patches.shape
        hidden = knobs.hidden
        self.shapes = [(pixels, hidden), (hidden, pixels), (hidden,), (pixels,)]
        self.parameters = sum(int(np.prod(shape)) for shape in self.shapes)
        self.activity = malt.vector(hidden, dtype=np.float64)
        self.sums = malt.vector(self.parameters + 1, dtype=np.float64)  # the cost at the end
        self.calls = 0

    def start(self) -> np.ndarray:
        """Weights drawn evenly, biases 0; the same on all ranks."""
        rng = np.random.default_rng(self.knobs.seed)
        pixels, hidden = self.shapes[0]
        limit = np.sqrt(6 / (pixels + hidden + 1))
        weights = rng.uniform(-limit, limit, size=2 * pixels * hidden)
        return np.concatenate([weights, np.zeros(hidden + pixels)])

    def parts(self, flat: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])
        pieces = np.split(flat[: ends[-1]], ends[:-1])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        self.calls += 1
        knobs, x, m = self.knobs, self.x, self.count
        w1, w2, b1, b2 = self.parts(theta)
        hidden = expit(x @ w1 + b1)
        self.activity.array[:] = hidden.sum(axis=0) / m
        self.activity.allreduce(malt.SUM)
        active, wanted = self.activity.array, knobs.activity
        pull = knobs.sparsity * ((1 - wanted) / (1 - active) - wanted / active)

        output = expit(hidden @ w2 + b2)
        error = output - x
        at_output = error * output * (1 - output)
        at_hidden = (at_output @ w2.T + pull) * hidden * (1 - hidden)
        sums = self.sums.array
        d_w1, d_w2, d_b1, d_b2 = self.parts(sums)
        d_w1[:], d_w2[:] = x.T @ at_hidden / m, hidden.T @ at_output / m
        d_b1[:], d_b2[:] = at_hidden.sum(axis=0) / m, at_output.sum(axis=0) / m
        sums[-1] = (error**2).sum() / (2 * m)
        self.sums.allreduce(malt.SUM)

        gradient = sums[:-1].copy()
        weights = w1.size + w2.size
        gradient[:weights] += knobs.l2 * theta[:weights]
        divergence = wanted * np.log(wanted / active)
        divergence += (1 - wanted) * np.log((1 - wanted) / (1 - active))
        decay = knobs.l2 / 2 * theta[:weights] @ theta[:weights]
        return float(sums[-1] + decay + knobs.sparsity * divergence.sum()), gradient


def main() -> None:
    knobs = parse_knobs()
    try:
        images = fashion_mnist.load().x_train
    except fashion_mnist.DataError as error:
        sys.exit(str(error))
    malt.init()
    cost = SummedCost(draw_patches(images, knobs), knobs)
    theta = cost.start()
    first, _ = cost(theta)
    start = time.perf_counter()
    found = minimize(
        cost, theta, jac=True, method="L-BFGS-B", options={"maxiter": knobs.iterations}
    )
    seconds = time.perf_counter() - start
    if malt.rank() == 0:
        how = "converged" if found.success else "stopped"
        print(
            f"{malt.size()} ranks, {knobs.patches:,} patches: cost {first:.4f} -> {found.fun:.6f} "
            f"({how}) in {found.nit} iterations, {cost.calls} sums, {seconds:.2f} s"
        )
    malt.finalize()


if __name__ == "__main__":
    main()
