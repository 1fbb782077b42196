"""Consensus: rounds and seconds to the optimum, and what late updates do with and without it.

    . .venv/bin/activate                                  # after ./dev build
    pip install scikit-learn matplotlib                   # matplotlib for the picture alone
    python benchmarks/consensus.py
    python benchmarks/consensus.py --output docs/performance.md --picture docs/images/consensus.svg

Logistic regression, with rows of another kind on each rank, beside averaging models (malt.AVG); the
optimum is scikit-learn's. Graph factorisation with vertices that several ranks hold, where updates
come late by a number of rounds: ranks that add each other's changes, and malt.optimize.Consensus.
"""

import functools
import json
import os
import statistics
import sys
import time
from collections import deque
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before NumPy

import numpy as np
import report
from report import over, parser_with_output, run_ranks, say, table, times

import malt

RANKS = 4
CLOSE = (1e-4, 1e-6)  # of the optimum
ROWS, COLUMNS, RIDGE, KINDS = 1500, 40, 1.0, 0.5
PAUSE, EVERY = 0.02, 8  # seconds; a rank pauses in one of so many rounds, on the average
SLOW = 0.005  # seconds of each round of the slow rank
MOST_SECONDS = 20
FASTER = 1.2  # asynchronous with pauses: at least so many times as fast as synchronous

OF_A_RANK, WIDTH, INSIDE, ACROSS, WEIGHT = 30, 4, 0.5, 0.05, 0.1
RHO, STEPS, RATE, ROUNDS = 5.0, 5, 0.02, 300
DELAYS = (0, 2, 4, 8, 16)
AS_GOOD = 1.01  # times the objective in one place

WAYS = {
    "averaging models": None,
    "synchronous": {},
    "quorum 0.5": {"quorum": 0.5},
    "max_delay 5": {"max_delay": 5},
}
SPEEDS = ("alike", "pauses", "one slow")


# ---- logistic regression -------------------------------------------------------------------------
@functools.cache
def part(rank):
    random = np.random.default_rng(rank)
    X = random.standard_normal((ROWS, COLUMNS)) + KINDS * random.standard_normal(COLUMNS)
    odds = 1 / (1 + np.exp(-X @ np.cos(np.arange(COLUMNS)) / 2))
    return X, (random.random(ROWS) < odds) * 1.0


def loss(w, X, y):
    margins = X @ w
    return np.sum(np.logaddexp(0, margins) - y * margins)


def total(w):
    return sum(loss(w, *part(rank)) for rank in range(RANKS)) + RIDGE / 2 * w @ w


def newton(X, y, w, rho, target, steps):
    for _ in range(steps):
        p = 1 / (1 + np.exp(-X @ w))
        gradient = X.T @ (p - y) + rho * (w - target)
        w = w - np.linalg.solve((X.T * (p * (1 - p))) @ X + rho * np.eye(len(w)), gradient)
    return w


def logistic(way, speed):
    """The z of each round of rank 0, when it came, and the round of the rank."""
    malt.init()
    rank, (X, y) = malt.rank(), part(malt.rank())
    pauses = np.random.default_rng(100 + rank)
    w, found = np.zeros(COLUMNS), []

    def wait():
        if speed == "pauses" and pauses.random() < 1 / EVERY:
            time.sleep(PAUSE)
        elif speed == "one slow" and rank == 1:
            time.sleep(SLOW)

    options = WAYS[way]
    if options is None:
        model = malt.vector(w)
        malt.barrier()
        began = time.monotonic()
        for _ in range(200):
            wait()
            w[:] = newton(X, y, w, RIDGE / RANKS, 0, 1)
            model.allreduce(malt.AVG)
            found.append((time.monotonic() - began, w.copy()))
    else:
        c = malt.optimize.Consensus(
            w, 10.0, prox=lambda v, step: v / (1 + step * RIDGE), rtol=1e-6, atol=1e-8, **options
        )
        malt.barrier()
        began = time.monotonic()
        while not c.converged and time.monotonic() - began < MOST_SECONDS:
            wait()
            w[:] = newton(X, y, w, c.rho, c.target, 1)
            c.exchange()
            found.append((time.monotonic() - began, c.z))
        c.close()
    malt.barrier()
    return [(seconds, z.tolist()) for seconds, z in found]


def optimum():
    from sklearn.linear_model import LogisticRegression

    parts = [part(rank) for rank in range(RANKS)]
    X, y = np.vstack([X for X, _ in parts]), np.hstack([y for _, y in parts])
    model = LogisticRegression(
        C=1 / RIDGE, fit_intercept=False, tol=1e-12, max_iter=10_000, solver="newton-cholesky"
    )
    return total(model.fit(X, y).coef_[0])


def first_within(found, least, share):
    """Rounds and seconds after which the objective stays so close to the least, or None."""
    for at in range(len(found) - 1, -1, -1):
        if total(np.array(found[at][1])) / least - 1 > share:
            return (at + 2, found[at + 1][0]) if at + 1 < len(found) else None
    return 1, found[0][0]


