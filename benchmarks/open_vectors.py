"""What other open vectors cost: rounds a second of one vector beside 0, 1,000 and 3,000 others.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/open_vectors.py
    python benchmarks/open_vectors.py --output docs/performance.md

2 ranks on this machine, by each transport: a round is `scatter` and `gather` at staleness 0 of
8,000 bytes, and others do nothing. In one job, again and again: rounds beside none, more vectors,
rounds beside those, and so on; then the others are closed. Ratios are made within a turn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import report
from report import table, times

TRANSPORTS = ["tcp", "shm"]
OTHERS = [0, 1000, 3000]
ELEMENTS = 1000
BLOCKS, ROUNDS = 5, 400
LEAST = 0.9  # of the rounds beside none


def run_rank(turns):
    """What one rank of the job does; rank 0 prints a line of JSON a turn."""
    import numpy as np

    import malt

    malt.init(timeout=60)
    vector = malt.vector(np.ones(ELEMENTS))

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

    for _ in range(turns):
        others, rates, seconds = [], {}, {}
        for count in OTHERS:
            start = time.perf_counter()
            more = count - len(others)
            others += [malt.vector(np.ones(10)) for _ in range(more)]
            seconds[count] = (time.perf_counter() - start) / max(more, 1)
            rates[count] = rate()
        if malt.rank() == 0:
            print(json.dumps([rates, seconds]), flush=True)
        del others
        malt.barrier()


def measure(transport, turns):
    """By number of others: rounds a second, by those beside none, and seconds to make one."""
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
        rates, seconds = json.loads(line.partition("] ")[2])
        for others, rate in rates.items():
            ratio = rate / rates[str(OTHERS[0])]
            found[int(others)].append((rate, ratio, seconds[others]))
    return {
        others: [statistics.median(column) for column in zip(*rows, strict=True)]
        for others, rows in found.items()
    }


class Report(report.Report):
    def rates(self, found):
        rows = []
        for transport, by_count in found.items():
            for others, (rate, ratio, seconds) in by_count.items():
                verdict = self._verdict(
                    f"{transport}, {others:,} others", ratio < LEAST and "rounds a second"
                )
                made = f"{seconds * 1e6:,.0f}" if others else ""
                rows.append([transport, f"{others:,}", f"{rate:,.0f}", times(ratio), made, verdict])
        header = ["transport", "other vectors", "rounds a second", "x none", "us to make one", ""]
        self._sections.append(
            "Rounds a second (`scatter` and `gather` at staleness 0 of 8,000 bytes) of 2 ranks "
            "beside vectors that do nothing, and the time in which one of these was made. Wanted "
            f"of the rounds beside none: {LEAST:g}.\n\n" + table(header, rows)
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rank", type=int, metavar="TURNS", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="also write the table there")
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank)
        return 0
    made = Report("open_vectors.py", "Other open vectors", f"{options.turns} turns")
    made.rates({transport: measure(transport, options.turns) for transport in TRANSPORTS})
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
