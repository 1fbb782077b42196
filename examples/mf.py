"""Matrix factorisation: who would give which film how many stars?

    python examples/mf.py                                     # one process
    malt run -n 2 examples/mf.py                              # each rank has half of the ratings
    malt run -n 2 examples/mf.py --every 5000                 # and they exchange more often

Needs scikit-learn: pip install "malt-sgd[learn]". MovieLens-100K is fetched once (see
movielens.py); a tenth of it is held out. The last line that the program prints is the error on
that tenth.
"""

from __future__ import annotations

import argparse
import sys
import time

import movielens
from pypi_data import DataError

import malt


def parse_knobs() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description="Matrix factorisation of MovieLens-100K.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--factors", type=int, default=32, help="numbers that describe a user or film")
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--lr", type=float, default=0.02, help="learning rate of the first epoch")
    p.add_argument("--decay", type=float, default=0.1, help="lr / (1 + decay * epoch)")
    p.add_argument("--reg", type=float, default=0.1, help="strength of the L2 penalty")
    p.add_argument("--every", type=int, help="ratings between two exchanges; by default an epoch")
    p.add_argument("--threads", type=int, default=1, help="of each rank")
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main() -> None:
    knobs = parse_knobs()
    try:
        train, test = movielens.split(movielens.load())
    except DataError as error:
        sys.exit(str(error))

    malt.init()
    mine = train[train.users % malt.size() == malt.rank()]  # all ratings of a user with one rank
    model = malt.learn.MatrixFactorization(
        knobs.factors,
        knobs.epochs,
        lr=knobs.lr,
        decay=knobs.decay,
        reg=knobs.reg,
        every=knobs.every,
        threads=knobs.threads,
        shape=movielens.SHAPE,
        random_state=knobs.seed,
    )
    start = time.perf_counter()
    model.fit((mine.users, mine.items, mine.values))
    seconds = time.perf_counter() - start

    if malt.rank() == 0:
        rate = knobs.epochs * len(train.values) / seconds
        print(
            f"{malt.size()} ranks, {knobs.epochs} epochs: {seconds:.2f} s, {rate:,.0f} ratings/s\n"
            f"training RMSE {model.loss_curve_[-1]:.4f}\n"
            f"test RMSE {model.rmse((test.users, test.items, test.values)):.4f}"
        )


if __name__ == "__main__":
    main()
