"""Breaks the rules of rejoining and checks that the simulated jobs notice.

    python tests/mutants/rejoining.py [NAME...]

Each mutant is a change of one of malt's modules, run on the seeds from 1 on until one of them
fails (tests/model/rejoining). Two rules are too rarely needed for that, and have tests of their
own: a kept round counts only in the group as it was superseded then (test_open_vectors.py), and
only a rank that has not formed the group in time is expelled (test_generations.py).
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import simulated

SEEDS = int(os.environ.get("MALT_SEEDS", 25_000))
_PIECE = 5_000  # seeds of one process, which keeps some 70 KB of each


class Mutant(NamedTuple):
    module: str
    old: str
    new: str


MUTANTS = {
    # The tables learn of a lost connection while an answer of theirs is being sent.
    "DROPPED_WHILE_SENDING": Mutant(
        "_rendezvous.server",
        "self._sessions.send(joined[number], *payloads)",
        "self._sessions.send(joined[number], *payloads)\n                self._drop_broken()",
    ),
    # The next process of a rank is refused while the end of the one before is not known.
    "SUCCESSOR_REFUSED": Mutant(
        "_rendezvous.server",
        "if kind == wire.MEMBER and number in self._sessions.joined[kind]:",
        "if False:",
    ),
    # A rank uses a group that other ranks may not have formed.
    "NOBODY_CONFIRMS": Mutant(
        "_rendezvous.member_session",
        "return self._held.standing == number or ",
        "self._held.standing = number\n            return True or ",
    ),
    # The first group stands although a rank died after it had formed the group.
    "FIRST_WITHOUT_THE_DEAD": Mutant(
        "_rendezvous.generation_table",
        "self._forming is None or rank not in self._forming.members",
        "self._forming is None or rank not in self._unformed",
    ),
    # A rank that leaves is reported as if it had been evicted.
    "LEAVERS_REPORTED": Mutant(
        "_rejoining.forming", "if group.is_left_out(rank)}", "if rank not in group.alive()}"
    ),
    # A wait in the next group asks whether it waits in vain.
    "LOOKS_AGAIN_IN_NEXT": Mutant("_rejoining.generations", "if self._is_in_next:", "if False:"),
    # A rank that ends during a vote does not count as a change of the voters.
    "ENDS_UNNOTICED": Mutant("_rejoining.vote", "not before <= self._voters", "False"),
    # An evicted rank tries again until another rank lives.
    "LEFT_OUT_TRIES_AGAIN": Mutant(
        "_rejoining.forming", "if group.is_left_out(group.rank) or ", "if "
    ),
    # A rank that is late for the next group is not reported as absent.
    "LATE_NOT_REPORTED": Mutant(
        "_rejoining.forming", "self._member.absent(self.number, error.ranks)", "pass"
    ),
    # A rank does not wait for updates that are on their way in the old group.
    "SCATTERS_NOT_AWAITED": Mutant("_rejoining.vote", "await_ranks(missing, ", "await_ranks(set, "),
    # A rank does not wait for the end of a process that another process has followed.
    "ENDS_NOT_AWAITED": Mutant("_rejoining.vote", "lambda: set(old.alive()) - going", "set"),
    # Each rank decides by itself which rank sends the values.
    "SENDER_NOT_AGREED": Mutant(
        "_rejoining.handover", "if group.rank in named:", "if group.rank == sender:"
    ),
    # A rejoining rank gets values that already contain the step of the round that it begins.
    "STEP_REPEATED": Mutant(
        "_rejoining.open_vectors",
        "kept.values if (kept := entry.round_in(group)) else None",
        "None",
    ),
    # The lowest rank sends the values, even if another rank has kept the end of a round.
    "LOWEST_SENDS": Mutant("_rejoining.roles", "(-state.kept, state.rounds, rank)", "rank"),
    # A rejoining rank waits at barriers that the other ranks have passed.
    "WAITS_AT_BARRIERS": Mutant(
        "_messages.collective",
        "    if job.is_rejoining:\n        seconds(timeout)",
        "    if False:\n        seconds(timeout)",
    ),
    # A shared array: what a rank that died had sent to some of the others only is not passed on.
    "NOT_PASSED_ON": Mutant(
        "_shared.streams",
        "due.extend(delta for delta in kept if delta.number > least)",
        "pass",
    ),
    # Deltas are dropped that some live rank may lack.
    "FORGOTTEN_TOO_EARLY": Mutant(
        "_shared.streams", "np.minimum.reduce([self.held", "np.maximum.reduce([self.held"
    ),
    # A drain does not wait until all ranks have come to it.
    "DRAIN_ALONE": Mutant(
        "_shared.replica",
        "return [rank for rank in live if self._marks[rank] < mine]",
        "return []",
    ),
    # A drain whose last step timed out begins anew, and meets the others' next drain.
    "DRAIN_ANEW": Mutant("_shared.replica", "if self.rounded is None:", "if True:"),
    # A rank that rejoins keeps the stream of the process before.
    "OLD_STREAM": Mutant(
        "_shared.replica", "self.streams.restart(rank, min(clocks, default=0))", "pass"
    ),
}

_RUN = """
import importlib, sys
name, old, new, first, end = sys.argv[1:]
module = importlib.import_module("malt." + name)
with open(module.__file__) as file:
    source = file.read()
assert old in source, "the mutant is of other code"
before = dict(vars(module))
exec(compile(source.replace(old, new), module.__file__, "exec"), vars(module))
for other in [each for name, each in sys.modules.items() if name.startswith("malt.")]:
    for name, value in list(vars(other).items()):
        if value is not None and before.get(name) is value:  # imported from there
            setattr(other, name, vars(module).get(name, value))
from rejoining.jobs import Job
for seed in range(int(first), int(end)):
    if wrong := Job(seed).run():
        print(f"seed {seed}: {wrong}")
        break
"""


if __name__ == "__main__":
    sys.exit(simulated.run(MUTANTS, _RUN, range(1, SEEDS + 1), _PIECE))
