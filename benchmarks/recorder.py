"""What the recorder costs: rounds with it on, by the same rounds with it off.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/recorder.py
    python benchmarks/recorder.py --output docs/performance.md

2 ranks on this machine: a round is `scatter` and `gather` at staleness 0. Jobs with the recorder
off and on take turns. Each figure is the least processor time that a rank's thread took for a
round, over many blocks and all turns, as other programs may have the cores meanwhile. A round makes
the same events however long it is. So the target is for what is added to the shortest round, where
it can be told from noise, as a part of a round of 20 us.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time

import report
from report import measured, microseconds, parser_with_output, table

ELEMENTS = [1000, 40_000]
BLOCKS, ROUNDS = 40, 500
TARGET_US = 20  # a round for which the limit holds
MOST = 1.01  # of the time without the recorder, for a round of TARGET_US


def run_rank():
    """What one rank of a job does; rank 0 prints a line of JSON."""
    import numpy as np

    import malt

    malt.init(timeout=60)
    found = {}
    for elements in ELEMENTS:
        array = np.ones(elements, np.float32)
        vector = malt.vector(array)
        best = math.inf
        for _ in range(BLOCKS):
            malt.barrier()
            start = time.thread_time()
            for _ in range(ROUNDS):
                vector.scatter()
                vector.gather(staleness=0)
            best = min(best, (time.thread_time() - start) / ROUNDS)
        found[elements] = best
    if malt.rank() == 0:
        print(json.dumps(found), flush=True)


def measure(is_on):
    """By number of elements: seconds a round."""
    command = [sys.executable, "-m", "malt", "run", "-n", "2", __file__, "--rank"]
    done = subprocess.run(
        command,
        env=os.environ | {"MALT_RECORD": "1" if is_on else "0"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.partition("] ")[2])


class Report(report.Report):
    def __init__(self, turns):
        super().__init__("recorder.py", "The recorder", "")
        self._sections = [f"{measured()}: the best of {turns} turns."]

    def costs(self, turns):
        rows = []
        for elements in map(str, ELEMENTS):
            off, on = (min(turn[which][elements] for turn in turns) for which in (0, 1))
            cells = [f"{4 * int(elements):,} B", microseconds(off), f"{1e9 * (on - off):.0f}"]
            rows.append([*cells, f"{on / off:.3f}"])
        short = str(ELEMENTS[0])
        off, on = (min(turn[which][short] for turn in turns) for which in (0, 1))
        ratio = 1 + (on - off) / (TARGET_US * 1e-6)
        verdict = self._verdict("the recorder", ratio > MOST and f"{ratio:.4f}")
        self._sections.append(
            "2 ranks, `scatter` and `gather` at staleness 0, with the recorder off and on in "
            "turns.\n\n"
            + table(["vector", "a round, off (us)", "more with it on (ns)", "x off"], rows)
            + f"\n\nWith what the recorder adds to the shortest round, a round of {TARGET_US} us "
            f"takes {ratio:.4f} times as long (target: at most {MOST:g}): {verdict}."
        )


def main():
    parser = parser_with_output(__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank()
        return 0
    made = Report(options.turns)
    made.costs([(measure(False), measure(True)) for _ in range(options.turns)])
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
