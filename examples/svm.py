"""MALT-SVM: a linear SVM on real text, trained by stochastic gradient descent on one or many ranks.

    malt run -n 4 examples/svm.py                                  # BSP over ALL
    malt run -n 4 examples/svm.py --graph halton --staleness none      # nobody waits for anybody
    malt run -n 4 examples/svm.py --average gradient               # exchange gradients, not models
    mpirun -n 4 python examples/svm.py                             # the same under MPI
    python examples/svm.py                                         # one process: the serial loop
    python examples/svm.py --demo                                  # 1 and more ranks, a picture

Needs SciPy, and Matplotlib for --demo: pip install "malt-sgd[examples]". The data, 20 Newsgroups as
"comp.* or not", is fetched once (see newsgroups.py); --demo takes 40 times as many documents, which
are made (see made_text.py).

Compare `train_serial` with `train_malt`: besides the line that shares `w`, two calls were added.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import made_text
import newsgroups
import numpy as np
import scipy.sparse as sp

import malt

GRAPHS = {
    "all": malt.ALL,
    "halton": malt.HALTON,
    "ring": malt.RING,
    "exponential": malt.EXPONENTIAL,
    "one_peer": malt.ONE_PEER,
    "random": malt.RANDOM(k=1, seed=0),
}
# The demo's own defaults: work that takes one core ten seconds and more.
DEMO = {"made": 500_000, "epochs": 10, "rate": 32.0, "l2": 1e-6}


def parse_knobs() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description="MALT-SVM on 20 Newsgroups.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--average", choices=["model", "gradient"], default="model", help="what is sent")
    p.add_argument("--graph", choices=GRAPHS, default="all", help="who sends to whom")
    p.add_argument("--staleness", default="0", help="iterations that others may be behind, or none")
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--batch", type=int, default=16, help="examples in one rank's SGD step")
    p.add_argument("--every", type=int, default=8, help="SGD steps from one update to the next")
    p.add_argument("--rate", type=float, default=16.0, help="first learning rate, times the ranks")
    p.add_argument("--l2", type=float, default=1e-5, help="strength of the L2 penalty")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--made", type=int, default=0, metavar="ROWS", help="made documents instead")
    p.add_argument("--results", type=Path, metavar="FILE", help="write what was measured, as JSON")
    demo = p.add_argument_group("comparing one rank with several")
    demo.add_argument("--demo", action="store_true", help="train on 1 rank and on several")
    demo.add_argument("--ranks", type=int, nargs="+", help="default: one a core, at most 8; and 4")
    demo.add_argument("--repeats", type=int, default=1, help="runs of each, with other seeds")
    demo.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture")
    knobs = p.parse_args()
    if knobs.demo:
        p.set_defaults(**DEMO)
        knobs = p.parse_args()
    if min(knobs.epochs, knobs.batch, knobs.every, knobs.repeats, *knobs.ranks or [1]) < 1:
        p.error("--epochs, --batch, --every, --ranks and --repeats start at 1")
    try:
        knobs.staleness = None if knobs.staleness == "none" else int(knobs.staleness)
    except ValueError:
        p.error(f"--staleness {knobs.staleness}: give a whole number of iterations, or none")
    return knobs


# ---- The model: hinge loss with an L2 penalty ----------------------------------------------------
Batch = tuple[sp.csr_matrix, sp.csc_matrix, np.ndarray]  # X, its transpose, labels -1 and +1


def gradient(w: np.ndarray, batch: Batch) -> np.ndarray:
    """Return the gradient of the mini-batch's mean hinge loss."""
    x, x_transposed, y = batch
    violated = y * (x @ w) < 1
    return x_transposed @ (violated * y * np.float32(-1 / len(y)))


def sgd_step(w: np.ndarray, g: np.ndarray, rate: float, l2: float) -> None:
    w *= np.float32(1 - rate * l2)
    g *= np.float32(rate)
    w -= g


def error_rate(w: np.ndarray, x: sp.csr_matrix, y: np.ndarray) -> float:
    return float(np.mean(y * (x @ w) <= 0))


# ---- The loops -----------------------------------------------------------------------------------
def train_serial(w: np.ndarray, steps: Steps, knobs: argparse.Namespace, watch: Watch) -> None:
    for step, (rate, batch) in enumerate(steps, start=1):
        sgd_step(w, gradient(w, batch), rate, knobs.l2)
        if step % knobs.every == 0:
            watch.update(w)


def train_malt(w: np.ndarray, steps: Steps, knobs: argparse.Namespace, watch: Watch) -> malt.Vector:
    m = malt.vector(w, graph=GRAPHS[knobs.graph])
    for step, (rate, batch) in enumerate(steps, start=1):
        sgd_step(w, gradient(w, batch), rate, knobs.l2)
        if step % knobs.every == 0:
            m.scatter()
            m.gather(malt.AVG, staleness=knobs.staleness)
            watch.update(w)
    return m


def train_malt_gradient(
    w: np.ndarray, steps: Steps, knobs: argparse.Namespace, watch: Watch
) -> malt.Vector:
    """Average gradients instead of models, in every step. None may be lost: hence the queue."""
    g = np.zeros_like(w)
    m = malt.vector(g, graph=GRAPHS[knobs.graph], policy="queue")
    for step, (rate, batch) in enumerate(steps, start=1):
        g[:] = gradient(w, batch)
        m.scatter()
        m.gather(malt.AVG, staleness=knobs.staleness)
        sgd_step(w, g, rate, knobs.l2)
        if step % knobs.every == 0:
            watch.update(w)
    m.close()  # under async others may still train; they need not wait for this rank any more
    return m


