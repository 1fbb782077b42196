"""Breaks the rules of pools, the torch backend and consensus, and checks that this is noticed.

    python tests/mutants/messaging.py [NAME...]

Each mutant is a change of one of malt's modules, run on the seeds from 0 on until one of them
fails (tests/model/messaging).
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import simulated

SEEDS = int(os.environ.get("MALT_SEEDS", 4_000))
_PIECE = 1_000  # seeds of one process


class Mutant(NamedTuple):
    kind: str  # of the jobs that are run
    module: str
    old: str
    new: str


MUTANTS = {
    # An answer to an earlier call counts in the present one.
    "CALL_NOT_COMPARED": Mutant(
        "pools",
        "_pool.over_job.summing",
        "        if message.subject[1:2] != [self._call]:\n            return  # rule 3\n",
        "",
    ),
    "CALL_OF_RUN_NOT_COMPARED": Mutant(
        "pools", "_pool.over_job.running", "message.subject[1:2] == [self._call] and ", ""
    ),
    # A rank that was asked for chunks says that it gives them back, and does them too.
    "GIVEN_BACK_AND_DONE": Mutant(
        "pools",
        "_pool.over_job.backlog",
        "self._chunks = deque(chunk for chunk in self._chunks if chunk not in back)",
        "pass",
    ),
    # The chunks in the hand of a rank that dies are waited for.
    "HAND_OF_DEAD_KEPT": Mutant(
        "pools",
        "_pool.over_job.summing",
        "for chunk in self._backlogs.pop(rank):",
        "for chunk in ():",
    ),
    # The error of a call that was given up comes out of the next one.
    "ERROR_KEPT": Mutant(
        "pools",
        "_pool.over_job.inbox",
        "        self.rest()\n        self._error = None",
        "        self.rest()",
    ),
    # An interrupt between two ranks' being told of dropped data has the others keep the data.
    "DROPPED_TOO_EARLY": Mutant(
        "pools",
        "_pool.over_job.copies",
        "        changes = self._store.changes\n",
        "        changes = self._dropped = self._store.changes\n",
    ),
    # A rank in a sum does not hear that it is given up.
    "SUM_NOT_GIVEN_UP": Mutant(
        "pools",
        "_pool.over_job.serving",
        "if 0 not in live or self._next is not None:",
        "if 0 not in live:",
    ),
    # Attempts to make a link are not told apart.
    "ATTEMPTS_MIXED": Mutant(
        "backend",
        "torch._backend.point_to_point",
        'prefix = "{}/{}/{}".format(self._key, *numbers)',
        'prefix = "{}/both".format(self._key, *numbers)',
    ),
    # A receiver from any source gives up when one rank has left.
    "ONE_DEAD_IS_ALL": Mutant(
        "backend",
        "torch._backend.point_to_point",
        "if self._members.names[rank] not in error.ranks:",
        "if True:",
    ),
    # A receiver from any source does not wait for what a rank has sent before it left.
    "SENT_BEFORE_DEATH_LOST": Mutant(
        "backend",
        "torch._backend.point_to_point",
        "                    elif rank in dead:\n",
        "                    if rank in dead:\n",
    ),
    # A receiver that came later is served first.
    "RECEIVES_REVERSED": Mutant(
        "backend",
        "torch._backend.point_to_point",
        "self._waiting.append(_Waiting(tensor, tag, call, deadline))",
        "self._waiting.insert(0, _Waiting(tensor, tag, call, deadline))",
    ),
    # A message is sent at once though earlier ones still wait for room.
    "SENDS_OVERTAKE": Mutant(
        "backend",
        "torch._backend.point_to_point",
        "if self._end.is_made and self._line.is_idle:",
        "if self._end.is_made:",
    ),
    # A call that the program waits for overtakes an earlier one that it does not wait for.
    "CALLS_OVERTAKE": Mutant(
        "backend",
        "torch._backend.work",
        "if is_async or self._unended:",
        "if is_async:",
    ),
    # So does a sum that is made the short way.
    "SUMS_OVERTAKE": Mutant(
        "backend",
        "torch._backend.core",
        "            or not line.is_idle\n",
        "",
    ),
    # Errors have the ranks of the group instead of those of the job.
    "NAMES_OF_GROUP": Mutant(
        "backend",
        "torch._backend.errors",
        "        ranks = [names[rank] for rank in error.ranks]\n        return TimeoutError(",
        "        ranks = list(error.ranks)\n        return TimeoutError(",
    ),
    # A death has a call fail on some of the ranks that keep going.
    "DEATH_SEEN_BY_SOME": Mutant(
        "backend",
        "torch._backend.members",
        "        if not self._may_be_out_of_step:\n",
        "        if True:\n",
    ),
    # Ranks that made different numbers of rounds go on with the same exchange.
    "EXCHANGE_KEPT": Mutant(
        "backend",
        "torch._backend.members",
        """        self._exchange.shut()
        self._made += 1
        self._exchange = Exchange(
            self.group, f"exchange {self._made}", SLOT_BYTES, time_left(deadline)
        )
