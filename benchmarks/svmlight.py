"""Reading svmlight text: malt.load_data beside scikit-learn's load_svmlight_file.

    . .venv/bin/activate                                  # after ./dev test
    pip install scikit-learn
    python benchmarks/svmlight.py
    python benchmarks/svmlight.py --output docs/performance.md

One file, shaped as RCV1, is written with values of 6 and of 16 digits (as scikit-learn's
dump_svmlight_file does). Each reading is a process of its own on one core, the two in turn; what
counts is its processor time, so that other work on the machine weighs less, and its peak of memory
above what it had before, over the bytes of the matrix and labels that it returns.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import report
from report import MB, parser_with_output, say, table, times

FEATURES = 47_236
FASTER, MOST_MEMORY = 10, 1.2  # the targets
DIGITS = {"6 digits": "%d:%.6g", "16 digits": "%d:%.16g"}
READERS = {
    "malt": (
        "import malt as library",
        "data = library.load_data(path, dtype=dtype, threads=1); x, y = data.X, data.y",
    ),
    "scikit-learn": (
        "import sklearn.datasets as library",
        "x, y = library.load_svmlight_file(path, dtype=dtype)",
    ),
}

READING = """
import json, os, sys, time
import numpy, scipy.sparse
{imports}
path, small, dtype = sys.argv[1:]
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

def read(path):
    {call}
    return x, y

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

read(small)  # what is imported late
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before, start = memory("VmRSS"), time.process_time()
x, y = read(path)
seconds = time.process_time() - start
result = x.data.nbytes + x.indices.nbytes + x.indptr.nbytes + y.nbytes
peak = memory("VmHWM") - before
print(json.dumps({{"seconds": seconds, "memory": peak / result, "sum": float(x.data.sum())}}))
"""


def write_file(path, number, rows):
    """Rows of 76 draws of Zipf-distributed columns, of length 1."""
    random = np.random.default_rng(0)
    common = 1 / np.arange(1, FEATURES + 1) ** 1.1
    edges = np.cumsum(common / common.sum())
    with path.open("w") as file:
        for _ in range(rows):
            draws = np.searchsorted(edges, random.random(random.poisson(76) + 1))
            columns, counts = np.unique(np.minimum(draws, FEATURES - 1), return_counts=True)
            values = (1 + np.log(counts)) * -np.log(common[columns] / 2)
            values /= np.linalg.norm(values)
            pairs = zip((columns + 1).tolist(), values.tolist(), strict=True)
            label = 1 if random.random() < 0.5 else -1
            file.write(f"{label} " + " ".join(number % pair for pair in pairs) + "\n")


def measure(reader, path, small, dtype):
    imports, call = READERS[reader]
    command = [sys.executable, "-c", READING.format(imports=imports, call=call)]
    done = subprocess.run(
        [*command, str(path), str(small), dtype], check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


class Svmlight(report.Report):
    def measure(self, rows, repeats):
        lines = []
        with tempfile.TemporaryDirectory() as directory:
            small = Path(directory) / "small.svm"
            small.write_text("1 1:1\n")
            for digits, number in DIGITS.items():
                path = Path(directory) / "data.svm"
                say(f"writing {rows} rows of {digits}")
                write_file(path, number, rows)
                for dtype in ("float32", "float64"):
                    lines.append(self._compare(path, small, digits, dtype, repeats))
        header = ["values", "dtype", "MALT, MB/s", "memory / result", "scikit-learn, MB/s"]
        self._sections.append(
            table([*header, "memory / result", "MALT / scikit-learn", ""], lines)
            + f"\n\nTargets: {FASTER} times as fast on one core, memory at most {MOST_MEMORY} "
            "times the result."
        )

    def _compare(self, path, small, digits, dtype, repeats):
        size = os.path.getsize(path)
        runs = {reader: [] for reader in READERS}
        for turn in range(repeats):
            say(f"{digits}, {dtype}, turn {turn + 1} of {repeats}")
            for reader, results in runs.items():
                results.append(measure(reader, path, small, dtype))
        sums = [run["sum"] for results in runs.values() for run in results]
        assert np.allclose(sums, sums[0], rtol=1e-4), "they read different numbers"
        rates = {
            reader: size / MB / statistics.median(run["seconds"] for run in results)
            for reader, results in runs.items()
        }
        memory = {
            reader: statistics.median(run["memory"] for run in results)
            for reader, results in runs.items()
        }
        ratio = rates["malt"] / rates["scikit-learn"]
        verdict = self._verdict(
            f"{digits}, {dtype}",
            f"{times(ratio)} times as fast" if ratio < FASTER else None,
            f"memory {memory['malt']:.2f}" if memory["malt"] > MOST_MEMORY else None,
        )
        cells = [f"{value:.{places}f}" for reader in READERS for value, places in (
            (rates[reader], 0), (memory[reader], 2))]  # fmt: skip
        return [digits, dtype, *cells, times(ratio), verdict]


def main():
    parser = parser_with_output(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    result = Svmlight("svmlight.py", "Reading svmlight text", f"{arguments.repeats} processes each")
    result.measure(arguments.rows, arguments.repeats)
    return result.finish(arguments.output)


if __name__ == "__main__":
    sys.exit(main())
