"""Breaks the rules of rejoining and sees that the simulated jobs notice.

    python tests/mutants/rejoining.py [NAME...]

Each mutant is a change of one of malt's modules, run on the seeds from 1 on until one of them
fails (tests/model/rejoining).
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("MALT_SEEDS", 20_000))


class Mutant(NamedTuple):
    module: str
    old: str
    new: str


MUTANTS = {
    # A lost connection is told to the books while an answer of theirs is being sent.
    "DROPPED_WHILE_SENDING": Mutant(
        "_rendezvous.server",
        "        except OSError:\n            self._broken.append(connection)",
        "        except OSError:\n            self._drop(connection)",
    ),
    # The next process of a rank is refused while the last one's end is not known.
    "SUCCESSOR_REFUSED": Mutant("_rendezvous.server", "and not connection.waits:", "and False:"),
    # A rank uses a group that others may not have formed.
    "NOBODY_CONFIRMS": Mutant(
        "_rendezvous.member_session",
        "return self._standing == number or ",
        "self._standing = number\n            return True or ",
    ),
    # All are expelled when one has not formed the group in time.
    "ALL_ARE_MISSING": Mutant(
        "_rendezvous.generation_table",
        "missing = self._unformed & self._forming.missing",
        "missing = self._forming.missing",
    ),
    # A group that one has formed, and then died, stands all the same as the first.
    "FIRST_WITHOUT_THE_DEAD": Mutant(
        "_rendezvous.generation_table",
        "self._forming is None or rank not in self._forming.members",
        "self._forming is None or rank not in self._unformed",
    ),
    # A rank that leaves is reported as if it had been evicted.
    "LEAVERS_REPORTED": Mutant(
        "_job.forming", "if group.is_left_out(rank)}", "if rank not in group.alive()}"
    ),
    # A wait in the next group asks whether it is in vain.
    "LOOKS_AGAIN_IN_NEXT": Mutant("_job.generations", "if self._is_in_next:", "if False:"),
    # A rank that ends while others vote has moved nobody.
    "ENDS_UNNOTICED": Mutant("_job.vote", "not before <= self._voters", "False"),
    # Who has been left out tries again until another lives.
    "LEFT_OUT_TRIES_AGAIN": Mutant("_job.forming", "if group.is_left_out(group.rank) or ", "if "),
    # Who does not come in time may come yet.
    "LATE_NOT_REPORTED": Mutant(
        "_job.forming", "self._member.absent(self.number, error.ranks)", "pass"
    ),
    # What is on its way in the old group is not waited for.
    "SCATTERS_NOT_AWAITED": Mutant("_job.vote", "await_ranks(missing, ", "await_ranks(set, "),
    # The process that another has followed may be waited for in the old group yet.
    "ENDS_NOT_AWAITED": Mutant("_job.vote", "lambda: set(old.alive()) - going", "set"),
    # Each thinks for itself of who sends the values.
    "SENDER_NOT_AGREED": Mutant(
        "_job.handover", "if group.rank in named:", "if group.rank == sender:"
    ),
    # What has been kept is sent, though rounds have ended since.
    "OLD_ROUND": Mutant(
        "_job.open_vectors", "if self.round.call == group.superseded_by else None", ""
    ),
    # Who comes back gets values that have the step of the round which it begins.
    "STEP_REPEATED": Mutant(
        "_job.open_vectors",
        "kept.values if (kept := entry.round_in(group)) else None",
        "None",
    ),
    # The lowest rank sends the values, also if another has kept the end of a round.
    "LOWEST_SENDS": Mutant("_job.roles", "(-state.kept, state.rounds, rank)", "rank"),
    # A rank that comes back waits at barriers that the others have passed.
    "WAITS_AT_BARRIERS": Mutant("_job.calls", "if not jobs.current().is_rejoining:", "if True:"),
}

_RUN = """
import importlib, sys
name, old, new, seeds = sys.argv[1:]
module = importlib.import_module("malt." + name)
with open(module.__file__) as file:
    source = file.read()
assert old in source, "the mutant is of other code"
exec(compile(source.replace(old, new), module.__file__, "exec"), vars(module))
from rejoining.jobs import Job
for seed in range(1, int(seeds) + 1):
    if wrong := Job(seed).run():
        print(f"seed {seed}: {wrong}")
        break
"""


def check(mutant: Mutant) -> str:
    """What its first seed that fails says; nothing if none does."""
    command = [sys.executable, "-c", _RUN, *mutant, str(SEEDS)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests/model")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()[-300:]


def main() -> int:
    """Returns the exit status: 1 if a mutant survives."""
    names = sys.argv[1:] or list(MUTANTS)
    survivors = []
    with ThreadPoolExecutor(int(os.environ.get("MALT_JOBS", os.cpu_count() or 1))) as pool:
        outcomes = pool.map(lambda name: check(MUTANTS[name]), names)
        for name, outcome in zip(names, outcomes, strict=True):
            print(f"{name}: {outcome or 'SURVIVES'}", flush=True)
            if not outcome:
                survivors.append(name)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
