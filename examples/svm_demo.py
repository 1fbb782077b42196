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

import matplotlib
import newsgroups

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Test error to reach: what liblinear gets to on this data with the same loss, penalty and strength.
TARGET = 0.051

SVM = Path(__file__).with_name("svm.py")
Result = dict[str, Any]  # what svm.py --results writes


class Setting(NamedTuple):
    ranks: int
    graph: str
    sync: str
    colour: str

    def label(self) -> str:
        if self.ranks == 1:
            return "1 rank, serial"
        return f"{self.ranks} ranks, {self.graph.upper()}, {self.sync.upper()}"


def settings(ranks: int) -> list[Setting]:
    return [
        Setting(1, "all", "bsp", "0.25"),
        Setting(ranks, "all", "bsp", "tab:blue"),
        Setting(ranks, "halton", "ssp:2", "tab:orange"),
        Setting(ranks, "halton", "async", "tab:green"),
    ]


def run(knobs: argparse.Namespace) -> int:
    """The exit code."""
    try:
        newsgroups.load()  # so that fetching it is not part of the first run
    except newsgroups.DataError as error:
        print(error, file=sys.stderr)
        return 1
    knobs.out.mkdir(parents=True, exist_ok=True)
    runs: dict[Setting, list[Result]] = {setting: [] for setting in settings(knobs.ranks)}
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
    print("\n" + table(runs) + "\n\n" + notes(knobs))
    picture = knobs.out / "svm.png"
    draw(runs, picture)
    print(f"\nPicture: {picture.resolve()}")
    return 0


def train(setting: Setting, seed: int, knobs: argparse.Namespace) -> Result | None:
    """One run of svm.py in processes of its own; None if it failed."""
    results = knobs.out / "svm_run.json"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "malt", "run", "-n", str(setting.ranks), str(SVM)]
    command += ["--graph", setting.graph, "--sync", setting.sync, "--seed", str(seed)]
    for name in ("average", "epochs", "batch", "every", "rate", "l2"):
        command += [f"--{name}", str(getattr(knobs, name))]
    done = subprocess.run([*command, "--results", str(results)], check=False)
    if done.returncode != 0:
        print(f"exit code {done.returncode} from: {' '.join(command)}", file=sys.stderr)
        return None
    result: Result = json.loads(results.read_text())
    results.unlink()
    return result


def to_target(result: Result) -> tuple[float, float]:
    """(updates, seconds) when the test error was first at most the target; infinite if never."""
    for updates, seconds, error in result["curve"]:
        if error <= TARGET:
            return updates, seconds
    return math.inf, math.inf


def table(runs: dict[Setting, list[Result]]) -> str:
    target = f"{100 * TARGET:.1f}%"
    head = ["ranks", "graph", "mode", "examples/s", f"s to {target}", f"updates to {target}"]
    rows = [[*head, "final test error", "bytes sent"]]
    for setting, results in runs.items():
        updates = median(to_target(r)[0] for r in results)
        seconds = median(to_target(r)[1] for r in results)
        reached = math.isfinite(updates)
        parallel = setting.ranks > 1
        rows.append(
            [
                str(setting.ranks),
                setting.graph.upper() if parallel else "-",
                setting.sync.upper() if parallel else "serial",
                f"{median(r['examples_per_second'] for r in results):,.0f}",
                f"{seconds:.3f}" if reached else "not reached",
                f"{updates:.0f}" if reached else "not reached",
                f"{100 * median(r['final_error'] for r in results):.2f}%",
                f"{median(r['bytes_sent'] for r in results) / 1e6:,.0f} MB",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def notes(knobs: argparse.Namespace) -> str:
    ranks, cores = knobs.ranks, len(os.sched_getaffinity(0))
    sentences = [
        f"Medians of {knobs.repeats} run(s) with different seeds.",
        f"An update: {knobs.every} SGD steps of {knobs.batch} examples on each rank, then an",
        "exchange (none in serial).",
        "Test error: of rank 0's model, on 7,528 held-out documents.",
        "Seconds are of training alone: start-up, loading and testing are left out.",
        "examples/s are those of all ranks together.",
        "Bytes sent are counted once for each receiver.",
        f"The learning rate starts at {knobs.rate:g} for one rank and at {ranks * knobs.rate:g}",
        f"for {ranks}, and falls with 1 / (1 + epoch).",
    ]
    if cores < ranks:
        sentences += [
            f"{ranks} ranks share the {cores} core(s) that this machine gives: the updates show",
            "what more cores would bring, seconds and examples/s do not.",
        ]
    return textwrap.fill(" ".join(sentences), 96)


def draw(runs: dict[Setting, list[Result]], path: Path) -> None:
    """Test error against updates and against time: medians over the seeds, each seed behind."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
    for axis, which in zip(axes, (0, 1), strict=True):
        for setting, results in runs.items():
            for result in results:
                points = result["curve"]
                axis.plot(
                    [p[which] for p in points],
                    [100 * p[2] for p in points],
                    color=setting.colour,
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
                color=setting.colour,
                linewidth=1.8,
                label=setting.label(),
            )
        axis.axhline(100 * TARGET, color="0.5", linestyle="--", linewidth=1, zorder=0)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(4, 13)
    axes[0].set_xlabel("updates on each rank")
    axes[1].set_xlabel("seconds of training")
    axes[0].set_ylabel("test error, %")
    axes[0].text(
        0.99, 100 * TARGET + 0.1, f"target {100 * TARGET:.1f}%", color="0.35", fontsize=9,
        ha="right", transform=axes[0].get_yaxis_transform(),
    )  # fmt: skip
    axes[1].legend(frameon=False)
    figure.suptitle("Linear SVM on 20 Newsgroups (comp.* against the rest)")
    figure.savefig(path, dpi=150)
    plt.close(figure)
