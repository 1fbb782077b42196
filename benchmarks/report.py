"""What the benchmarks' reports have in common: tables, verdicts, and their place in a file."""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

# The peers do not encrypt; docs/transports.md has what it costs.
os.environ.setdefault("MALT_TLS", "off")

KB, MB = 1 << 10, 1 << 20
CORES = len(os.sched_getaffinity(0))


def size_text(size):
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def microseconds(seconds):
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(ratio):
    return "" if ratio is None else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


OK, SHORT = "ok", "**short**"


def table(header, rows):
    """In Markdown. Verdicts, below an empty header, come first, and a sentence counts them."""
    columns = zip(header, *rows, strict=True)
    told = [at for at, cells in enumerate(columns) if {"", OK, SHORT} >= {*cells}]
    verdicts = [min(filter(None, (row[at] for at in told)), default="") for row in rows]
    if not any(verdicts):
        return _lines(header, rows)
    rest = [[cell for at, cell in enumerate(row) if at not in told] for row in (header, *rows)]
    rows = [[verdict, *row] for verdict, row in zip(verdicts, rest[1:], strict=True)]
    met, judged = verdicts.count(OK), len(verdicts) - verdicts.count("")
    return f"**Targets met: {met} of {judged} rows.**\n\n{_lines(['target', *rest[0]], rows)}"


def _lines(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def over(ratio, target):
    return ratio is None or target is None or ratio >= target


def say(text):
    print(
        f"\r\x1b[K{text}" if sys.stderr.isatty() else text,
        end="" if sys.stderr.isatty() else "\n",
        file=sys.stderr,
        flush=True,
    )


@contextlib.contextmanager
def busy_processes(count):
    """So many other processes that compute, meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def machine():
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text()
    model = next(
        (line.split(":")[1].strip() for line in info.splitlines() if "model name" in line), ""
    )
    sets = [name for name in ("avx512f", "avx2") if name in info]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cache = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    l2 = f", {cache.read_text().strip()} L2 a core" if cache.exists() else ""
    return (
        f"{CORES} cores of {model or platform.machine()} ({', '.join(sets) or 'no AVX'}{l2}), "
        f"{memory:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def measured():
    # Of a path that only this machine has, its last part.
    shown = (Path(word).name if os.path.isabs(word) else word for word in sys.argv)
    command = " ".join(["python", *shown])
    return f"Measured on {machine()}, with `{command}`"


def write(path: Path, program, text):
    """In place of what a run of the program before wrote into the page, or at its end."""
    old = path.read_text() if path.exists() else "# Performance\n"
    begin = f"<!-- written by benchmarks/{program}: from here -->"
    end = begin.replace("from here", "to here")
    before, _, rest = old.partition(begin)
    after = rest.partition(end)[2].strip()
    parts = [before.strip(), f"{begin}\n\n{text}\n\n{end}", after]
    path.write_text("\n\n".join(part for part in parts if part) + "\n")


class Report:
    """Sections of text, and what misses its target in them."""

    def __init__(self, program, title, medians):
        self._program, self._title = program, title
        self._sections = [f"{measured()}: medians of {medians}."]
        self.short = []  # what misses its target

    def _verdict(self, what, *missed):
        """A cell: OK unless something is missed, which is noted."""
        missed = [each for each in missed if each]
        if not missed:
            return OK
        self.short.append(f"{what} ({', '.join(missed)})")
        return SHORT

    def text(self):
        summary = (
            "Short of its target: " + "; ".join(self.short) if self.short else "All targets are met"
        )
        return "\n\n".join([*self._sections, summary + "."])

    def finish(self, path: Path | None):
        """Print it, and write it into the file if one is given; returns the exit status."""
        print(self.text())
        if path:
            write(path, self._program, f"## {self._title}\n\n{self.text()}")
        return 1 if self.short else 0


def parser(description):
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parser_with_output(description):
    """For Report.finish."""
    made = parser(description)
    made.add_argument(
        "--output",
        type=Path,
        metavar="FILE.md",
        help="also write the tables there, in place of the part that a run before wrote",
    )
    return made


def run_ranks(ranks, program, *arguments, **environ):
    """What rank 0 of a job of this program has written, as JSON, into its --out."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        launch = [sys.executable, "-m", "malt", "run", "-n", str(ranks), program]
        command = [*launch, *map(str, arguments), "--out", out]
        subprocess.run(command, check=True, env=os.environ | environ)
        return json.loads(out.read_text())


def by_ranks(ranks, work, description, program, seeds):
    """What `work(seeds)` of a benchmark returns in jobs of so many ranks each: by their number.

    None in the process of a rank, which this starts the program as.
    """
    p = parser(description)
    p.add_argument("--seeds", type=int, default=seeds)
    p.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    knobs = p.parse_args()
    if knobs.out:
        found = work(knobs.seeds)
        if os.environ["MALT_RANK"] == "0":
            knobs.out.write_text(json.dumps(found))
        return None
    found = {}
    for count in ranks:
        say(f"{count} ranks")
        found[count] = run_ranks(count, program, "--seeds", knobs.seeds)
    return found
