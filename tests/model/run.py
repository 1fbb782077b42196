"""Checks the protocols' models with SPIN, exhaustively: no error in a model, one in each mutant.

usage: run.py [NAME...]        (of models, mutants and simulations; default: all)

A model is a .pml file here with macros set. Needs spin and gcc. A simulation is a package here,
whose jobs are run from seeds. Needs greenlet and PyTorch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LIMIT = 300  # seconds for one; all together take less than a minute of processor time
LATEST, QUEUE = ("slot", "K=3"), ("slot", "K=3", "QUEUE")
COPIES, COPIES_QUEUE = ("copies", "K=2", "LINKS=2"), ("copies", "K=2", "QUEUE")
TWO, THREE = ("membership", "N=2", "PROPOSALS=3"), ("membership", "N=3")

# What it does instead of what the protocol says -> the model it is a mutant of.
MUTANTS = {
    # S2: a payload's stores are not ordered before its tickets'.
    "TICKETS_FIRST": LATEST,
    # S3: the tickets' loads are not ordered behind the hold's store; no hold while reading.
    "FIND_FIRST": LATEST,
    "LET_GO_FIRST": LATEST,
    # S4: a receiver's reads are not ordered before `consumed`.
    "CONSUME_FIRST": LATEST,
    # S4 (b): the holds' loads are not ordered behind the tickets' stores; tickets are not taken
    # back; those that were, and are held, are not restored.
    "HOLDS_BEFORE_REVOKE": LATEST,
    "NO_REVOKE": LATEST,
    "NO_RESTORE": LATEST,
    # S4 (a), (c): QUEUE waits for nobody, for one of two, for the dead as well.
    "NOBODY_AWAITED": QUEUE,
    "SECOND_READER_IGNORED": QUEUE,
    "DEAD_BLOCK": QUEUE,
    # SlotReader::oldest: what was looked at early has got an older update than what is found late.
    "ONE_LOOK": QUEUE,
    # S5, S6.
    "NEVER_CONSUMED": LATEST,
    "CLOCK_FIRST": QUEUE,
    # C2: the next writer takes a copy that a rank which may go on still holds. C6: a reader moves
    # to a copy that has yet to catch up.
    "STEAL": COPIES,
    # S7: what a writer that died had set tickets to 0 for, or not restored, is not being read.
    "NOTHING_LEFT": COPIES,
    "MOVE_AT_ONCE": COPIES_QUEUE,
    # M1: who has promised accepts older ballots all the same; a proposer is not bound by what has
    # been accepted; either half is a quorum; a rank counts as ended that is merely silent, or
    # whose connections are refused on the way.
    "NO_PROMISE": THREE,
    "FREE_CHOICE": THREE,
    "NO_TIE_RULE": TWO,
    "UNPROVED_IS_ENDED": TWO,
}

SIMULATIONS = {"messaging": 400}  # seeds of each kind: some forty seconds of processor time


class Outcome(NamedTuple):
    errors: int
    states: int
    seconds: float


def check(model: tuple[str, ...], *mutant: str) -> Outcome:
    """Searches all states, to the first error."""
    name, *macros = [*model, *mutant]
    with tempfile.TemporaryDirectory() as directory:

        def run(*command: str) -> str:
            return subprocess.run(
                command, cwd=directory, check=True, capture_output=True, text=True, timeout=LIMIT
            ).stdout

        run("spin", "-a", *[f"-D{macro}" for macro in macros], str(HERE / f"{name}.pml"))
        effort = "-O0" if mutant else "-O1"  # an error is found before an optimiser would be done
        run("gcc", effort, "-w", "-DSAFETY", "-o", "pan", "pan.c")
        start = time.monotonic()
        output = run("./pan", "-m20000")
        seconds = time.monotonic() - start
    errors = re.search(r"errors: (\d+)", output)
    states = re.search(r"(\d+) states, stored", output)
    if errors is None or states is None or re.search("max search depth|not exhaust", output):
        raise SystemExit(f"{name} {macros}: the search is not whole:\n{output}")
    return Outcome(int(errors[1]), int(states[1]), seconds)


def simulate(name: str) -> str:
    """Returns what is wrong with the simulation's jobs."""
    start = time.monotonic()
    command = [sys.executable, "-m", name, "0", str(SIMULATIONS[name])]
    done = subprocess.run(
        command, cwd=HERE, check=False, capture_output=True, text=True, timeout=LIMIT
    )
    print(f"row simulation {name}: {time.monotonic() - start:.1f} s\n{done.stdout}", end="")
    wrong = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    return "\n".join(wrong) or (done.stderr if done.returncode else "")


def main() -> int:
    """Returns the exit status: 1 if a model or a simulation has an error, or a mutant none."""
    cases: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        " ".join(model): (model, ()) for model in (LATEST, QUEUE, COPIES, COPIES_QUEUE, TWO, THREE)
    }
    cases |= {mutant: (model, (mutant,)) for mutant, model in MUTANTS.items()}
    asked = sys.argv[1:] or [*cases, *SIMULATIONS]
    names = [name for name in asked if name not in SIMULATIONS]
    wrong = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # of which each waits for a process of its own
        outcomes = pool.map(lambda name: check(cases[name][0], *cases[name][1]), names)
        for name, outcome in zip(names, outcomes, strict=True):
            is_mutant = name in MUTANTS
            if (outcome.errors > 0) != is_mutant:
                wrong.append(name)
            print(
                f"row {'mutant' if is_mutant else 'model'} {name}: {outcome.states} states,"
                f" {outcome.errors} errors, {outcome.seconds:.1f} s",
                flush=True,
            )
    for name in wrong:
        print(f"{name}: {'no error, and it must have one' if name in MUTANTS else 'an error'}")
    failed = [text for name in asked if name in SIMULATIONS and (text := simulate(name))]
    print(*failed, sep="\n", end="")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
