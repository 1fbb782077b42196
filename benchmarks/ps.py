"""The parameter server: keys a second of malt.ps.Table, by those of Ray actors and ps-lite.

    . .venv/bin/activate                                  # after ./dev build
    python benchmarks/ps.py
    python benchmarks/ps.py --ps-lite DIR --output docs/performance.md

2 workers and 2 servers on this machine. A round of a worker: push gradients of some keys, wait for
the acknowledgement, pull the same keys. Each key that is pushed or pulled counts. The keys are
every fourth row of a table, on the average, drawn at random once. With each filter of a table, over
TCP, the bytes that a key takes are reported too; the gradients are then normal numbers. Ray's
servers are actors that each hold half of the rows as a NumPy array, with `rows[keys] += gradients`;
its workers are actors too.

DIR is a checkout of ps-lite (github.com/dmlc/ps-lite), the parameter server of Li et al. (OSDI
2014), which is built here: that needs libzmq3-dev, libprotobuf-dev and protobuf-compiler. Its five
processes (DMLC_LOCAL: they use local sockets) run benchmarks/ps_lite.cpp on the same keys.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import report
from report import measured, parser_with_output, run_ranks, table

KEYS = [1_000, 10_000, 100_000, 1_000_000]
WIDTHS = [1, 16]
WORKERS = 2
SECONDS = 1.0  # of each measurement
FILTERED = 100_000  # keys
TARGET = 20.0  # times Ray's
TARGET_PS_LITE = 3.0


def drawn(keys, width, worker):
    rng = np.random.default_rng(worker)
    rows = 4 * keys
    chosen = np.sort(rng.choice(rows, keys, replace=False)).astype(np.int64)
    return rows, chosen, np.ones((keys, width), np.float32)


def rate_of(round_of, keys, seconds=SECONDS):
    """Keys a second of this worker."""
    round_of()
    rounds, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds:
        round_of()
        rounds += 1
    return 2 * keys * rounds / taken


def run_rank(out, with_filters):
    import malt

    malt.init(timeout=60)
    found = {}

    def measure(cell, width, keys, rows, gradients, **filters):
        with malt.ps.Table(rows, width, **filters) as table:
            rounds, pulled = 0, np.empty_like(gradients[0])

            def round_of():
                nonlocal rounds
                rounds += 1
                table.wait(table.push(keys, gradients[rounds % len(gradients)]))
                table.pull(keys, out=pulled)

            malt.barrier()
            sums = malt.vector(np.zeros(3), name=cell)
            sums.array[0] = rate_of(round_of, len(keys))
            stats = table.stats()
            sums.array[1:] = [each / rounds / len(keys) / WORKERS for each in stats[:2]]
            sums.allreduce(malt.SUM)
            found[cell] = sums.array.tolist()

    for width in WIDTHS:
        if not with_filters:
            for count in KEYS:
                rows, keys, ones = drawn(count, width, malt.rank())
                measure(f"{width} {count}", width, keys, rows, [ones])
            continue
        rows, keys, ones = drawn(FILTERED, width, malt.rank())
        rng = np.random.default_rng(malt.rank())
        normal = [rng.normal(size=ones.shape).astype(np.float32) for _ in range(5)]
        for name, filters in filters_of().items():
            measure(f"{name}, width {width}", width, keys, rows, normal, **filters)
    if malt.rank() == 0:
        Path(out).write_text(json.dumps(found))


def filters_of():
    """Arguments of a table, by name."""
    import malt

    filters = {
        "cached_keys=100_000": {"cached_keys": 100_000},
        "codec=FLOAT16": {"codec": malt.FLOAT16},
        "codec=INT8": {"codec": malt.INT8},
        "threshold=3": {"threshold": 3.0},
    }
    chosen = filters["cached_keys=100_000"] | filters["codec=FLOAT16"]
    return {"none": {}, **filters, "cached_keys and FLOAT16": chosen}


def run_ray():
    import ray

    ray.init(num_cpus=2 * WORKERS, log_to_driver=False, include_dashboard=False)

    @ray.remote
    class Server:
        def __init__(self, first, rows, width):
            self.first, self.rows = first, np.zeros((rows, width), np.float32)

        def push(self, keys, gradients):
            self.rows[keys - self.first] += gradients

        def pull(self, keys):
            return self.rows[keys - self.first]

    @ray.remote
    class Worker:
        def rate(self, servers, count, width, worker):
            rows, keys, gradients = drawn(count, width, worker)
            cut = np.searchsorted(keys, rows // 2)
            parts = [(keys[:cut], gradients[:cut]), (keys[cut:], gradients[cut:])]

            def round_of():
                sent = [s.push.remote(*part) for s, part in zip(servers, parts, strict=True)]
                ray.get(sent)
                asked = [s.pull.remote(part[0]) for s, part in zip(servers, parts, strict=True)]
                np.concatenate(ray.get(asked))

            return rate_of(round_of, count)

    workers = [Worker.remote() for _ in range(WORKERS)]
    found = {}
    for width in WIDTHS:
        for count in KEYS:
            half = 2 * count
            servers = [Server.remote(first, half, width) for first in (0, half)]
            asked = [w.rate.remote(servers, count, width, i) for i, w in enumerate(workers)]
            found[f"{width} {count}"] = sum(ray.get(asked))
            for server in servers:
                ray.kill(server)
    ray.shutdown()
    return found


def build_ps_lite(checkout, folder):
    """The program's path."""
    source = checkout / "src"
    subprocess.run(["protoc", f"--cpp_out={folder}", f"-I{source}", "meta.proto"], check=True)
    sources = [source / f"{name}.cc" for name in ("customer", "postoffice", "van")]
    sources += [folder / "meta.pb.cc", Path(__file__).with_name("ps_lite.cpp")]
    includes = [f"-I{each}" for each in (checkout / "include", source, folder)]
    libraries = ["-lzmq", "-lprotobuf", "-lpthread"]
    program = folder / "ps_lite"
    subprocess.run(
        ["g++", "-O3", "-std=c++17", "-w", *includes, *sources, *libraries, "-o", program],
        check=True,
    )
    return program