# ---- graph factorisation -------------------------------------------------------------------------
def graph():
    random = np.random.default_rng(0)
    vertices = OF_A_RANK * RANKS
    block = np.arange(vertices) // OF_A_RANK
    odds = np.where(block[:, None] == block, INSIDE, ACROSS)
    edges = np.argwhere(np.triu(random.random((vertices, vertices)) < odds, 1))
    truth = random.standard_normal((vertices, WIDTH))
    values = errors(truth, edges, 0.1 * random.standard_normal(len(edges)))
    return edges, values, block[edges[np.arange(len(edges)), random.integers(2, size=len(edges))]]


def errors(x, edges, values):
    return (x[edges[:, 0]] * x[edges[:, 1]]).sum(1) - values


def objective(x, edges, values):
    squares = sum((x[ends] ** 2).sum() for ends in edges.T)
    return np.sum(errors(x, edges, values) ** 2) / 2 + WEIGHT / 2 * squares


def gradient(x, edges, values):
    e, change = errors(x, edges, values)[:, None], np.zeros_like(x)
    for one, other in (edges.T, edges.T[::-1]):
        np.add.at(change, one, e * x[other] + WEIGHT * x[one])
    return change


def start():
    return 0.3 * np.random.default_rng(1).standard_normal((OF_A_RANK * RANKS, WIDTH))


def with_multipliers(delay, ids, edges, values):
    """The copies of each round, where what has come is used so many rounds later."""
    x, copies = start()[ids], []
    options = {"max_delay": delay + 2} if delay else {}
    c = malt.optimize.Consensus(x, RHO, ids=ids, adapt=False, rtol=0, atol=0, **options)
    rounds, late = c._rounds, deque()

    def keep(_, updates):
        late.extend((update.iteration, update.rank, update.values.copy()) for update in updates)
        while late and late[0][0] <= max(c.rounds + 1 - delay, 1):
            _, rank, payload = late.popleft()
            rounds._newest[rank] = payload
            rounds._fresh.add(rank)

    rounds._keep = keep
    pull = c.is_shared[:, None].copy()
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            x -= RATE * (gradient(x, edges, values) + c.rho * pull * (x - c.target))
        c.exchange()
        malt.barrier()
        copies.append(c.z)
    return copies


def without_multipliers(delay, ids, edges, values):
    """The same, where ranks add each other's changes of a round so many rounds later."""
    everywhere = np.zeros((OF_A_RANK * RANKS, WIDTH))
    changes = malt.vector(everywhere, policy="queue")
    x, copies, late = start()[ids], [], deque()
    for _ in range(ROUNDS):
        before = x.copy()
        for _ in range(STEPS):
            x -= RATE * gradient(x, edges, values)
        everywhere[:] = 0
        everywhere[ids] = x - before
        changes.scatter()
        came = np.zeros_like(everywhere)
        changes.gather(
            lambda _, updates, came=came: (
                [np.add(came, each.values.reshape(came.shape), came) for each in updates] and None
            ),
            staleness=0,
        )
        late.append(came)
        if len(late) > delay:
            x += late.popleft()[ids]
        copies.append(x.copy())
    return copies


def factorisation(kind, delay):
    """The objective of the means of all copies, round by round; and the boundary's size."""
    malt.init()
    edges, values, owner = graph()
    mine = owner == malt.rank()
    ids, local = np.unique(edges[mine], return_inverse=True)
    with np.errstate(all="ignore"):
        copies = kind(delay, ids, local.reshape(-1, 2), values[mine])
        sums = malt.vector((ROUNDS, len(start()), WIDTH), dtype=np.float64)
        holders = np.zeros((len(start()), 1))
        sums.array[:, ids], holders[ids] = copies, 1
        sums.allreduce(malt.SUM)
        holders = malt.allreduce(holders, malt.SUM)
        found = [objective(mean / holders, edges, values) for mean in sums.array]
    return [found, int((holders > 1).sum()), len(edges)]


def in_one_place():
    (edges, values, _), x = graph(), start()
    for _ in range(STEPS * ROUNDS):
        x -= RATE * gradient(x, edges, values)
    return objective(x, edges, values)


KINDS_OF_ROUNDS = {"without": without_multipliers, "with": with_multipliers}


