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
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import malt._core

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    module: str  # of malt._pool, or of another package; with dots where it is in one of that
    old: str
    new: str
    tests: str  # a file of tests/python/pool (or of the other package), or a test in one


OVER_JOB = "test_over_job.py"
MOVES = "test_moves_over_job.py"
RUN = "test_run_over_job.py"
MUTANTS = {
    # Chunks that a dead rank has left in its queue are dealt out once more.
    "QUEUES_NOT_CLEARED": Mutant(
        "local.calls",
        "self._clear_queues()  # of what a rank that has died may have left there",
        "pass",
        "test_deaths.py",
    ),
    # A call begins though ranks may still work for one that was interrupted again and again.
    "NOT_AT_REST": Mutant(
        "local.calls", "if not self._is_at_rest:", "if False:", "test_interrupts.py"
    ),
    # A rank that answers twice in a call writes over its first answer.
    "FIRST_ANSWER_LOST": Mutant(
        "local.worker", "if call != self._call:", "if True:", "test_deaths.py"
    ),
    # What a dead rank has done is not done again.
    "MISSING_FORGOTTEN": Mutant(
        "local.calls", "while todo := plan.todo():", "if todo := plan.todo():", "test_deaths.py"
    ),
    # A signal interrupts whatever call is being made.
    "ANY_SIGNAL": Mutant(
        "local.worker",
        "if self._is_in_function and self._board[GIVEN_UP] == self._call:",
        "if self._is_in_function:",
        "test_interrupts.py",
    ),
    # A function that goes on after an interrupt is left running.
    "NOT_KILLED": Mutant(
        "local.calls", "self._crew.kill(self._crew.busy())", "pass", "test_interrupts.py"
    ),
    # The nursery does not look at the pool's process.
    "PARENT_UNWATCHED": Mutant(
        "local.nursery",
        "for descriptor in (self._control.fileno(), self._parent, self._wakened):",
        "for descriptor in (self._control.fileno(), self._wakened):",
        "test_deaths.py",
    ),
    # Processes that a rank has started outlive it.
    "GROUP_NOT_KILLED": Mutant(
        "local.nursery",
        "orphans.kill_group(process, signal.SIGKILL)  # the rank's children",
        "pass",
        "test_deaths.py",
    ),
    # A function's result is changed by the function's next call.
    "RESULT_NOT_COPIED": Mutant(
        "planning",
        "        results.own()\n        results.add",
        "        results.add",
        "test_sum.py",
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
        "local.functions",
        "elif not isinstance(value, _FIXED) and value is not _MISSING:\n"
        "                return None\n"
        "            found.append(value)",
        "",
        "test_sum.py",
    ),
    # Over a job, what a dead rank was given is not given to another one.
    "NOT_GIVEN_AGAIN": Mutant(
        "over_job.summing",
        "if not (todo := self._plan.todo()):",
        "if not (todo := self._plan.todo()) or self._done:",
        f"{OVER_JOB}::test_chunks_of_ranks_that_die_are_done_by_others[shm]",
    ),
    # Rank 0 does the chunks in which other ranks have died.
    "RANK_0_INHERITS": Mutant(
        "over_job.summing",
        "heirs = [rank for rank in live if rank != self._messenger.rank] or live",
        "heirs = live[:1]",
        f"{OVER_JOB}::test_chunks_of_ranks_that_die_are_done_by_others[shm]",
    ),
    # The answer to a call that was given up is taken for one to the present call.
    "ANSWERS_TO_ANY_CALL": Mutant(
        "over_job.summing",
        "if message.subject[1:2] != [self._call]:",
        "if False:",
        f"{OVER_JOB}::test_interrupt_gives_a_call_up_and_the_pool_goes_on",
    ),
    # A message that was cut off is continued by the next one.
    "CUT_OFF_KEPT": Mutant(
        "over_job.messenger",
        "if offset == 0:",
        "if begun is None:",
        f"{OVER_JOB}::test_message_that_was_cut_off_is_dropped",
    ),
    # A message of which a part was lost is taken for a whole one.
    "HOLE_OVERLOOKED": Mutant(
        "over_job.messenger",
        "(len(begun.buffer), begun.left) != (length, left + len(piece))",
        "len(begun.buffer) != length",
        f"{OVER_JOB}::test_message_that_was_cut_off_is_dropped",
    ),
    # A chunk is sent for every sum.
    "SENT_AGAIN": Mutant(
        "over_job.copies",
        "if (key := self.key(chunk, data)) not in sent:",
        "if key := self.key(chunk, data):",
        f"{OVER_JOB}::test_chunk_goes_to_a_rank_once_and_leaves_with_its_data",
    ),
    # Data that nobody has any more stay on the ranks of a job.
    "NOT_DROPPED": Mutant(
        "over_job.serving",
        "self._chunks.drop(told[0])",
        "pass",
        f"{OVER_JOB}::test_chunk_goes_to_a_rank_once_and_leaves_with_its_data",
    ),
    # A rank goes on with a sum that was given up.
    "NOT_GIVEN_UP": Mutant(
        "over_job.serving",
        "if 0 not in live or self._next is not None:  # rule 1",
        "if False:",
        f"{OVER_JOB}::test_interrupt_gives_a_call_up_and_the_pool_goes_on",
    ),
    # A chunk that was given back is done by the rank that gave it, too.
    "GIVEN_BACK_AND_DONE": Mutant(
        "over_job.backlog",
        "self._chunks = deque(chunk for chunk in self._chunks if chunk not in back)",
        "pass",
        f"{MOVES}::test_idle_ranks_do_the_chunks_that_a_slow_one_has_not_begun[shm-1]",
    ),
    # Chunks that were given back count twice.
    "GIVEN_BACK_AND_KEPT": Mutant(
        "over_job.summing",
        "self._backlogs[rank].difference_update(chunks)",
        "pass",
        f"{MOVES}::test_idle_ranks_do_the_chunks_that_a_slow_one_has_not_begun[shm-1]",
    ),
    # A rank answers only between two chunks, so a slow one keeps its chunks.
    "DEAF_IN_A_CHUNK": Mutant(
        "over_job.inbox",
        "                attend()\n",
        "                pass\n",
        f"{MOVES}::test_idle_ranks_do_the_chunks_that_a_slow_one_has_not_begun[shm-1]",
    ),
    # A chunk that a rank has got from another one is sent again in the next sum.
    "MOVED_SENT_AGAIN": Mutant(
        "over_job.copies",
        "if (key := self.key(chunk, data)) not in sent:",
        "if key := self.key(chunk, data):",
        f"{MOVES}::test_chunk_that_was_moved_is_not_sent_again",
    ),
    # Chunks move that are done sooner than sent.
    "MOVED_IN_VAIN": Mutant(
        "over_job.summing",
        "if self._seconds < _MOVE_SECONDS:",
        "if False:",
        f"{MOVES}::test_chunk_that_is_done_sooner_than_sent_is_not_moved",
    ),
    # Rank 0 takes chunks in which other ranks have died.
    "RANK_0_TAKES": Mutant(
        "over_job.summing",
        "if idle == self._messenger.rank and self._plan.has_ended_ranks(chunk):",
        "if False:",
        f"{MOVES}::test_rank_0_takes_no_chunk_in_which_a_rank_has_died",
    ),
    # The others are not stopped when a rank fails in a program.
    "NOT_STOPPED": Mutant(
        "over_job.running",
        'self._messenger.send(rank, "stop")',
        "pass",
        f"{RUN}::test_error_of_the_rank_that_failed_by_itself_comes_out",
    ),
    # A rank that is told to stop does not.
    "STOP_UNHEARD": Mutant(
        "over_job.program",
        "stop_thread(self._thread)",
        "pass",
        f"{RUN}::test_failure_of_a_rank_stops_the_others[in_barrier]",
    ),
    # The call waits for a rank that cannot be stopped.
    "NO_GRACE": Mutant(
        "over_job.running",
        "(left := deadline - time.monotonic()) > 0",
        "(left := 60.0)",
        f"{RUN}::test_rank_that_cannot_be_stopped_yet_does_not_delay_the_error",
    ),
    # The exception of a rank that missed another one hides the cause.
    "FIRST_FAILURE": Mutant(
        "over_job.running",
        "if not isinstance(failure, PeerError):",
        "if True:",
        f"{RUN}::test_error_of_the_rank_that_failed_by_itself_comes_out",
    ),
    # Rank 0 waits for ever for the result of a rank that has died.
    "DEAD_AWAITED": Mutant(
        "over_job.running",
        "self._waiting.remove(rank)\n            self._results",
        "self._results",
        f"{RUN}::test_others_go_on_when_a_rank_dies[shm]",
    ),
    # A program goes on when rank 0 has died.
    "ORPHAN": Mutant(
        "over_job.serving",
        "if self._next is not None or 0 not in live:",
        "if self._next is not None:",
        f"{RUN}::test_death_of_rank_0_ends_the_program_of_the_others[in_python]",
    ),
    # A program runs in the job of the pool, and leaves that.
    "NO_JOB_OF_ITS_OWN": Mutant(
        "over_job.program",
        "with jobs.in_program(own), self._listening():",
        "with self._listening():",
        f"{RUN}::test_program_may_leave_its_job_and_the_ranks_keep_theirs",
    ),
}

