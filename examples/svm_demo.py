"""The comparison behind `svm.py --demo`: one rank against several, as a table and a picture."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import made_text
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TARGET = 0.145  # test error to reach: one rank needs about three quarters of its epochs
CORES = len(os.sched_getaffinity(0))

SVM = Path(__file__).with_name("svm.py")
Result = dict[str, Any]  # what svm.py --results writes


class Setting(NamedTuple):
    ranks: int
    graph: str
    staleness: int | None

    def label(self) -> str:
        if self.ranks == 1:
            return "1 rank, serial"
        return f"{self.ranks} ranks, {self.graph.upper()}, {self.mode()}"

    def mode(self) -> str:
        return {0: "BSP", None: "async"}.get(self.staleness, f"SSP {self.staleness}")


Runs = dict[Setting, list[Result]]
COLOURS = ("0.25", "tab:blue", "tab:orange", "tab:green", "tab:purple")


def settings(ranks: list[int] | None) -> list[Setting]:
    """One rank; one on each core (at most 8), and 4; the most over fewer edges, not in lockstep."""
    several = sorted(ranks or {min(max(CORES, 2), 8), 4})
    made = [Setting(1, "all", 0), *(Setting(n, "all", 0) for n in several)]
    return [*made, Setting(several[-1], "halton", 2)]


def run(knobs: argparse.Namespace) -> int:
    """The exit code."""
    made_text.load(knobs.made)  # so that making them is not part of the first run
    knobs.out.mkdir(parents=True, exist_ok=True)
    runs: Runs = {setting: [] for setting in settings(knobs.ranks)}
    for seed in range(knobs.seed, knobs.seed + knobs.repeats):
        for setting, results in runs.items():
            print(f"\n== {setting.label()}, seed {seed}", flush=True)
            result = train(setting, seed, knobs)
            if result is None:
                return 1
            results.append(result)

    (knobs.out / "svm.json").write_text(
        json.dumps([r for results in runs.values() for r in results])
    )
    print("\n" + table(runs) + "\n\n" + notes(knobs, runs))
    picture = knobs.out / "svm.png"
    draw(runs, picture)
    print(f"\nPicture: {picture.resolve()}\n\n{textwrap.fill(conclusion(runs), 96)}")
    return 0


def train(setting: Setting, seed: int, knobs: argparse.Namespace) -> Result | None:
    """One run of svm.py in processes of its own; None if it failed."""
    results = knobs.out / "svm_run.json"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "malt", "run", "-n", str(setting.ranks), str(SVM)]
    command += ["--graph", setting.graph, "--staleness", str(setting.staleness).lower()]
    command += ["--seed", str(seed)]
    for name in ("average", "epochs", "batch", "every", "rate", "l2", "made"):
        command += [f"--{name}", str(getattr(knobs, name))]
    done = subprocess.run([*command, "--results", str(results)], check=False)
    if done.returncode != 0:
        print(f"exit code {done.returncode} from: {' '.join(command)}", file=sys.stderr)
        return None
    result: Result = json.loads(results.read_text())
    results.unlink()
    return result


def to_target(results: list[Result]) -> tuple[float, float]:
    """Medians: (updates, seconds) until the test error was at most the target; infinite: never."""
    reached = [
        next(((u, s) for u, s, error in result["curve"] if error <= TARGET), (math.inf, math.inf))
        for result in results
    ]
    return median(updates for updates, _ in reached), median(seconds for _, seconds in reached)


def conclusion(runs: Runs) -> str:
    """How many times sooner the ranks that fit this machine reach the target, and on what."""
    serial = to_target(next(iter(runs.values())))[1]
    fitting = [setting for setting in runs if 1 < setting.ranks <= CORES]
    of = fitting or [setting for setting in runs if setting.ranks > 1]
    best = min(of, key=lambda setting: to_target(runs[setting])[1])
    seconds = to_target(runs[best])[1]
    result = runs[best][0]
    work = f"{result['documents']:,} made documents of {made_text.WORDS:,} words"
    goal = f"a test error of {100 * TARGET:.1f}%"
    if not math.isfinite(serial) or not math.isfinite(seconds):
        return f"No conclusion: 1 rank or {best.ranks} ranks did not reach {goal}."
    return (
        f"{best.ranks} ranks on {CORES} core(s) reached {goal} {serial / seconds:.1f} times as "
        f"soon as 1 rank: after {seconds:.1f} s instead of {serial:.1f} s, on {work}."
    )


def table(runs: Runs) -> str:
    target = f"{100 * TARGET:.1f}%"
    head = ["ranks", "graph", "mode", f"s to {target}", "x serial", f"updates to {target}"]
    rows = [[*head, "examples/s", "final test error", "bytes sent"]]
    serial = to_target(next(iter(runs.values())))[1]
    for setting, results in runs.items():
        updates, seconds = to_target(results)
        reached = math.isfinite(updates)
        parallel = setting.ranks > 1
        rows.append(
            [
                str(setting.ranks),
                setting.graph.upper() if parallel else "-",
                setting.mode() if parallel else "serial",
                f"{seconds:.2f}" if reached else "not reached",
                f"{serial / seconds:.2f}" if reached and math.isfinite(serial) else "-",
                f"{updates:.0f}" if reached else "not reached",
                f"{median(r['examples_per_second'] for r in results):,.0f}",
                f"{100 * median(r['final_error'] for r in results):.2f}%",
                f"{median(r['bytes_sent'] for r in results) / 1e6:,.0f} MB",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def notes(knobs: argparse.Namespace, runs: Runs) -> str:
    most = max(setting.ranks for setting in runs)
    sentences = [
        f"Medians of {knobs.repeats} run(s) with different seeds.",
        f"An update: {knobs.every} SGD steps of {knobs.batch} examples on each rank, then an",
        "exchange (none in serial).",
        f"Test error: of rank 0's model, on {next(iter(runs.values()))[0]['tested']:,} documents.",
        "Seconds are of training alone: start-up, loading and testing are left out.",
        "examples/s are those of all ranks together.",
        "Bytes sent are counted once for each receiver.",
        f"The learning rate starts at {knobs.rate:g} times the number of ranks, and falls with",
        "1 / (1 + epoch).",
    ]
    if most > CORES:
        sentences += [
            f"More ranks than {CORES} share the {CORES} core(s) of this machine: their updates",
            "show what more cores would bring, seconds and examples/s do not.",
        ]
    return textwrap.fill(" ".join(sentences), 96)


def draw(runs: Runs, path: Path) -> None:
    """Test error against updates and against time: medians over the seeds, each seed behind."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True, layout="constrained")
    for axis, which in zip(axes, (0, 1), strict=True):
        for colour, (setting, results) in zip(COLOURS, runs.items(), strict=False):
            for result in results:
                points = result["curve"]
                axis.plot(
                    [p[which] for p in points],
                    [100 * p[2] for p in points],
                    color=colour,
                    alpha=0.25,
                    linewidth=0.8,
                )
            # Every run of a setting tests its model after the same numbers of updates.
            points = [
                [median(values) for values in zip(*same, strict=True)]
                for same in zip(*(r["curve"] for r in results), strict=True)
            ]
            axis.plot(
                [p[which] for p in points],
                [100 * p[2] for p in points],
                color=colour,
                linewidth=1.8,
                label=setting.label(),
            )
        axis.axhline(100 * TARGET, color="0.5", linestyle="--", linewidth=1, zorder=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(13, 25)
    axes[0].set_xlabel("updates on each rank")
    axes[1].set_xlabel("seconds of training")
    axes[0].set_ylabel("test error, %")
    axes[0].text(
        0.01, 100 * TARGET - 0.5, f"target {100 * TARGET:.1f}%", color="0.35", fontsize=9,
        transform=axes[0].get_yaxis_transform(),
    )  # fmt: skip
    axes[1].legend(frameon=False)
    figure.suptitle(textwrap.fill(conclusion(runs), 92), fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)
