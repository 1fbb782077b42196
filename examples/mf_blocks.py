"""Matrix factorisation by blocks that share no user and no film: DSGD on malt.optimize.schedule.

    python examples/mf_blocks.py                                  # one process
    malt run -n 2 examples/mf_blocks.py
    malt run -n 2 examples/mf_blocks.py --bands 6 --staleness 0   # the same factors, bit by bit

Users and films are cut into bands, and the ratings into a block for each band of users and of
films. Each rank trains one block in a round. The blocks of a round lie on one diagonal, so that no
two of them share a user or a film. The rounds 1, 2, 3, ... of 2 ranks with 6 bands:

              films  0  1  2  3  4  5
        users 0      1  4  .  .  .  .
              1      .  1  4  .  .  .
              2      .  .  2  5  .  .
              3      .  .  .  2  5  .
              4      .  .  .  .  3  6
              5      6  .  .  .  .  3

Rank 0 trains rows 0, 2 and 4, rank 1 the others: their users' factors stay with it. Only films'
factors are sent. Rounds in flight together share no user and no film either: no rank reads what
another one changes, and the factors are the same, bit by bit, on any number of ranks.
malt.learn.MatrixFactorization divides the ratings by user too, but averages the films' factors.

Gemulla et al. 2011, Large-scale Matrix Factorization with Distributed Stochastic Gradient Descent;
Lee et al. 2014, On Model Parallelization and Scheduling Strategies for Distributed Machine
Learning.
"""

import argparse
import hashlib
import sys
import time

import movielens
import numpy as np
from pypi_data import DataError

import malt
from malt._core_import import RatingBlocks  # the kernel of malt.learn.MatrixFactorization

factors, lr, decay, reg, spread = 32, 0.02, 0.1, 0.1, 0.1  # factors: a multiple of 16


class Banded:
    """Users or films: the factors and biases, and which of them belong to a band."""

    def __init__(self, ids, count, bands, random):
        # Bands with about as many ratings each.
        rated = np.cumsum(np.bincount(ids, minlength=count))
        self.starts = np.searchsorted(rated, rated[-1] * np.arange(bands + 1) / bands).tolist()
        self.starts[-1] = count
        self.factors = random.normal(0, spread, (count, factors)).astype(np.float32)
        self.biases = np.zeros(count, np.float32)

    def band(self, number):
        return slice(self.starts[number], self.starts[number + 1])

    def most(self):
        return int(max(np.diff(self.starts)))


