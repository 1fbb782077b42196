"""What other open vectors cost: rounds a second of one vector beside 0, 1,000 and 3,000 others.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/open_vectors.py
    python benchmarks/open_vectors.py --output docs/performance.md

2 ranks on this machine, by each transport: a round is `scatter` and `gather` at staleness 0 of
8,000 bytes, and others do nothing. In one job, again and again: rounds beside none, more vectors,
rounds beside those, and so on; then the others are closed. Ratios are made within a turn. Where
other programs have the cores, rounds a second say little: so the target is for the processor time
that a scatter takes of its rank's thread.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict

import report
from report import microseconds, parser_with_output, table, times

TRANSPORTS = ["tcp", "shm"]
OTHERS = [0, 1000, 3000]
ELEMENTS = 1000
BLOCKS, ROUNDS = 5, 400
MOST = 1.1  # of the time beside none


def run_rank(turns):
    """What one rank of the job does; rank 0 prints a line of JSON a turn."""
    import numpy as np

    import malt

    malt.init(timeout=60)
    vector = malt.vector(np.ones(ELEMENTS))
    alone = malt.vector(np.ones(ELEMENTS))  # which one rank scatters

    def rate():
        """Rounds a second: the best of some blocks, as others may have the cores meanwhile."""
        best = 0.0
        for _ in range(BLOCKS):
            malt.barrier()
            start = time.perf_counter()
            for _ in range(ROUNDS):
                vector.scatter()
                vector.gather(staleness=0)
            best = max(best, ROUNDS / (time.perf_counter() - start))
        return best

    def scatter():
        """Seconds of the processor that a scatter takes of rank 0's thread, as the others sleep."""
        best = math.inf
        for _ in range(BLOCKS):
            malt.barrier()
            start = time.thread_time()
            for _ in range(ROUNDS if malt.rank() == 0 else 0):
                alone.scatter()
            best = min(best, (time.thread_time() - start) / ROUNDS)
            malt.barrier()
            alone.gather()
        return best

    for _ in range(turns):
        others, measured = [], {}
        for count in OTHERS:
            start = time.perf_counter()
            more = count - len(others)
            others += [malt.vector(np.ones(10)) for _ in range(more)]
            made = (time.perf_counter() - start) / max(more, 1)
            measured[count] = rate(), scatter(), made
        if malt.rank() == 0:
            print(json.dumps(measured), flush=True)
        del others
        malt.barrier()


def measure(transport, turns):
    """By number of others: rounds a second, seconds a scatter, these by those beside none, and the
    seconds to make one."""
    command = [sys.executable, "-m", "malt", "run", "-n", "2", __file__, "--rank", str(turns)]
    done = subprocess.run(
        command,
        env=os.environ | {"MALT_TRANSPORT": transport},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = defaultdict(list)
    for line in done.stdout.splitlines():
        measured = json.loads(line.partition("] ")[2])
        for others, (rate, scatter, made) in measured.items():
            found[int(others)].append((rate, scatter, scatter / measured[str(OTHERS[0])][1], made))
    return {
        others: [statistics.median(column) for column in zip(*rows, strict=True)]
        for others, rows in found.items()
    }


class Report(report.Report):
    def rates(self, found):
        rows = []
        for transport, by_count in found.items():
            for others, (rate, scatter, ratio, made) in by_count.items():
                verdict = self._verdict(
                    f"{transport}, {others:,} others", ratio > MOST and "scatter"
                )
                row = [transport, f"{others:,}", f"{rate:,.0f}", microseconds(scatter)]
                rows.append([*row, times(ratio), microseconds(made) if others else "", verdict])
        header = ["transport", "other vectors", "rounds a second", "a scatter", "x none"]
        header += ["to make one", ""]
        self._sections.append(
            "2 ranks beside vectors that do nothing: rounds a second (`scatter` and `gather` at "
            "staleness 0 of 8,000 bytes), microseconds of the processor that a `scatter` takes of "
            "its rank's thread, by that beside none (at most "
            f"{MOST:g}), and microseconds in which one of the others was made.\n\n"
            + table(header, rows)
        )


def main():
    parser = parser_with_output(__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rank", type=int, metavar="TURNS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank)
        return 0
    made = Report("open_vectors.py", "Other open vectors", f"{options.turns} turns")
    made.rates({transport: measure(transport, options.turns) for transport in TRANSPORTS})
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