# ---- The input of the loops ----------------------------------------------------------------------
class Steps:
    """This rank's mini-batches, in a new order in each epoch, each with its learning rate.

    Every rank has the same number of them, whatever its share of the rows. So no rank waits for an
    exchange that another rank never makes.
    """

    def __init__(self, x: sp.csr_matrix, y: np.ndarray, knobs: argparse.Namespace) -> None:
        count = x.shape[0] // (malt.size() * knobs.batch)
        if count == 0:
            sys.exit(f"--batch {knobs.batch} is more than a rank's share of {x.shape[0]} examples")
        rows = malt.shard(np.random.default_rng(knobs.seed).permutation(x.shape[0]))
        self.batches = [(x[r], x[r].T, y[r]) for r in np.array_split(rows, count)]
        self.epochs: int = knobs.epochs
        # An average of N ranks' steps is less noisy than one rank's step, so it may be longer: N
        # times, by the usual rule. (At N = 1, 16 is about the best; 64 takes no fewer updates.)
        self.rate: float = knobs.rate * malt.size()
        self.rng = np.random.default_rng([knobs.seed, malt.rank()])

    def __iter__(self) -> Iterator[tuple[float, Batch]]:
        count = len(self.batches)
        for epoch in range(self.epochs):
            for i, batch in enumerate(self.rng.permutation(count)):
                yield self.rate / (1 + epoch + i / count), self.batches[batch]


class Watch:
    """Progress lines while rank 0 trains, and the curve of its test error afterwards.

    Testing is no part of training: the clock stands still while a progress line is made, and the
    curve comes from copies of the model, tested when training is over.
    """

    def __init__(self, data: newsgroups.Newsgroups, steps: Steps, every: int) -> None:
        self.data = data
        self.updates = 0
        self.epochs_per_update = every / len(steps.batches)
        self.copies: list[tuple[int, float, np.ndarray]] = []
        self.next_copy = 1
        self.next_line = 0.0  # s
        malt.barrier()
        self.started = time.perf_counter()  # moved on by the time that tests take
        malt.barrier()  # no rank starts before the clock

    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def update(self, w: np.ndarray) -> None:
        self.updates += 1
        if malt.rank() != 0 or self.updates < self.next_copy:
            return
        self.copies.append((self.updates, self.seconds(), w.copy()))
        self.next_copy = max(self.updates + 1, int(1.05 * self.updates))
        if self.seconds() >= self.next_line:
            self.line()

    def line(self) -> None:
        updates, seconds, w = self.copies[-1]
        epochs = updates * self.epochs_per_update
        speed = epochs * self.data.x_train.shape[0] / seconds
        error = error_rate(w, self.data.x_test, self.data.y_test)
        print(
            f"{seconds:5.2f} s  epoch {epochs:5.1f}  updates {updates:5d}  "
            f"{speed:9,.0f} examples/s  test error {100 * error:5.2f}%",
            flush=True,
        )
        self.next_line = seconds + 0.5
        self.started = time.perf_counter() - seconds

    def finish(self, w: np.ndarray) -> float:
        """Seconds of training until the last rank was done."""
        malt.barrier()
        seconds = self.seconds()
        self.copies.append((self.updates, seconds, w.copy()))
        return seconds

    def curve(self) -> list[tuple[int, float, float]]:
        """(updates, seconds, test error) along the way."""
        x, y = self.data.x_test, self.data.y_test
        return [(updates, seconds, error_rate(w, x, y)) for updates, seconds, w in self.copies]


def main() -> None:
    knobs = parse_knobs()
    if knobs.demo:
        import svm_demo

        sys.exit(svm_demo.run(knobs))
    try:
        data = made_text.load(knobs.made) if knobs.made else newsgroups.load()
    except newsgroups.DataError as error:
        sys.exit(str(error))

    malt.init()
    w = np.zeros(data.x_train.shape[1], np.float32)
    steps = Steps(data.x_train, data.y_train, knobs)
    watch = Watch(data, steps, knobs.every)
    m = None
    if malt.size() == 1:
        train_serial(w, steps, knobs, watch)
    elif knobs.average == "model":
        m = train_malt(w, steps, knobs, watch)
    else:
        m = train_malt_gradient(w, steps, knobs, watch)
    seconds = watch.finish(w)

    sent = np.array([m.stats().bytes_out if m else 0])  # to all receivers together
    malt.vector(sent).allreduce(malt.SUM)
    if malt.rank() == 0:
        curve = watch.curve()
        result = {
            "ranks": malt.size(),
            "graph": knobs.graph if m else None,
            "mode": f"staleness {knobs.staleness}, {knobs.average}" if m else "serial",
            "seed": knobs.seed,
            "seconds": seconds,
            "documents": data.x_train.shape[0],
            "tested": data.x_test.shape[0],
            "examples_per_second": data.x_train.shape[0] * knobs.epochs / seconds,
            "bytes_sent": int(sent[0]),
            "final_error": curve[-1][2],
            "model_sha256": hashlib.sha256(w.tobytes()).hexdigest(),
            "curve": curve,
        }
        print(
            f"{seconds:5.2f} s, done: {result['examples_per_second']:,.0f} examples/s, "
            f"test error {100 * result['final_error']:.2f}%, model {result['model_sha256'][:16]}"
        )
        if knobs.results:
            knobs.results.write_text(json.dumps(result))
    malt.finalize()


if __name__ == "__main__":
    main()