class BlockFactorization:
    def __init__(self, ratings, shape, bands, epochs):
        random = np.random.default_rng(0)  # of the same seed on all ranks
        self.ratings, self.bands, self.epochs = ratings, bands, epochs
        self.users = Banded(ratings.users, shape[0], bands, random)
        self.films = Banded(ratings.items, shape[1], bands, random)
        self.mean = float(ratings.values.mean(dtype=np.float64))
        self.blocks = {}  # of rows that this rank has trained
        self.owners = {}  # of bands of users: ranks
        self.first, self.epoch, self.diagonal = 0, 0, 0  # of the next round

    def schedule(self, ranks):
        if self.epoch == self.epochs:
            return None
        rows = range(self.first, min(self.first + ranks, self.bands))
        parts = [(self.epoch, row, (row + self.diagonal) % self.bands) for row in rows]
        self.first += ranks
        if self.first >= self.bands:
            self.first, self.diagonal = 0, self.diagonal + 1
        if self.diagonal == self.bands:
            self.epoch, self.diagonal = self.epoch + 1, 0
        return parts + [None] * (ranks - len(parts))

    def blocks_of(self, row):
        """Return the row's blocks by column: ratings numbered from 0 in their bands."""
        if row in self.blocks:
            return self.blocks[row]
        users, made = self.users.band(row), []
        mine = self.ratings[(self.ratings.users >= users.start) & (self.ratings.users < users.stop)]
        for column in range(self.bands):
            films = self.films.band(column)
            block = mine[(mine.items >= films.start) & (mine.items < films.stop)]
            made.append(
                RatingBlocks(
                    block.users - np.int32(users.start),
                    block.items - np.int32(films.start),
                    block.values,
                    user_count=users.stop - users.start,
                    item_count=films.stop - films.start,
                    bands=1,
                    seed=0,
                )
            )
        self.blocks[row] = made
        return made

    def push(self, part):
        if part is None:
            return []
        epoch, row, column = part
        users, films = self.users.band(row), self.films.band(column)
        film_factors, film_biases = (
            self.films.factors[films].copy(),
            self.films.biases[films].copy(),
        )
        self.blocks_of(row)[column].train(
            *(self.users.factors[users], film_factors, self.users.biases[users], film_biases),
            mean=self.mean,
            lr=lr / (1 + decay * epoch),
            reg=reg,
            implicit=None,
            first=epoch,
            rounds=1,
            threads=1,
        )
        return np.concatenate([film_factors.ravel(), film_biases])

    def pull(self, results):
        for rank, part, values in results:
            if part is None:
                continue
            _, row, column = part
            films = self.films.band(column)
            size = films.stop - films.start
            self.films.factors[films] = values[: size * factors].reshape(size, factors)
            self.films.biases[films] = values[size * factors : size * (factors + 1)]
            self.owners[row] = rank

    def collect(self):
        """Take the users' factors from the ranks that trained them. Collective."""
        for row, owner in self.owners.items():
            if owner != malt.rank():
                self.users.factors[self.users.band(row)] = 0
                self.users.biases[self.users.band(row)] = 0
        vector = malt.vector([self.users.factors, self.users.biases])
        vector.allreduce(malt.SUM)
        vector.close()

    def rmse(self, ratings):
        users, films = ratings.users, ratings.items
        found = (self.users.factors[users] * self.films.factors[films]).sum(axis=1)
        found += self.mean + self.users.biases[users] + self.films.biases[films]
        return float(np.sqrt(np.mean((found - ratings.values) ** 2)))


def factorise(ratings, shape, epochs, staleness=1, bands=None):
    """Return a trained BlockFactorization and the number of rounds."""
    least = (staleness + 2) * malt.size()
    bands = bands or least
    if bands < least:
        sys.exit(f"--bands is {bands}; {malt.size()} ranks need {least}, or rounds share films")
    program = BlockFactorization(ratings, shape, bands, epochs)
    rounds = malt.optimize.schedule.run(
        program,
        length=program.films.most() * (factors + 1),
        staleness=staleness,
        dtype=np.float32,
    )
    program.collect()
    return program, rounds


def main():
    p = argparse.ArgumentParser(description="Matrix factorisation of MovieLens-100K by blocks.")
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--staleness", type=int, default=1, help="rounds in flight beside one")
    p.add_argument("--bands", type=int, help="at least (staleness + 2) * ranks, the default")
    knobs = p.parse_args()
    try:
        train, test = movielens.split(movielens.load())
    except DataError as error:
        sys.exit(str(error))

    malt.init()
    start = time.perf_counter()
    program, rounds = factorise(train, movielens.SHAPE, knobs.epochs, knobs.staleness, knobs.bands)
    seconds = time.perf_counter() - start
    if malt.rank() == 0:
        found = program.users.factors.tobytes() + program.films.factors.tobytes()
        print(
            f"{malt.size()} ranks, {rounds} rounds, {knobs.epochs} epochs: {seconds:.2f} s, "
            f"{knobs.epochs * len(train.values) / seconds:,.0f} ratings/s\n"
            f"factors {hashlib.sha256(found).hexdigest()[:16]}\n"
            f"training RMSE {program.rmse(train):.4f}\n"
            f"test RMSE {program.rmse(test):.4f}"
        )


if __name__ == "__main__":
    main()
