"""The estimators: what two ranks gain, how soon they are where others get, what they copy.

    . .venv/bin/activate                                  # after ./dev build
    pip install scikit-learn vowpalwabbit                 # Vowpal Wabbit may be missing
    python benchmarks/estimators_on_ranks.py
    python benchmarks/estimators_on_ranks.py --output docs/performance.md

SYN is that of linear.py. Peers and MALT are timed one after the other, on the same arrays in
memory (Vowpal Wabbit: on its cache), without intercepts.
"""

import mmap
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before NumPy

import linear
import numpy as np
import report
import vowpal_wabbit
from linear import synthetic, timed
from report import over, parser_with_output, say, table, times

import malt
from malt._pool import forked

ALPHA = linear.ALPHA["SYN"]
PASSES = 20  # so that the start of ranks does not count for much
GAIN = 1.9  # of two ranks on two cores, in examples a second
ACCURACY = 0.003  # that two ranks may lose
SOONER = 5  # than the peers
VW_PASSES = 5
COPIED = 0.05  # of X, by each rank
LOOK_SECONDS = 0.005


def classifier(loss="hinge", **options):
    return malt.learn.SGDClassifier(
        loss, **{"alpha": ALPHA, "fit_intercept": False, "random_state": 0, "verbose": 0, **options}
    )


def own_bytes():
    """Of this process' memory, what it has written and shares with no other."""
    pages = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.findall(r"Private_Dirty: +(\d+) kB", pages)[0])


def watch_memory(work, most):
    """`work`, which notes the most memory of its own that its rank has had."""

    def watched():
        over = threading.Event()

        def look():
            is_last = False
            while not is_last:
                is_last = over.wait(LOOK_SECONDS)
                most[malt.rank()] = max(most[malt.rank()], own_bytes())

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            return work()
        finally:
            over.set()
            watcher.join()

    return watched


class Estimators(report.Report):
    def __init__(self, repeats):
        super().__init__("estimators_on_ranks.py", "Estimators on ranks", f"{repeats} runs")

    def ranks(self, train, test, repeats):
        rows = []
        for loss in ("hinge", "log_loss"):
            trained, whole = {1: [], 2: []}, {1: [], 2: []}
            accuracies = {}
            for repeat in range(repeats):
                for count in trained:
                    say(f"{loss}, {count} ranks, run {repeat + 1} of {repeats}")
                    model = classifier(loss, max_iter=PASSES, tol=None, ranks=count)
                    seconds, _ = timed(lambda model=model: model.fit(*train))
                    steps = model.history_
                    trained[count].append(steps["ended"].max() - steps["began"].min())
                    whole[count].append(seconds)
                    accuracies[count] = model.score(*test)
            (one, two), (all_one, all_two) = (
                [statistics.median(seconds[count]) for count in (1, 2)]
                for seconds in (trained, whole)
            )
            verdict = self._verdict(
                f"two ranks, {loss}",
                "" if over(one / two, GAIN) else f"{one / two:.2f} times one",
                "" if accuracies[2] >= accuracies[1] - ACCURACY else "accuracy",
            )
            examples = PASSES * train[0].shape[0]
            row = [loss, f"{examples / one:.3g}", f"{examples / two:.3g}", times(one / two)]
            row += [times(GAIN), *(f"{accuracies[count]:.4f}" for count in (1, 2))]
            row += [f"{all_one:.2f}", f"{all_two:.2f}", times(all_one / all_two)]
            rows.append([*row, verdict])
        header = ["loss", "1 rank", "2 ranks", "x", "at least", "accuracy, 1", "2"]
        header += ["fit, s, 1", "2", "x", ""]
        self._sections.append(
            f"Examples a second on SYN, {PASSES} passes of `malt.learn.SGDClassifier(ranks=...)`, "
            "ten exchanges a pass, from the first example to the last exchange; *fit* is all of "
            f"it, with checks of the input and the start of the ranks.\n\n{table(header, rows)}"
        )

    def to_their_accuracy(self, train, test):
        """Vowpal Wabbit's, with the penalty and without."""
        if not vowpal_wabbit.is_installed():
            self._sections.append("Vowpal Wabbit was not measured: it is not installed.")
            return
        rows = []
        with tempfile.TemporaryDirectory() as directory:
            say("writing SYN for Vowpal Wabbit")
            peer = vowpal_wabbit.VowpalWabbit(Path(directory), train, test)
            for alpha, options in (
                (ALPHA, {"average": train[0].shape[0]}),
                (0, {"average": train[0].shape[0], "learning_rate": "adagrad", "eta0": 1.0}),
            ):
                say(f"Vowpal Wabbit, {alpha:g}")
                theirs, goal = peer.train("hinge", alpha, VW_PASSES)
                model, ours, passes, reached = classifier(alpha=alpha, **options), 0.0, 0, 0.0
                while reached < goal and passes < 10 * VW_PASSES:
                    seconds, _ = timed(
                        lambda model=model: model.partial_fit(*train, classes=[-1, 1])
                    )
                    ours, passes, reached = ours + seconds, passes + 1, model.score(*test)
                ratio = theirs / ours if reached >= goal else 0
                verdict = self._verdict(
                    f"Vowpal Wabbit's accuracy, alpha {alpha:g}",
                    "" if over(ratio, SOONER) else f"{ratio:.2f} times sooner",
                )
                row = [f"{alpha:g}", f"{goal:.4f}", f"{theirs:.2f}", f"{reached:.4f}"]
                row += [f"{ours:.2f}", str(passes), times(ratio), str(SOONER)]
                rows.append([*row, verdict])
        header = ["alpha", "Vowpal Wabbit's accuracy", "s", "MALT's", "s", "passes"]
        header += ["x", "at least", ""]
        self._sections.append(
            f"Hinge loss on SYN, {VW_PASSES} passes by Vowpal Wabbit over its cache, reading and "
            "learning on a core each, and as many by one rank of MALT as get as far: with Bottou's "
            f"rates and alpha, with AdaGrad's and none, averaged.\n\n{table(header, rows)}"
        )

    def memory(self):
        say("memory")
        X = np.random.default_rng(0).normal(size=(1_000_000, 134))  # 1 GB
        y = X[:, 0] > 0
        most = np.frombuffer(mmap.mmap(-1, 4 * 8))
        run = forked.run
        forked.run = lambda ranks, work, watch: run(ranks, watch_memory(work, most), watch)
        try:
            classifier(max_iter=10, tol=None, ranks=4).fit(X, y)
        finally:
            forked.run = run
        part = most.max() / X.nbytes
        verdict = self._verdict("memory", "" if part <= COPIED else f"{part:.1%}")
        self._sections.append(
            f"`fit(ranks=4)` on {X.nbytes / 1e9:.2f} GB: at most {most.max() / 1e6:.0f} MB of its "
            f"own for each rank, {part:.1%} of X (at most {COPIED:.0%}): {verdict}."
        )


def main():
    p = parser_with_output(__doc__)
    p.add_argument("--repeats", type=int, default=5)
    knobs = p.parse_args()
    result = Estimators(knobs.repeats)
    begin = time.perf_counter()
    train, test = synthetic()
    result.ranks(train, test, knobs.repeats)
    result.to_their_accuracy(train, test)
    del train, test
    result.memory()
    say(f"{time.perf_counter() - begin:.0f} s")
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