""",
        "",
    ),
    # A rank that knows that a call has failed is waited for in it.
    "AWAITED_IN_FAILED": Mutant(
        "backend",
        "torch._backend.members",
        "self._exchange.shut()  # ranks still in the call do not wait for this one",
        "pass",
    ),
    # A rank that refuses a broadcast or barrier does not ask with the others how it has ended.
    "REFUSED_UNASKED": Mutant(
        "backend",
        "torch._backend.members",
        "            self._may_be_out_of_step |= _going_on\n            if",
        "            if",
    ),
    # A rank that refuses its arguments does not tell the others.
    "REFUSED_ALONE": Mutant(
        "backend",
        "torch._backend.members",
        "                    self._refuse(error, call, deadline)\n",
        "                    pass\n",
    ),
    # A rank that refuses its arguments lets the others wait for it in a sum.
    "REFUSED_IN_SUM": Mutant(
        "backend",
        "torch._backend.members",
        "            self._reducers.drop()\n",
        "            pass\n",
    ),
    # A rank that has left a sum is taken for a dead one.
    "REFUSED_TAKEN_FOR_DEAD": Mutant(
        "backend", "torch._backend.members", "if not missing <= self._away:", "if False:"
    ),
    # Ranks make the vector of a sum without looking whether all do.
    "SUM_MADE_UNASKED": Mutant(
        "backend", "torch._backend.reducers", "            if what:\n", "            if False:\n"
    ),
    # A call that needs all ranks works without the dead.
    "ALL_CALLS_GO_ON": Mutant(
        "backend",
        "torch._backend.members",
        "run(gives, takes, kind, left, may_miss, self._call)",
        "run(gives, takes, kind, left, may_miss or _going_on, self._call)",
    ),
    # A broadcast that nobody has whole leaves a part of it in the tensor.
    "PART_OF_BROADCAST_LEFT": Mutant(
        "backend",
        "torch._backend.collectives",
        "tensor.contiguous() if has else torch.empty(tensor.shape, dtype=tensor.dtype)",
        "tensor.contiguous()",
    ),
    # The sum of the living is not made up for the dead.
    "DEAD_NOT_MADE_UP": Mutant(
        "backend",
        "torch._backend.members",
        "if not mean and tensor.dtype.is_floating_point:",
        "if False:",
    ),
    # Each rank names the dead that it has noticed by itself.
    "DEAD_NAMED_APART": Mutant(
        "backend",
        "torch._backend.members",
        'raise errors.PeerError("ranks are dead", dead) from error',
        'raise error or errors.PeerError("ranks are dead", dead)',
    ),
    # A sum that has come, and whose use was interrupted, is made once more.
    "SUM_MADE_TWICE": Mutant(
        "consensus", "_consensus.rounds", "if self._before not in (None, allreduces):", "if False:"
    ),
    # A rank that hears that a phase ends goes there without telling others (2).
    "MARK_NOT_REPEATED": Mutant(
        "consensus", "_consensus.rounds", "            self._say(_DONE)\n", ""
    ),
    # An update that reached nobody is not sent again (1).
    "NOT_SENT_AGAIN": Mutant("consensus", "_consensus.rounds", "if not self._is_out:", "if False:"),
    # The end of a phase is begun anew after an exception.
    "END_BEGUN_ANEW": Mutant(
        "consensus", "_consensus.rounds", "        if not self._is_exact:\n", "        if True:\n"
    ),
    # A phase ends by what is known here, which is old (3).
    "END_NOT_EXACT": Mutant(
        "consensus",
        "_consensus.rounds",
        "            self._add_up(lambda: True, limit)\n",
        "            self._sum[:] = self._payloads[list(self.ranks)].sum(axis=0)\n",
    ),
    # Ranks that have been closed, or are dead, are waited for.
    "DEAD_AWAITED": Mutant(
        "consensus",
        "_consensus.rounds",
        "for rank in alive if rank not in self._closed",
        "for rank in range(self._job.size)",
    ),
}

_RUN = """
import sys
from importlib.machinery import SourceFileLoader
kind, name, old, new, first, end = sys.argv[1:]
get_code = SourceFileLoader.get_code
def get_changed(self, module):
    if module != "malt." + name:
        return get_code(self, module)
    source = self.get_source(module)
    assert old in source, "the mutant is of other code"
    return compile(source.replace(old, new), self.path, "exec")
SourceFileLoader.get_code = get_changed
from messaging.__main__ import KINDS
for seed in range(int(first), int(end)):
    if wrong := KINDS[kind](seed).run():
        print(f"seed {seed}: {wrong}")
        break
"""


if __name__ == "__main__":
    sys.exit(simulated.run(MUTANTS, _RUN, range(SEEDS), _PIECE))
