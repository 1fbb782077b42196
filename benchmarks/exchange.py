"""Averaging a dense float32 vector over ranks: MALT beside Open MPI, MPICH and gloo, in one run.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/exchange.py --quick                 # a minute or two
    python benchmarks/exchange.py --output docs/performance.md

The peers are installed on demand, each into an environment of its own under .cache/bench, and run
with the settings that they are fastest with (printed with the table). For each number of ranks the
jobs of all libraries are started side by side, and again in each round. While one of them is timed
the others sleep; for each size they take turns, in an order that moves on by one a turn, so that a
change in what else the machine does meets all of them. A time is the mean over a block of exchanges
back to back, of the slowest rank; of these the median is taken over blocks, turns and rounds, and
ratios are made of medians. Every library's average is checked element by element before and after.

What is compared, always from NumPy memory and with the result in the same memory:
- MALT scatter + gather: `v.scatter(); v.gather(malt.AVG, staleness=0)`, the caller's array;
- MALT allreduce: `v.allreduce(malt.AVG)`, the caller's array;
- MALT allreduce, own memory: the same for `malt.vector(shape)`;
- MPI: mpi4py's `Allreduce(IN_PLACE, array)`, then a division in place;
- gloo: `torch.distributed.all_reduce(tensor)`, then a division in place.

Then: the C++ twins (exchange.cpp; exchange_mpi.c for the peers), what a Python call adds to a C++
one, the time of `import malt`, and the memory of a segment.
"""

import argparse
import contextlib
import math
import statistics
from collections import defaultdict
from pathlib import Path

import exchange_extras as extras
from exchange_peers import Job, choices
from exchange_report import Report
from report import busy_processes, parser_with_output, say

UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20}
SIZES = ["4B", "64B", "4KB", "64KB", "1MB", "16MB", "64MB"]


def size_in_bytes(text):
    number = text.rstrip("BKM")
    try:
        return int(number) * UNITS[text[len(number) :] or "B"]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 4B, 64KB or 1MB") from None


def parse():
    parser = parser_with_output(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument(
        "--sizes",
        type=size_in_bytes,
        nargs="+",
        metavar="SIZE",
        default=[size_in_bytes(size) for size in SIZES],
        help="e.g. 4B 64KB 1MB",
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=["openmpi", "mpich", "gloo"],
        default=["openmpi", "mpich", "gloo"],
    )
    parser.add_argument("--rounds", type=int, default=3, help="times that all jobs are started")
    parser.add_argument("--turns", type=int, default=5, help="times a size, in each round")
    parser.add_argument("--blocks", type=int, default=3, help="in each turn")
    parser.add_argument(
        "--skip", nargs="*", default=[], choices=["exchange", "cpp", "import", "memory"]
    )
    parser.add_argument(
        "--program",
        type=Path,
        help="exchange.cpp, built (if not given, CMake's preset release builds it)",
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="other processes that compute, while ranks exchange"
    )
    parser.add_argument("--quick", action="store_true", help="one round, fewer turns, up to 16 MB")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.turns = 1, 3
        options.sizes = [size for size in options.sizes if size <= 16 << 20]
    return options


def measure_size(jobs, size, options, seconds):
    """Adds each library's times to seconds[library, variant, its choice of settings]."""
    ways = []
    for job in jobs:
        ways += [(job, variant) for variant in job.ask(do="prepare", bytes=size)[0]]
    plans = {(job, variant): job.plan(variant, options.blocks) for job, variant in ways}
    for turn in range(options.turns):
        first = turn % len(ways)
        for way in ways[first:] + ways[:first]:
            job, variant = way
            key = (job.name, variant, str(job.choice))
            seconds[key].append(job.time(variant, *plans[way]))
    for job in jobs:
        job.ask(do="drop")


def measure_exchange(options):
    """Median seconds by ranks, size, library and variant."""
    medians = {}
    for ranks in options.ranks:
        seconds = defaultdict(lambda: defaultdict(list))
        for number in range(options.rounds):
            with contextlib.ExitStack() as stack:
                jobs = [
                    stack.enter_context(Job(name, ranks, choice))
                    for name in ["malt", *options.peers]
                    for choice in choices(name, ranks + options.busy)
                ]
                stack.enter_context(busy_processes(options.busy))
                for size in options.sizes:
                    say(f"{ranks} ranks, round {number + 1} of {options.rounds}, {size} bytes")
                    measure_size(jobs, size, options, seconds[size])
        for size, by_way in seconds.items():
            for (name, variant, *_), taken in by_way.items():
                key = (ranks, size, name, variant)
                medians[key] = min(statistics.median(taken), medians.get(key, math.inf))
    return medians


def main():
    options = parse()
    report = Report(options)
    if "exchange" not in options.skip:
        report.exchange(measure_exchange(options))
    if "cpp" not in options.skip:
        report.cpp(extras.measure_cpp(options, say))
    if "import" not in options.skip:
        report.imports(extras.measure_import(15 if options.quick else 41))
    if "memory" not in options.skip:
        report.memory(extras.measure_memory())
    say("")
    return report.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
