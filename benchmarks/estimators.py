"""The estimators: what two ranks gain, how soon they are at liblinear's minimum, what they copy.

python benchmarks/estimators.py                       # SYN is made once: see linear.py
python benchmarks/estimators.py --output docs/performance.md
"""

import argparse
import mmap
import os
import re
import statistics
import sys
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before NumPy

import numpy as np
import report
from linear import ALPHA, synthetic, timed
from report import over, say, table, times
from sklearn.svm import LinearSVC

import malt
from malt import _local

GAIN = 1.9  # of two ranks on two cores, in examples a second
ACCURACY = 0.003  # that two ranks may lose
SOONER = 5  # than liblinear at its objective + 1 %
COPIED = 0.05  # of X, by each rank


def measure_memory(work, own):
    """`work`, which notes what memory of its own its rank has at the end."""

    def measured():
        told = work()
        pages = Path("/proc/self/smaps_rollup").read_text()
        own[malt.rank()] = 1024 * int(re.findall(r"Private_Dirty: +(\d+) kB", pages)[0])
        return told

    return measured


class Estimators(report.Report):
    def __init__(self, repeats):
        super().__init__("estimators.py", "Estimators on ranks", f"{repeats} runs")

    def ranks(self, train, test, repeats):
        rows = []
        for loss in ("hinge", "log_loss"):
            speeds = {1: [], 2: []}
            accuracies = {}
            for repeat in range(repeats):
                for count, speed in speeds.items():
                    say(f"{loss}, {count} ranks, run {repeat + 1} of {repeats}")
                    model = malt.SGDClassifier(
                        loss, alpha=ALPHA["SYN"], max_iter=5, tol=None, fit_intercept=False,
                        random_state=0, ranks=count, verbose=0,
                    )  # fmt: skip
                    model.fit(*train)
                    steps = model.history_
                    seconds = steps["ended"].max() - steps["began"].min()
                    speed.append(5 * train[0].shape[0] / seconds)
                    accuracies[count] = model.score(*test)
            one, two = (statistics.median(speeds[count]) for count in (1, 2))
            verdict = self._verdict(
                f"two ranks, {loss}",
                "" if over(two / one, GAIN) else f"{two / one:.2f} times one",
                "" if accuracies[2] >= accuracies[1] - ACCURACY else "accuracy",
            )
            row = [loss, f"{one:.3g}", f"{two:.3g}", times(two / one), times(GAIN)]
            row += [f"{accuracies[count]:.4f}" for count in (1, 2)]
            rows.append([*row, verdict])
        header = ["loss", "1 rank", "2 ranks", "x", "at least", "accuracy, 1", "2", ""]
        self._sections.append(
            "Examples a second on SYN, 5 passes of `malt.SGDClassifier(ranks=...)`, ten exchanges "
            f"a pass.\n\n{table(header, rows)}"
        )

    def to_the_minimum(self, train):
        matrix, signs = train
        alpha = ALPHA["SYN"]

        def objective(w):
            losses = np.maximum(0, 1 - signs * (matrix @ w))
            return alpha / 2 * float(w @ w) + float(losses.mean())

        say("liblinear")
        svm = LinearSVC(loss="hinge", C=1 / (alpha * len(signs)), fit_intercept=False)
        theirs, _ = timed(lambda: svm.fit(matrix, signs))
        goal = 1.01 * objective(svm.coef_[0].astype(np.float32))
        model = malt.SGDClassifier(
            alpha=alpha, fit_intercept=False, random_state=0, average=len(signs), verbose=0
        )
        ours, passes, reached = 0.0, 0, np.inf
        while reached > goal and passes < 50:
            say(f"pass {passes + 1}: {reached:.4f} of {goal:.4f}")
            seconds, _ = timed(lambda: model.partial_fit(matrix, signs, classes=[-1, 1]))
            ours, passes = ours + seconds, passes + 1
            reached = objective(model.coef_[0])
        ratio = theirs / ours if reached <= goal else 0
        verdict = self._verdict(
            "liblinear's minimum", "" if over(ratio, SOONER) else f"{ratio:.2f} times sooner"
        )
        self._sections.append(
            f"liblinear's dual hinge objective on SYN + 1 %: {theirs:.1f} s by liblinear, "
            f"{ours:.2f} s in {passes} passes of one rank with averaging: {times(ratio)} times "
            f"sooner (at least {SOONER}): {verdict}."
        )

    def memory(self):
        say("memory")
        X = np.random.default_rng(0).normal(size=(1_000_000, 134)).astype(np.float64)  # 1 GB
        own = np.frombuffer(mmap.mmap(-1, 4 * 8))
        run = _local.run
        _local.run = lambda ranks, work, watch: run(ranks, measure_memory(work, own), watch)
        try:
            model = malt.SGDClassifier(max_iter=2, tol=None, ranks=4, verbose=0)
            model.fit(X, X[:, 0] > 0)
        finally:
            _local.run = run
        part = own.max() / X.nbytes
        verdict = self._verdict("memory", "" if part <= COPIED else f"{part:.1%}")
        self._sections.append(
            f"`fit(ranks=4)` on {X.nbytes / 1e9:.2f} GB: {own.max() / 1e6:.0f} MB of its own for "
            f"each rank, {part:.1%} of X (at most {COPIED:.0%}): {verdict}."
        )


def main():
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--output", type=Path, metavar="FILE", help="put the tables into it")
    p.add_argument("--repeats", type=int, default=3)
    knobs = p.parse_args()
    result = Estimators(knobs.repeats)
    begin = time.perf_counter()
    train, test = synthetic()
    result.ranks(train, test, knobs.repeats)
    result.to_the_minimum(train)
    del train, test
    result.memory()
    say(f"{time.perf_counter() - begin:.0f} s")
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
