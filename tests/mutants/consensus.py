"""Breaks the rules of malt.optimize.Consensus and checks that a test notices.

    python tests/mutants/consensus.py [NAME...]

Not here: a mark that is not repeated, and residuals that are judged in the round of a death. A test
would have to kill a rank between two statements of another one; tests/chaos kills at any time.
"""

from __future__ import annotations

import sys

from pool import Mutant, run

TESTS = "test_consensus.py"
ARGUMENTS = "test_consensus_arguments.py"
ENDS = "test_consensus_ends.py"
SYNCHRONOUS = f"{TESTS}::test_synchronous_rounds_find_the_optimum_with_the_same_bits_in_each_run"
RESCALED = f"{ARGUMENTS}::test_multipliers_stay_as_they_are_when_rho_changes"
NOT_FINITE = f"{TESTS}::test_a_value_that_is_not_finite_is_refused_on_all_ranks_which_then_go_on"
INEXACT = "test_rounds_of_an_inexact_solver_do_not_end_while_x_moves"
CURVATURE = f"{ENDS}::test_rho_becomes_what_the_curvature_of_the_functions_needs"
MUTANTS = {
    "LATE_ROUNDS_KEEP_THEIR_RHO": Mutant(
        "rounds",
        "self._local.adapt(residuals_of(own, self._options))",
        "pass",
        CURVATURE,
    ),
    "RHO_THAT_HOLDS_BACK_STAYS": Mutant(
        "local", "or self._is_held_back(residuals)", "or False", CURVATURE
    ),
    "RHO_FALLS_THOUGH_X_DOES_NOT_FOLLOW": Mutant(
        "local", "or moved <= _FURTHER * self._moved:", "or False:", f"{ENDS}::{INEXACT}"
    ),
    "NO_MULTIPLIERS": Mutant("local", "np.subtract(self._w, z)", "np.zeros_like(z)", SYNCHRONOUS),
    "MULTIPLIERS_KEEP_THEIR_SCALE": Mutant("local", "self.u /= factor", "pass", RESCALED),
    "DUAL_RESIDUAL_IS_NOT_SEEN": Mutant(
        "local", "self.rho**2 * _square((z - self._before)[counts])", "0.0", SYNCHRONOUS
    ),
    "STEP_OF_THE_PROX_IS_ONE_RANKS": Mutant(
        "local",
        "1 / weight), z)",
        "1 / self.rho), z)",
        f"{TESTS}::test_a_prox_gives_the_optimum_of_a_lasso",
    ),
    "ROWS_OF_DEAD_RANKS_STAY_SHARED": Mutant(
        "local",
        "weights > np.asarray(self.rho, weights.dtype)",
        "weights >= np.asarray(self.rho, weights.dtype)",
        f"{TESTS}::test_a_row_whose_other_holders_have_died_is_no_longer_shared",
    ),
    "MARKS_ARE_NOT_SEEN": Mutant(
        "rounds",
        "self._is_marked |= said == _DONE",
        "pass",
        f"{ENDS}::test_a_mark_ends_the_phase_of_ranks_that_do_not_find_it_done",
    ),
    "QUORUM_IS_NOT_AWAITED": Mutant(
        "rounds",
        "if len(live) - 1 - len(absent) < needed:",
        "if needed < 0:",
        f"{TESTS}::test_a_quorum_is_of_the_ranks_that_are_left",
    ),
    "ONE_ROUND_MORE_THAN_MAX_DELAY": Mutant(
        "rounds",
        "self._missed[rank] >= self._options.max_delay",
        "self._missed[rank] > self._options.max_delay",
        f"{TESTS}::test_ranks_that_never_hear_of_a_slow_one_go_on_for_max_delay_rounds",
    ),
    "CLOSED_RANKS_ARE_AWAITED": Mutant(
        "rounds",
        "rank for rank in alive if rank not in self._closed",
        "rank for rank in alive if rank >= 0",
        f"{TESTS}::test_ranks_do_not_wait_for_one_that_has_closed_it[options1]",
    ),
    "AN_ERROR_IS_RAISED_FOR_EVER": Mutant(
        "rounds",
        "wrong, self._gave_up = self._gave_up, set()",
        "wrong = self._gave_up",
        f"{NOT_FINITE}[options1]",
    ),
    "X_MAY_STILL_MOVE": Mutant(
        "local", "and self.moved <= self.moved_bound", "", f"{ENDS}::{INEXACT}"
    ),
    "ROWS_OF_ONE_RANK_COUNT": Mutant(
        "local", "is_shared if self._has_ids else slice(None)", "slice(None)", f"{ENDS}::{INEXACT}"
    ),
    "WORDS_ARE_REPLACED": Mutant(
        "rounds",
        'policy="queue", depth=_WORDS',
        "depth=2",
        f"{ENDS}::test_no_word_replaces_another",
    ),
    "STUCK_ROUNDS_NEED_A_RISE": Mutant(
        "local",
        "return factor > 1",
        "return factor > 1 and self._changes < _MOST_CHANGES",
        f"{ENDS}::test_constraints_without_a_common_solution_are_an_error_on_all_ranks",
    ),
    "STEEP_IS_CALLED_INFEASIBLE": Mutant(
        "rounds",
        "if norms.moved > 2 * moved * self._local.rho / rho:",
        "if False:",
        f"{ENDS}::test_functions_far_steeper_than_rho_are_not_infeasible",
    ),
    "ARGUMENTS_ARE_NOT_COMPARED": Mutant(
        "arguments",
        '    check_alike(together.call, {rank: report["alike"] for rank, report in told.items()})',
        "",
        f"{ARGUMENTS}::test_bad_arguments_are_refused_on_all_ranks",
    ),
}

if __name__ == "__main__":
    sys.exit(run(MUTANTS, "consensus"))
