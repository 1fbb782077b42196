"""What a rank of a large job costs, and how that grows with the number of ranks.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/scale.py                            # some minutes
    python benchmarks/scale.py --output docs/scale.md

Each rank is a host of its own over TCP, all of them on this machine, so their work shares its
cores. Of each figure the table has the median of several jobs, and the power of the number of ranks
with which it grows: 0 for one that stays, 1 for one that grows with it.
"""

import json
import math
import os
import socket
import statistics
import struct
import sys
import time
from pathlib import Path

from report import measured, parser_with_output, run_ranks, say, table, write

SIZES = [16, 32, 64, 128]
JOBS = 3
IDLE = 4.0  # seconds
# The place of bytes_acked and bytes_received in Linux's struct tcp_info.
CARRIED = struct.Struct("120x2Q")
# Measured by rank 0; the title and the form of each in the table.
FIGURES = {
    "join": ("join, s", "{:.2f}"),
    "first_vector": ("first vector, s", "{:.2f}"),
    "first_allreduce": ("first allreduce, s", "{:.2f}"),
    "round": ("round over HALTON, ms", "{:.1f}"),
    "idle": ("idle, bytes a second", "{:.0f}"),
    "connections": ("connections", "{:.0f}"),
    "descriptors": ("descriptors", "{:.0f}"),
    "memory": ("own memory, MiB", "{:.1f}"),
    "vector_memory": ("vector of 1 MiB over HALTON, MiB", "{:.1f}"),
}


def carried():
    """The bytes that each TCP connection of this process has carried, both ways, by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed since, or no socket
            continue
        with one:
            try:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, CARRIED.size)
                one.getpeername()
            except OSError:  # no TCP, or a listener
                continue
        found[name] = sum(CARRIED.unpack(info))
    return found


def own_memory():
    """The memory that this process shares with no other, in MiB."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    own = [line.split() for line in rollup.splitlines() if line.startswith("Private_")]
    return sum(int(words[1]) for words in own) / 1024


def run_rank(out):
    """One rank of the job; rank 0 writes what it has measured."""
    import numpy as np

    import malt

    rank, size = int(os.environ["MALT_RANK"]), int(os.environ["MALT_SIZE"])
    folder, found = out.parent, {}

    def took(call):
        start = time.perf_counter()
        result = call()
        return result, time.perf_counter() - start

    # Importing takes longer than joining, and some ranks begin sooner.
    (folder / f"imported-{rank}").touch()
    while len(list(folder.glob("imported-*"))) < size:
        time.sleep(0.01)
    _, found["join"] = took(lambda: malt.init(transport="tcp", timeout=300))
    malt.barrier()
    vector, found["first_vector"] = took(lambda: malt.vector(np.ones(4, np.float32)))
    malt.barrier()
    _, found["first_allreduce"] = took(lambda: vector.allreduce(malt.SUM))
    rounds = malt.vector(np.ones(1 << 18, np.float32), graph=malt.HALTON)
    times = []
    for _ in range(5):
        malt.barrier()
        start = time.perf_counter()
        rounds.scatter()
        rounds.gather(staleness=0)
        times.append(time.perf_counter() - start)
    found["round"] = statistics.median(times) * 1e3
    found["vector_memory"] = rounds.stats().memory_bytes / (1 << 20)
    malt.barrier()
    time.sleep(1)
    before = carried()
    time.sleep(IDLE)
    after = carried()
    bytes_ = sum(after[name] - before[name] for name in after.keys() & before.keys())
    found["idle"] = bytes_ / IDLE
    found["connections"] = len(after)
    found["descriptors"] = len(os.listdir("/proc/self/fd"))
    found["memory"] = own_memory()
    malt.barrier()
    if rank == 0:
        out.write_text(json.dumps(found))


def power(sizes, values):
    """The slope of the values over the sizes, both as logarithms, by least squares."""
    if min(values) <= 0:
        return 0.0
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(value) for value in values]
    ).slope


def main():
    if sys.argv[1:2] == ["--out"]:  # a rank's process
        return run_rank(Path(sys.argv[2]))
    p = parser_with_output(__doc__)
    p.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    p.add_argument("--jobs", type=int, default=JOBS)
    knobs = p.parse_args()
    medians = {}
    for size in knobs.ranks:
        jobs = []
        for job in range(knobs.jobs):
            say(f"{size} ranks, job {job + 1} of {knobs.jobs}")
            jobs.append(run_ranks(size, __file__))
        medians[size] = {name: statistics.median(job[name] for job in jobs) for name in FIGURES}
    rows = []
    for name, (title, shown) in FIGURES.items():
        values = [medians[size][name] for size in knobs.ranks]
        cells = [shown.format(value) for value in values]
        rows.append([title, *cells, f"{power(knobs.ranks, values):.2f}"])
    text = f"{measured()}: medians of {knobs.jobs} jobs.\n\n" + table(
        ["rank 0 of", *map(str, knobs.ranks), "grows as N to the"], rows
    )
    print(text)
    if knobs.output:
        write(knobs.output, "scale.py", f"## Measured\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
