"""What malt.torch costs a step, and how fast it trains beside DistributedDataParallel over gloo.

    . .venv/bin/activate                                  # after ./dev build
    pip install torch==2.13.0 scipy
    python benchmarks/torch_exchange.py
    python benchmarks/torch_exchange.py --output docs/performance.md

Each rank has one thread. The steps, plain and with an exchange, are timed in blocks that take turns
in one job, on as many ranks at once. Trainings are jobs of their own, which take turns in rounds,
each round with another seed: the same network, data, batches, schedule and epochs on as many ranks.
"""

import statistics
from pathlib import Path

import report
from report import parser_with_output, run_ranks, say, table

WORKER = Path(__file__).with_name("torch_worker.py")
RANKS = 2
MOST_STEP = 1.03  # times the plain step
LEAST_SPEED = 1.5  # times DDP's examples/s
MOST_LOST = 0.5  # points of accuracy


def parse():
    parser = parser_with_output(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times that each job is run")
    parser.add_argument("--epochs", type=int, default=5, help="of a training")
    return parser.parse_args()


def run(ranks, *arguments):
    """What rank 0 of a job has measured."""
    say(" ".join(map(str, arguments)))
    return run_ranks(ranks, WORKER, *arguments)


def median(results, name):
    """Seconds a step of a block."""
    return statistics.median(each for result in results for each in result["seconds"][name])


def median_ratio(results, kind):
    """Of each block with exchanges by the plain one before it."""
    return statistics.median(
        averaged / plain
        for result in results
        for plain, averaged in zip(result[kind]["plain"], result[kind]["averaged"], strict=True)
    )


class Report(report.Report):
    def steps(self, measured):
        rows = []
        for (staleness, batch), results in measured.items():
            plain, averaged = (median(results, name) for name in ("plain", "averaged"))
            ratio = median_ratio(results, "seconds")
            processor = median_ratio(results, "processor_seconds")
            verdict = self._verdict(
                f"a step at batch {batch}, staleness {staleness}", ratio > MOST_STEP and "time"
            )
            row = [str(batch), str(staleness), f"{plain * 1e6:,.0f}", f"{averaged * 1e6:,.0f}"]
            rows.append([*row, f"{ratio:.3f}", f"{processor:.3f}", f"{MOST_STEP:g}", verdict])
        parameters = results[0]["parameters"]
        header = ["batch", "staleness", "plain", "with exchange"]
        header += ["x", "x processor time", "at most", ""]
        self._sections.append(
            f"Microseconds a step of SGD on {RANKS} ranks, of a network of {parameters:,} "
            "parameters (784-256-256-10), alone and with `malt.torch.average(every=32)`: of blocks "
            "of 256, until both ranks have made theirs. *x* is the median over blocks.\n\n"
            + table(header, rows)
        )

    def trainings(self, measured, epochs):
        medians = {
            way: [
                statistics.median(result[key] for result in results)
                for key in ("examples_per_second", "accuracy")
            ]
            for way, results in measured.items()
        }
        ddp_speed, ddp_right = medians["ddp"]
        rows = []
        for way, label, ranks in (
            ("plain", "plain PyTorch", 1),
            ("ddp", "DDP over gloo", RANKS),
            ("malt", "`malt.torch.average(every=32)`", RANKS),
        ):
            speed, right = medians[way]
            row = [label, str(ranks), f"{speed:,.0f}", f"{100 * right:.2f}%"]
            if way == "malt":
                slow = speed < LEAST_SPEED * ddp_speed and "examples/s"
                worse = right < ddp_right - MOST_LOST / 100 and "accuracy"
                verdict = self._verdict("against DDP", slow, worse)
                row += [f"{speed / ddp_speed:.2f}", f"{LEAST_SPEED:g}", verdict]
            rows.append([*row, *[""] * (7 - len(row))])
        self._sections.append(
            f"The same network on Fashion-MNIST, {epochs} epochs at batches of 64 a rank: examples "
            "a second of all ranks, and the accuracy on the test pictures, which may be "
            f"{MOST_LOST:g} points below DDP's.\n\n"
            + table(["", "ranks", "examples/s", "accuracy", "x DDP", "at least", ""], rows)
        )


def main():
    options = parse()
    steps = {(0, 64): [], (0, 256): [], (None, 64): []}
    trainings = {"plain": [], "ddp": [], "malt": []}
    for seed in range(options.rounds):
        for staleness, batch in steps:
            given = "--staleness", str(staleness).lower(), "--batch", batch
            steps[staleness, batch].append(run(RANKS, "step", *given))
        for way, results in trainings.items():
            shared = ("--way", way, "--epochs", options.epochs, "--seed", seed)
            results.append(run(1 if way == "plain" else RANKS, "train", *shared))
    made = Report("torch_exchange.py", "PyTorch models", f"{options.rounds} rounds")
    made.steps(steps)
    made.trainings(trainings, options.epochs)
    return made.finish(options.output)


if __name__ == "__main__":
    raise SystemExit(main())