# An editable installation's finder would find the package itself first.
_SITE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "Redirecting" not in type(one).__name__]
"""


def check(mutant: Mutant, package_name: str) -> str:
    """Return the line of the first test that fails, or "" if none does.

    Args:
        mutant: what to break.
        package_name: "pool" for malt._pool and tests/python/pool; "" for malt and tests/python.
    """
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "malt"
        shutil.copytree(ROOT / "python" / "malt", package)
        shutil.copy(malt._core.__file__, package)
        (Path(folder) / "sitecustomize.py").write_text(_SITE)
        home = package / f"_{package_name}" if package_name else package
        file = home / f"{mutant.module.replace('.', '/')}.py"
        source = file.read_text()
        assert mutant.old in source, "the mutant is of other code"
        file.write_text(source.replace(mutant.old, mutant.new))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
                *("--timeout", "100", ROOT / "tests" / "python" / package_name / mutant.tests),
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


def run(mutants: Mapping[str, Mutant], package_name: str) -> int:
    """Returns the exit status: 1 if a mutant survives."""
    survivors = []
    for name in sys.argv[1:] or mutants:
        outcome = check(mutants[name], package_name)
        print(f"{name}: {outcome or 'SURVIVES'}", flush=True)
        if not outcome:
            survivors.append(name)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(run(MUTANTS, "pool"))
