"""Ratings a second of matrix factorisation at rank 32, against libmf in the same run.

    . .venv/bin/activate                                  # after ./dev test
    python benchmarks/factorization.py
    python benchmarks/factorization.py --output docs/performance.md

libmf is the source package libmf on PyPI, compiled here for this processor with its AVX code. Each
round times one after the other: some epochs of MALT's kernel, and libmf with few iterations and
with more, the difference of which leaves out what both do before the first. With one thread the
processor's time counts, so that what else runs on the machine shows less; with more, the clock's.
"""

import ctypes
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

import movielens  # after the path
import report
from report import over, parser_with_output, table, times

import malt
from malt._core import RatingBlocks
from malt._factorization.factors import Factors, aligned_zeros

RANK = 32
TARGET = 1.2  # times libmf, one thread
LIBMF = "libmf==0.9.2"
LIBMF_FLAGS = ["-O3", "-march=native", "-DUSEAVX", "-pthread", "-std=c++11", "-w"]
MOST_RMSE = 0.895


def netflix_shaped():
    """10 M ratings of Netflix' shape: users uniform, items with Zipf's exponent 1."""
    users, items, count = 480_000, 17_700, 10_000_000
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, items + 1)
    return (
        random.integers(0, users, count).astype(np.int32),
        random.choice(items, count, p=share / share.sum()).astype(np.int32),
        (1 + 4 * random.random(count)).astype(np.float32),
    ), (users, items)


class Libmf:
    class Parameters(ctypes.Structure):
        _fields_ = (
            [(name, ctypes.c_int) for name in ("fun", "k", "threads", "bins", "iterations")]
            + [(name, ctypes.c_float) for name in ("p1", "p2", "q1", "q2", "eta")]
            + [(name, ctypes.c_bool) for name in ("nonnegative", "quiet", "copy_data")]
        )

    def __init__(self, folder):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        pip += ["--no-binary=:all:", "--dest", str(folder), LIBMF]
        subprocess.run(pip, check=True)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        library = folder / "libmf.so"
        sources = sorted(folder.glob("*/src_cpp/*.cpp"))
        command = ["g++", *LIBMF_FLAGS, "-shared", "-fPIC", *sources, "-o", library]
        subprocess.run(command, check=True)
        self._fit = ctypes.CDLL(str(library)).fit_interface
        self._fit.restype = ctypes.c_void_p

    def rate(self, ratings, threads, iterations, clock):
        """Ratings a second, with the better of its default of 26 bins and the fewest it takes."""
        rows = np.ascontiguousarray(np.stack(ratings, axis=1).astype(np.float32))

        def seconds_more(bins):
            few, many = (
                self._seconds(rows, threads, bins, count, clock) for count in (2, 2 + iterations)
            )
            return many - few

        return len(rows) * iterations / min(seconds_more(26), seconds_more(2 * threads + 1))

    def _seconds(self, rows, threads, bins, iterations, clock):
        parameters = self.Parameters(
            *(0, RANK, threads, bins, iterations),
            *(0.05, 0, 0.05, 0, 0.1),
            *(False, True, True),
        )
        start = clock()
        self._fit(len(rows), rows.ctypes.data_as(ctypes.c_void_p), ctypes.byref(parameters))
        return clock() - start


def malt_rates(ratings, shape, threads, epochs, clock):
    """Ratings a second, and the seconds of grouping them."""
    start = clock()
    bands = max(8, 2 * threads)
    blocks = RatingBlocks(*ratings, user_count=shape[0], item_count=shape[1], bands=bands, seed=0)
    grouping = clock() - start
    factors = Factors(aligned_zeros(Factors.elements(shape, RANK, True)), shape, RANK, True)
    factors.wake(tuple(np.ones(n, bool) for n in shape), 0.1, [0])
    how = {"mean": float(ratings[2].mean()), "lr": 0.01, "reg": 0.05, "implicit": None}
    factors.train(blocks, first=0, rounds=bands, threads=threads, **how)
    start = clock()
    factors.train(blocks, first=bands, rounds=epochs * bands, threads=threads, **how)
    return epochs * len(blocks) / (clock() - start), grouping


def compare(libmf, ratings, shape, threads, epochs, rounds):
    """Medians of MALT's rate, libmf's, their ratio by round, and MALT's seconds of grouping."""
    clock = time.process_time if threads == 1 else time.perf_counter
    found = []
    for n in range(rounds):
        report.say(f"{len(ratings[0]):,} ratings, {threads} threads, round {n + 1} of {rounds}")
        ours, grouping = malt_rates(ratings, shape, threads, epochs, clock)
        theirs = libmf.rate(ratings, threads, epochs, clock)
        found.append((ours, theirs, ours / theirs, grouping))
    return [statistics.median(column) for column in zip(*found, strict=True)]


def test_rmse():
    train, test = movielens.split(movielens.load())
    model = malt.learn.MatrixFactorization(
        RANK, 60, lr=0.02, decay=0.1, reg=0.1, shape=movielens.SHAPE, random_state=0
    )
    model.fit((train.users, train.items, train.values))
    return model.rmse((test.users, test.items, test.values))


class Report(report.Report):
    def rates(self, found):
        rows = []
        for (name, threads), (ours, theirs, ratio, grouping) in found.items():
            target = TARGET if threads == 1 else None
            missed = None if over(ratio, target) else times(ratio)
            row = [name, str(threads), f"{ours / 1e6:.1f}", f"{theirs / 1e6:.1f}", times(ratio)]
            row += [f"{target:g}" if target else "-", f"{grouping:.3f}"]
            rows.append([*row, self._verdict(f"{name}, {threads} threads", missed)])
        header = ["ratings", "threads", "MALT", "libmf", "x libmf", "at least", "grouping, s", ""]
        self._sections.append(
            f"Rank {RANK}, float32, 10^6 ratings a second; MALT with biases, libmf (which has "
            f"none) {LIBMF.partition('==')[2]} with `{' '.join(LIBMF_FLAGS)}`. One thread: per "
            "second of the processor; more: per second of the clock. *grouping* is what MALT does "
            f"before the first epoch.\n\n{table(header, rows)}"
        )

    def accuracy(self, rmse):
        verdict = self._verdict("test RMSE", None if rmse <= MOST_RMSE else f"{rmse:.4f}")
        self._sections.append(
            f"Test RMSE on MovieLens-100K, a tenth held out (`python examples/mf.py`): {rmse:.4f} "
            f"(at most {MOST_RMSE}): {verdict}"
        )


def main():
    parser = parser_with_output(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    real = movielens.load()
    sets = {
        "MovieLens-100K": ((real.users, real.items, real.values), movielens.SHAPE, 200),
        "synthetic, Netflix's shape": (*netflix_shaped(), 3),
    }
    with tempfile.TemporaryDirectory() as folder:
        libmf = Libmf(Path(folder))
        found = {
            (name, threads): compare(libmf, ratings, shape, threads, epochs, options.rounds)
            for name, (ratings, shape, epochs) in sets.items()
            for threads in (1, 2)
        }
    made = Report("factorization.py", "Matrix factorisation", f"{options.rounds} rounds")
    made.rates(found)
    made.accuracy(test_rmse())
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
