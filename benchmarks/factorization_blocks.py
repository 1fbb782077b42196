"""Matrix factorisation by blocks on malt.optimize.schedule beside malt.learn.MatrixFactorization:
time, test RMSE.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/factorization_blocks.py
    python benchmarks/factorization_blocks.py --output docs/performance.md

MovieLens-100K (examples/movielens.py), and SYNTHETIC: 10^7 ratings of 8 hidden numbers a user and
item, with noise of 0.5. A tenth is held out.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

import mf_blocks  # after the path
import movielens
import report
from report import parser_with_output, run_ranks, say, table, times

import malt

BLOCKS, AVERAGED = "blocks on a schedule", "malt.learn.MatrixFactorization"
EPOCHS = {"MovieLens-100K": 60, "SYNTHETIC": 15}
CLOSE = 0.005  # of the least test RMSE


def synthetic():
    users, items, count, hidden = 100_000, 10_000, 10_000_000, 8
    random = np.random.default_rng(0)
    share = 1 / np.arange(10, items + 10)
    of_users = random.integers(0, users, count).astype(np.int32)
    of_items = random.choice(items, count, p=share / share.sum()).astype(np.int32)
    p, q = (random.normal(0, hidden**-0.25, (n, hidden)).astype(np.float32) for n in (users, items))
    values = 3 + (p[of_users] * q[of_items]).sum(axis=1) + random.normal(0, 0.5, count)
    return movielens.Ratings(of_users, of_items, values.astype(np.float32)), (users, items)


def load(name):
    if name == "SYNTHETIC":
        ratings, shape = synthetic()
    else:
        ratings, shape = movielens.load(), movielens.SHAPE
    return *movielens.split(ratings), shape


def blocks(train, shape, epochs):
    program, _ = mf_blocks.factorise(train, shape, epochs)
    return program.rmse


def averaged(train, shape, epochs):
    mine = train[train.users % malt.size() == malt.rank()]
    model = malt.learn.MatrixFactorization(
        mf_blocks.factors,
        epochs,
        lr=mf_blocks.lr,
        decay=mf_blocks.decay,
        reg=mf_blocks.reg,
        shape=shape,
        random_state=0,
    ).fit((mine.users, mine.items, mine.values))
    return lambda ratings: model.rmse((ratings.users, ratings.items, ratings.values))


def work(name, repeats, out):
    """Measure both in this job."""
    malt.init()
    train, test, shape = load(name)
    found = {}
    for method, fit in ((BLOCKS, blocks), (AVERAGED, averaged)):
        fit(train, shape, 1)
        seconds = []
        for _ in range(repeats):
            malt.barrier()
            begun = time.perf_counter()
            rmse = fit(train, shape, EPOCHS[name])
            seconds.append(time.perf_counter() - begun)
        found[method] = statistics.median(seconds), rmse(test)
    if malt.rank() == 0:
        out.write_text(json.dumps(found))


class Blocks(report.Report):
    def __init__(self, repeats):
        program = "factorization_blocks.py"
        super().__init__(program, "Matrix factorisation by blocks", f"{repeats} runs")
        self._sections.append(
            "`malt.learn.MatrixFactorization` divides the ratings by user. After each epoch it "
            "adds up what each rank has changed in the items' factors, and divides each item's sum "
            "by how far the ranks together overshoot it. By blocks (`examples/mf_blocks.py`) ranks "
            "train at the same time what shares no user and no item, and the factors are the same "
            f"as those of one rank. Both have rank {mf_blocks.factors} and the same epochs and "
            "learning rates. Seconds are those of the whole training. *x* is the time on 1 rank by "
            f"that on 2. The goal is a test RMSE at most {CLOSE} above the least in the table."
        )

    def measured(self, name, found):
        least = min(rmse for each in found.values() for _, rmse in each.values())
        rows = []
        for method in (BLOCKS, AVERAGED):
            for ranks, each in found.items():
                seconds, rmse = each[method]
                ratio = "" if ranks == 1 else times(found[1][method][0] / seconds)
                missed = None if rmse <= least + CLOSE else f"{rmse:.4f}"
                verdict = self._verdict(f"{name}, {method}, {ranks} ranks, RMSE", missed)
                rows.append([method, str(ranks), f"{seconds:.3g}", ratio, f"{rmse:.4f}", verdict])
        header = ["by", "ranks", "s", "x", "test RMSE", ""]
        self._sections.append(
            f"### {name} by blocks\n\n{EPOCHS[name]} epochs.\n\n{table(header, rows)}"
        )


def main():
    p = parser_with_output(__doc__)
    p.add_argument("--only", choices=EPOCHS, nargs="+", help="of the data sets")
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--work", choices=EPOCHS, help=report.argparse.SUPPRESS)
    p.add_argument("--out", type=Path, help=report.argparse.SUPPRESS)
    knobs = p.parse_args()
    if knobs.work:
        work(knobs.work, knobs.repeats, knobs.out)
        return
    result = Blocks(knobs.repeats)
    for name in knobs.only or EPOCHS:
        found = {}
        for ranks in (1, 2):
            say(f"{name}, {ranks} ranks")
            options = ("--work", name, "--repeats", knobs.repeats)
            found[ranks] = run_ranks(ranks, __file__, *options)
        result.measured(name, found)
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
