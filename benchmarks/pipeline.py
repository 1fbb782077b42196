"""A layer pipeline of 2 stages, beside torch.distributed.pipelining over gloo and one process.

    . .venv/bin/activate                                  # after ./dev build
    pip install torch==2.13.0
    python benchmarks/pipeline.py
    python benchmarks/pipeline.py --output docs/performance.md

The ways take turns in blocks of one job; the first steps warm up. Each rank has one thread.
"""

import statistics
from pathlib import Path

import report
from report import parser_with_output, run_ranks, say, table, times

WORKER = Path(__file__).with_name("pipeline_worker.py")
LEAST = 1.5  # times the examples a second of torch.distributed.pipelining
SHAPES = ((64, 64), (256, 128), (1024, 256), (64, 16384))  # units of a layer, rows of a batch
MICROBATCHES = (2, 8)
CASES = [(*shape, microbatches) for shape in SHAPES for microbatches in MICROBATCHES]
SCHEDULES = ("1f1b", "gpipe")


def parse():
    parser = parser_with_output(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each schedule")
    parser.add_argument("--blocks", type=int, default=5, help="of each way in a job")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block, about")
    return parser.parse_args()


def measure(options):
    """By schedule and case: the seconds a step of each way's blocks, in all jobs."""
    found = {schedule: {} for schedule in SCHEDULES}
    names = [",".join(map(str, case)) for case in CASES]
    for round_ in range(options.rounds):
        for schedule, before in found.items():
            say(f"{schedule}, round {round_}")
            shared = ("--schedule", schedule, "--blocks", options.blocks)
            measured = run_ranks(
                2, WORKER, *shared, "--seconds", options.seconds, "--cases", *names
            )
            for case, name in zip(CASES, names, strict=True):
                for way, taken in measured[name].items():
                    before.setdefault(case, {}).setdefault(way, []).extend(taken)
    return found


def ratio_of(seconds, way):
    """The median of that way's blocks by MALT's beside them."""
    pairs = zip(seconds[way], seconds["malt"], strict=True)
    return statistics.median(theirs / ours for theirs, ours in pairs)


class Pipelines(report.Report):
    def add(self, schedule, measured):
        rows = []
        for case, seconds in measured.items():
            hidden, count, microbatches = case
            speeds = [
                f"{count / statistics.median(seconds[way]):,.0f}"
                for way in ("malt", "torch", "alone")
            ]
            ratio = ratio_of(seconds, "torch")
            verdict = self._verdict(
                f"{schedule}, {hidden} x {count:,} in {microbatches}",
                None if ratio >= LEAST else times(ratio),
            )
            message = report.size_text(4 * hidden * count // microbatches)
            row = [f"{hidden} x {count:,}", str(microbatches), message, *speeds, times(ratio)]
            rows.append([*row, f"{LEAST:g}", verdict, times(ratio_of(seconds, "alone"))])
        header = ["units x rows", "micro-batches", "message", "examples/s", "torch", "undivided"]
        header += ["x torch", "at least", "", "x undivided"]
        self._sections.append(f"### The schedule {schedule}\n\n{table(header, rows)}")


def main():
    options = parse()
    made = Pipelines(
        "pipeline.py",
        "A layer pipeline",
        f"{options.rounds} jobs with {options.blocks} blocks of each way, which take turns",
    )
    made._sections.append(
        "Training steps of 8 layers `Linear`, `ReLU`, in two stages on two ranks, with SGD. "
        "*torch* is `torch.distributed.pipelining` over gloo, with the same division, schedule and "
        "micro-batches; *undivided* is one process with one thread, which takes the batch whole. "
        "*x* are medians of the ratios of neighbouring blocks. A message is the activation or the "
        "gradient of a micro-batch."
    )
    for schedule, measured in measure(options).items():
        made.add(schedule, measured)
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