def run_ps_lite(program):
    return {
        f"{width} {count}": rate_of_ps_lite(program, width, count)
        for width in WIDTHS
        for count in KEYS
    }


def rate_of_ps_lite(program, width, count):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = os.environ | {
        "DMLC_LOCAL": "1",
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": str(WORKERS),
        "DMLC_NUM_WORKER": str(WORKERS),
    }
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(worker) for worker in range(WORKERS)]
        for worker, file in enumerate(files):
            rows, keys, _ = drawn(count, width, worker)
            keys.tofile(file)
        started = [
            subprocess.Popen(
                [program, str(rows), str(width), str(SECONDS), *files],
                env=environ | {"DMLC_ROLE": role},
                stdout=subprocess.PIPE,
            )
            for role in ("scheduler", *["server"] * WORKERS, *["worker"] * WORKERS)
        ]
        return sum(float(each.communicate(timeout=60)[0] or 0) for each in started)


class Report(report.Report):
    def __init__(self, turns):
        super().__init__("ps.py", "The parameter server", "")
        self._sections = [f"{measured()}: medians, {turns} turn(s)."]

    def rates(self, ours, peers):
        """`peers`: by name, what each reached in each turn, and how many times that MALT should."""
        rows = []
        for width in WIDTHS:
            for count in KEYS:
                cell = f"{width} {count}"
                mine = statistics.median(each[cell][0] for each in ours)
                row = [f"{count:,}", str(width), f"{mine / 1e6:.2f}"]
                for name, (turns, target) in peers.items():
                    theirs = statistics.median(each[cell] for each in turns)
                    ratio = mine / theirs
                    missed = ratio < target and f"{ratio:.1f} times {name}"
                    verdict = self._verdict(f"{count:,} keys of width {width}", missed)
                    row += [f"{theirs / 1e6:.2f}", f"{ratio:.1f}", verdict]
                rows.append(row)
        header = ["keys a push", "width", "MALT (million keys/s)"]
        for name, (_, target) in peers.items():
            header += [f"{name} (million keys/s)", f"x {name} (at least {target:.0f})", ""]
        self._sections.append(
            f"{WORKERS} workers and {WORKERS} servers; a round pushes, waits for the "
            "acknowledgement, and pulls the same keys. MALT and ps-lite pull into an array that is "
            "used again; Ray's actors return new ones.\n\n" + table(header, rows)
        )

    def filters(self, ours):
        rows = []
        for width in WIDTHS:
            for name in filters_of():
                cells = [each[f"{name}, width {width}"] for each in ours]
                rate, out, back = (statistics.median(each) for each in zip(*cells, strict=True))
                rows.append([name, str(width), f"{out:.2f}", f"{back:.2f}", f"{rate / 1e6:.2f}"])
        header = ["filter", "width", "bytes sent a key", "bytes received a key", "million keys/s"]
        self._sections.append(
            f"With filters, over TCP, {FILTERED:,} keys a push. The bytes are those of one push "
            "and one pull, with the messages' heads:\n\n" + table(header, rows)
        )


def main():
    parser = parser_with_output(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ps-lite", type=Path, metavar="DIR", help="a checkout of it")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--filters", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        run_rank(options.out, options.filters)
        return 0
    made = Report(options.turns)
    ours, rays, lites = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        program = options.ps_lite and build_ps_lite(options.ps_lite, Path(folder))
        for _ in range(options.turns):
            rates = run_ranks(WORKERS, __file__)
            # On one host a pull has no bytes.
            filtered = run_ranks(WORKERS, __file__, "--filters", MALT_TRANSPORT="tcp")
            ours.append(rates | filtered)
            rays.append(run_ray())
            if program:
                lites.append(run_ps_lite(program))
    peers = {"Ray": (rays, TARGET)}
    if lites:
        peers["ps-lite"] = lites, TARGET_PS_LITE
    made.rates(ours, peers)
    made.filters(ours)
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
