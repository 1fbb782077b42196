"""Breaks the rules of malt.Pool and checks that a test notices.

    python tests/mutants/pool.py [NAME...]

Each mutant is a change of a copy of the package, with which the tests of tests/python/pool that
are about its rule are run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import malt._core

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    module: str  # of malt._pool
    old: str
    new: str
    tests: str  # a file of tests/python/pool, or a test in one


OVER_JOB = "test_over_job.py"
MUTANTS = {
    # Chunks that a dead rank has left in its queue are dealt out once more.
    "QUEUES_NOT_CLEARED": Mutant(
        "calls",
        "self._clear_queues()  # of what a rank that has died may have left there",
        "pass",
        "test_deaths.py",
    ),
    # A rank that answers twice in a call writes over its first answer.
    "FIRST_ANSWER_LOST": Mutant("worker", "if call != self._call:", "if True:", "test_deaths.py"),
    # What a dead rank has done is not done again.
    "MISSING_FORGOTTEN": Mutant(
        "calls", "while todo := plan.todo():", "if todo := plan.todo():", "test_deaths.py"
    ),
    # A signal interrupts whatever call is being made.
    "ANY_SIGNAL": Mutant(
        "worker",
        "if self._is_in_function and self._board[GIVEN_UP] == self._call:",
        "if self._is_in_function:",
        "test_interrupts.py",
    ),
    # A function that goes on after an interrupt is left running.
    "NOT_KILLED": Mutant(
        "calls", "self._crew.kill(self._crew.busy())", "pass", "test_interrupts.py"
    ),
    # The nursery does not look at the pool's process.
    "PARENT_UNWATCHED": Mutant(
        "nursery",
        "for descriptor in (self._control.fileno(), self._parent, self._wakened):",
        "for descriptor in (self._control.fileno(), self._wakened):",
        "test_deaths.py",
    ),
    # Processes that a rank has started outlive it.
    "GROUP_NOT_KILLED": Mutant(
        "nursery",
        "orphans.kill_group(process, signal.SIGKILL)  # what the rank has started",
        "pass",
        "test_deaths.py",
    ),
    # A function's result is changed by the function's next call.
    "RESULT_NOT_COPIED": Mutant(
        "tree", "if self._copies and not is_own:", "if False:", "test_sum.py"
    ),
    # A result is a view of memory that the next call writes over.
    "VIEW_RETURNED": Mutant(
        "tree", "return value if is_own else _copy(value)", "return value", "test_sum.py"
    ),
    # A function that always ends its rank is called for ever.
    "ENDLESS": Mutant(
        "planning", "if self._deaths[chunk] >= _MOST_DEATHS:", "if False:", "test_deaths.py"
    ),
    # A function whose variables have changed is not sent again.
    "STALE_FUNCTION": Mutant(
        "functions",
        "elif not isinstance(value, _FIXED) and value is not _MISSING:\n"
        "                return None\n"
        "            found.append(value)",
        "",
        "test_sum.py",
    ),
    # Over a job, what a dead rank was given is not given to another one.
    "NOT_GIVEN_AGAIN": Mutant(
        "over_job",
        "while todo := plan.todo():",
        "if todo := plan.todo():",
        f"{OVER_JOB}::test_chunks_of_ranks_that_die_are_done_by_others[shm]",
    ),
    # Rank 0 does the chunks in which other ranks have died.
    "RANK_0_INHERITS": Mutant(
        "over_job",
        "heirs = [rank for rank in live if rank != self._post.rank] or live",
        "heirs = live[:1]",
        f"{OVER_JOB}::test_chunks_of_ranks_that_die_are_done_by_others[shm]",
    ),
    # The answer to a call that was given up is taken for one to the present call.
    "ANSWERS_TO_ANY_CALL": Mutant(
        "over_job",
        "if message.subject[1] != call or message.sender not in waiting:",
        "if message.sender not in waiting:",
        f"{OVER_JOB}::test_interrupt_gives_a_call_up_and_the_pool_goes_on",
    ),
    # A message that was cut off is continued by the next one.
    "CUT_OFF_KEPT": Mutant(
        "post",
        "if offset == 0:",
        "if begun is None:",
        f"{OVER_JOB}::test_message_that_was_cut_off_is_dropped",
    ),
    # A message of which a part was lost is taken for a whole one.
    "HOLE_OVERLOOKED": Mutant(
        "post",
        "(len(begun.buffer), begun.left) != (length, left + len(piece))",
        "len(begun.buffer) != length",
        f"{OVER_JOB}::test_message_that_was_cut_off_is_dropped",
    ),
    # A chunk is sent for every sum.
    "SENT_AGAIN": Mutant(
        "over_job",
        "if (key := (block, place[0])) not in sent:",
        "if (key := (block, place[0])):",
        f"{OVER_JOB}::test_chunk_goes_to_a_rank_once_and_leaves_with_its_data",
    ),
    # Data that nobody has any more stay on the ranks of a job.
    "NOT_DROPPED": Mutant(
        "serving",
        "self._chunks.drop(told[0])",
        "pass",
        f"{OVER_JOB}::test_chunk_goes_to_a_rank_once_and_leaves_with_its_data",
    ),
    # A rank goes on with a sum that was given up.
    "NOT_GIVEN_UP": Mutant(
        "serving",
        "if self._post.has_message():",
        "if False:",
        f"{OVER_JOB}::test_interrupt_gives_a_call_up_and_the_pool_goes_on",
    ),
}

# An editable installation's finder would find the package itself first.
_SITE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "Redirecting" not in type(one).__name__]
"""


def check(mutant: Mutant) -> str:
    """Return the line of the first test that fails, or "" if none does."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "malt"
        shutil.copytree(ROOT / "python" / "malt", package)
        shutil.copy(malt._core.__file__, package)
        (Path(folder) / "sitecustomize.py").write_text(_SITE)
        file = package / "_pool" / f"{mutant.module}.py"
        source = file.read_text()
        assert mutant.old in source, "the mutant is of other code"
        file.write_text(source.replace(mutant.old, mutant.new))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
                *("--timeout", "100", ROOT / "tests" / "python" / "pool" / mutant.tests),
            ],
            env={**os.environ, "PYTHONPATH": folder},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return ""
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if line.startswith("FAILED")), lines[-1])


def main() -> int:
    """Returns the exit status: 1 if a mutant survives."""
    survivors = []
    for name in sys.argv[1:] or MUTANTS:
        outcome = check(MUTANTS[name])
        print(f"{name}: {outcome or 'SURVIVES'}", flush=True)
        if not outcome:
            survivors.append(name)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
