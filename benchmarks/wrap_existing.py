"""Programs as others write them, alone and made data-parallel by MALT: lines, results and times.

    pip install ".[learn,torch]" lightning gensim implicit scikit-surprise
    python benchmarks/wrap_existing.py

Each program in third_party/ is the parallel one. Lines that end in "# +" were added for MALT, and
lines that begin with "# -" are what they replace: without the former and with the latter it is the
program as it was. Each is run alone, with one rank and with two, in turns, with one thread a
process. The least of the rounds counts, as what else runs on the machine only makes it slower. If
much does, the processor's time says more than the clock's.
"""

import importlib.metadata
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report
from report import say, table

RANKS = (0, 1, 2)  # 0: without MALT
HERE = Path(__file__).parent / "third_party"
PROGRAMS = {  # its package, what is exchanged, how often, and what is measured
    "numpy_network": ("numpy", "weights", "once a pass", "right, %"),
    "char_gpt": ("torch", "gradients", "every step", "loss, nats"),
    "lightning_digits": ("lightning", "weights", "every 20 steps", "right, %"),
    "gensim_word2vec": ("gensim", "differences", "8 times a pass", "neighbours right, %"),
    "implicit_als": ("implicit", "rows that were solved", "each half-step", "precision at 10, %"),
    "surprise_factors": ("scikit-surprise", "differences", "10 times a pass", "RMSE"),
    "sklearn_mlp": ("scikit-learn", "weights", "every 1000 rows", "right, %"),
}


def as_it_was(program):
    """The program without MALT, and how many lines MALT added and replaced."""
    lines = program.read_text().splitlines()
    kept = [re.sub(r"^(\s*)# - ", r"\1", line) for line in lines if not line.endswith("# +")]
    removed = sum(re.match(r"\s*# - ", line) is not None for line in lines)
    return "\n".join(kept) + "\n", len(lines) - len(kept), removed


def run(program, ranks, folder):
    """The score, the seconds by the clock and those of the processor: of the slowest rank."""
    command = [sys.executable, "-m", "malt", "run", "-n", str(ranks), str(program)]
    if not ranks:
        alone = Path(folder) / program.name
        alone.write_text(as_it_was(program)[0])
        command = [sys.executable, str(alone)]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = re.findall(r"score (\S+) seconds (\S+) processor (\S+)", done.stdout)
    if len(found) != max(ranks, 1):
        raise RuntimeError(f"{program.name}: {done.stdout}")
    scores, seconds, processor = zip(*(map(float, each) for each in found), strict=True)
    return statistics.mean(scores), max(seconds), max(processor)


def measure(names, rounds):
    """After each round, by program and ranks: all that was measured so far."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for n in range(rounds):
            for name in names:
                for ranks in RANKS:
                    say(f"round {n + 1} of {rounds}, {name}, {ranks or 'no'} ranks")
                    one = run(HERE / f"{name}.py", ranks, folder)
                    found.setdefault((name, ranks), []).append(one)
            yield found


def text(names, found):
    rows = []
    for name in names:
        package, what, often, score = PROGRAMS[name]
        added, replaced = as_it_was(HERE / f"{name}.py")[1:]
        row = [
            f"[{name}.py](../benchmarks/third_party/{name}.py)",
            f"{package} {importlib.metadata.version(package)}",
            f"{added} for {replaced}" if replaced else str(added),
            f"{what}, {often}",
            score,
        ]
        for column, of in enumerate((statistics.mean, min, min)):
            values = (of(one[column] for one in found[name, ranks]) for ranks in RANKS)
            row.append(" / ".join(f"{value:.3g}" for value in values))
        rows.append(row)
    rounds = min(len(ones) for ones in found.values())
    header = ["program", "package", "lines added", "exchanged", "score", "alone / 1 / 2 ranks"]
    header += ["seconds", "processor's seconds"]
    how = f"{report.measured()}: mean scores and least times of {rounds} rounds"
    return f"{how}.\n\n{table(header, rows)}"


def main():
    p = report.parser(__doc__)
    p.add_argument("programs", nargs="*", help=f"of {', '.join(PROGRAMS)}; all unless given")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--output", type=Path, help="a page with the markers, to write the table into")
    knobs = p.parse_args()
    names = knobs.programs or list(PROGRAMS)
    for found in measure(names, knobs.rounds):
        shown = text(names, found)
        if knobs.output:  # after each round: a run that is stopped leaves what it has
            report.write(knobs.output, "wrap_existing.py", shown)
    print(shown)


if __name__ == "__main__":
    main()
