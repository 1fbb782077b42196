"""Runs mutants of the package on simulated jobs, from seed to seed, until one of them fails."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(mutants: Mapping[str, tuple[str, ...]], program: str, seeds: range, piece: int) -> int:
    """Run those that the command line names, or all; return the exit status: 1 if one survives.

    Args:
        mutants: by name, the first arguments of the program.
        program: Python's text. It gets the mutant, the first seed and the one after the last, and
            prints what is wrong.
        seeds: to run until one fails.
        piece: the number of seeds of one process.
    """
    names = sys.argv[1:] or list(mutants)
    survivors = []
    check = functools.partial(_check, program, seeds, piece)
    with ThreadPoolExecutor(int(os.environ.get("MALT_JOBS", os.cpu_count() or 1))) as pool:
        outcomes = pool.map(lambda name: check(mutants[name]), names)
        for name, outcome in zip(names, outcomes, strict=True):
            print(f"{name}: {outcome or 'SURVIVES'}", flush=True)
            if not outcome:
                survivors.append(name)
    return 1 if survivors else 0


def _check(program: str, seeds: range, piece: int, mutant: tuple[str, ...]) -> str:
    """Return the message of the first seed that fails, or "" if none does."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests/model")}
    for first in range(seeds.start, seeds.stop, piece):
        span = str(first), str(min(first + piece, seeds.stop))
        command = [sys.executable, "-c", program, *mutant, *span]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if outcome := done.stdout.strip() or done.stderr.strip()[-300:]:
            return outcome
    return ""
