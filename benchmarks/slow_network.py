"""What codecs gain over slow networks: time a step, and time to an accuracy.

    . .venv/bin/activate                                  # after ./dev test
    pip install torch==2.13.0
    sudo -E python benchmarks/slow_network.py
    sudo -E python benchmarks/slow_network.py --output docs/performance.md

Two hosts of a rank each, which are network namespaces (tests/hosts/) on a switch, with links whose
rate a token bucket limits in each direction. The ranks exchange the gradients of each step.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / "hosts"), str(TESTS / "harness")]

import report  # noqa: E402 # after the path
from host_jobs import HostJob  # noqa: E402
from report import KB, parser_with_output, say, table, times  # noqa: E402
from slow_network_worker import CODECS  # noqa: E402

from hosts import Hosts, why_not  # noqa: E402

WORKER = Path(__file__).with_name("slow_network_worker.py")
RATES = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit"}
GOAL = 0.8
LIMIT_SECONDS = 300


def measure(rate, seed):
    """What rank 0 of a job over such links has measured, by codec."""
    with tempfile.TemporaryDirectory() as directory, Hosts(Path(directory), 2) as hosts:
        for host in (0, 1):
            hosts.slow(host, rate)
        out = Path(directory) / "result.json"
        arguments = ["--goal", GOAL, "--seed", seed, "--out", out]
        HostJob(hosts, on=(0, 1), ranks=1, command=[WORKER, *arguments]).finish(LIMIT_SECONDS)
        return json.loads(out.read_text())


class Report(report.Report):
    def codecs(self, measured):
        rows = []
        for rate in RATES:
            for codec in CODECS:
                seconds, steps, sent = (
                    statistics.median(result[key] for result in measured[rate, codec])
                    for key in ("seconds", "steps", "bytes")
                )
                step = statistics.median(
                    result["seconds"] / result["steps"] for result in measured[rate, codec]
                )
                if codec == "none":
                    plain, plain_step = seconds, step
                row = [rate, codec, f"{sent / KB:,.1f}", f"{1e3 * step:.2f}"]
                row += [times(plain_step / step), f"{steps:.0f}", f"{seconds:.2f}"]
                rows.append([*row, times(plain / seconds)])
        header = ["link", "codec", "KB a step", "ms a step", "x none"]
        header += ["steps to it", "s to it", "x none"]
        self._sections.append(
            "A network of 269,322 parameters (784-256-256-10) on Fashion-MNIST, batches of 64 on "
            "each of 2 ranks, whose gradients are averaged at each step over TCP between two "
            f"hosts: bytes sent by a rank, and steps and time to {GOAL:.0%} of the test pictures "
            f"on both, looked at every 20 steps.\n\n{table(header, rows)}"
        )


def main():
    parser = parser_with_output(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="trainings, each with another seed")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    measured = {(rate, codec): [] for rate in RATES for codec in CODECS}
    for seed in range(options.rounds):
        for rate, name in RATES.items():
            say(f"{rate}, round {seed + 1} of {options.rounds}")
            for codec, result in measure(name, seed).items():
                measured[rate, codec].append(result)
    made = Report("slow_network.py", "Codecs over slow networks", f"{options.rounds} rounds")
    made.codecs(measured)
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