# ---- the report ----------------------------------------------------------------------------------
class Consensus(report.Report):
    def __init__(self, repeats):
        super().__init__("consensus.py", "Consensus", f"{repeats} runs")
        self._sections.append(
            "All ranks are on one host with 2 cores. A round of a rank is one Newton step on its "
            "rows, then an exchange. *rounds* are those of rank 0, and *s* the seconds, after "
            "which the objective over all rows stays within that share of scikit-learn's optimum. "
            f"*pauses*: each rank pauses for {PAUSE * 1000:.0f} ms in one of {EVERY} rounds, at "
            f"random. *one slow*: rank 1 takes {SLOW * 1000:.0f} ms longer for each round. *x* is "
            "the time of synchronous rounds by this one's, and *at least* the goal."
        )

    def logistic(self, repeats):
        least = optimum()
        lines = []
        for speed in SPEEDS:
            synchronous = None
            for way in WAYS:
                say(f"{speed}, {way}")
                runs = [
                    run_ranks(RANKS, __file__, "--way", way, "--speed", speed)
                    for _ in range(repeats)
                ]
                cells, last = [], None
                for share in CLOSE:
                    reached = [first_within(found, least, share) for found in runs]
                    if None in reached:
                        cells += ["-", "never" if way == "averaging models" else "-"]
                        last = None
                    else:
                        rounds, seconds = (
                            statistics.median(column) for column in zip(*reached, strict=True)
                        )
                        last = seconds
                        cells += [f"{rounds:,.0f}", f"{seconds:.3g}"]
                end = statistics.median(total(np.array(found[-1][1])) / least - 1 for found in runs)
                if way == "synchronous":
                    synchronous = last
                lines.append(
                    [
                        speed,
                        way,
                        *cells,
                        f"{max(end, 0):.0e}",
                        *self._speed(speed, way, last, synchronous),
                    ]
                )
        reached = [f"{word} to {share:g}" for share in CLOSE for word in ("rounds", "s")]
        header = ["ranks are", "way", *reached, "at the end", "x", "at least", ""]
        self._sections.append(
            f"### Logistic regression, {RANKS} ranks\n\n{ROWS:,} rows of each rank, {COLUMNS} "
            f"columns, means that differ from rank to rank.\n\n{table(header, lines)}"
        )

    def _speed(self, speed, way, last, synchronous):
        if way in ("averaging models", "synchronous"):
            return ["", "", ""]
        if last is None or synchronous is None:
            return ["", "", self._verdict(f"{speed}, {way}", "not close enough")]
        ratio = synchronous / last
        if speed != "pauses":
            return [times(ratio), "", ""]
        missed = None if over(ratio, FASTER) else times(ratio)
        return [times(ratio), times(FASTER), self._verdict(f"{speed}, {way}", missed)]

    def delays(self, picture):
        least = in_one_place()
        curves, lines = {}, []
        for delay in DELAYS:
            cells = [f"{delay}"]
            for kind in KINDS_OF_ROUNDS:
                say(f"delay {delay}, {kind}")
                found, boundary, edges = run_ranks(
                    RANKS, __file__, "--kind", kind, "--delay", str(delay)
                )
                curves[delay, kind] = np.array(found, float) / least
                ends = curves[delay, kind][-1]
                cells.append(f"{ends:.3f}" if ends < 100 else "diverges")
                if kind == "with":
                    missed = None if ends <= AS_GOOD else f"{ends:.3f}"
                    cells.append(self._verdict(f"delay {delay}", missed))
            lines.append(cells)
        header = ["rounds late", "without multipliers", f"with (at most {AS_GOOD:g})", ""]
        self._sections.append(
            f"### Graph factorisation with late updates, {RANKS} ranks\n\n{edges:,} edges, "
            f"{boundary} of {OF_A_RANK * RANKS} vertices on several ranks, {ROUNDS} rounds of "
            f"{STEPS} gradient steps of length {RATE:g}, rho = {RHO:g}. Updates of other ranks are "
            "used so many rounds after they were sent. *Without multipliers* ranks add each "
            "other's changes. The figures are the objective, by that of the same steps on all "
            f"edges in one place.\n\n{table(header, lines)}"
        )
        if picture:
            draw(picture, curves)


def draw(path, curves):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "malt"  # the same file from the same program
    figure, panels = pyplot.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for panel, (kind, title) in zip(
        panels, (("without", "changes are added"), ("with", "malt.optimize.Consensus")), strict=True
    ):
        for delay, colour in zip(
            DELAYS, ("#24292f", "#0072b2", "#009e73", "#e69f00", "#d55e00"), strict=True
        ):
            panel.plot(
                np.arange(1, ROUNDS + 1),
                curves[delay, kind],
                color=colour,
                lw=1.2,
                label=f"{delay} rounds late",
            )
        panel.set(title=title, xlabel="round", xscale="log", yscale="log", ylim=(0.9, 30))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("objective / in one place")
    panels[1].legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def main():
    p = parser_with_output(__doc__)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--picture", type=Path, metavar="FILE.svg", help="of the late updates")
    for name in ("way", "speed", "kind", "delay", "out"):  # of a rank, which this starts itself as
        p.add_argument(f"--{name}", help=report.argparse.SUPPRESS)
    knobs = p.parse_args()
    if knobs.out:
        found = (
            factorisation(KINDS_OF_ROUNDS[knobs.kind], int(knobs.delay))
            if knobs.kind
            else logistic(knobs.way, knobs.speed)
        )
        if malt.rank() == 0:
            Path(knobs.out).write_text(json.dumps(found))
        return
    result = Consensus(knobs.repeats)
    result.delays(knobs.picture)
    result.logistic(knobs.repeats)
    sys.exit(result.finish(knobs.output))


if __name__ == "__main__":
    main()
