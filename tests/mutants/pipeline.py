"""Breaks the rules of malt.torch.Pipeline and malt.messages.Edge and checks that a test notices.

    python tests/mutants/pipeline.py [NAME...]

Not here: that a rank which leaves without a word is looked up among the dead ones. All ranks tell
why they leave, so this matters only where that message is lost with its host.
"""

from __future__ import annotations

import sys

from pool import Mutant, run

PIPELINE = "torch._pipeline.pipeline"
WIRE = "torch._pipeline.wire"
TESTS = "torch/test_pipeline.py"
EDGE = "job/test_edge.py"
FAILURES = f"{TESTS}::test_an_error_of_one_rank_comes_out_on_all"
REPLICA_FAILS = f"{TESTS}::test_an_error_of_one_replica_comes_out_on_all_ranks"
MUTANTS = {
    "FAILURE_NOT_TOLD": Mutant(
        PIPELINE,
        "for wire in self._all_wires():\n                wire.tell(failure)",
        "pass",
        f"{FAILURES}[a loss that raises]",
    ),
    "FAILURE_NEEDS_A_FREE_SLOT": Mutant(
        WIRE,
        "self._depth, spare=1)",
        "self._depth)",
        f"{TESTS}::test_an_error_comes_out_on_all_ranks_while_all_slots_hold_messages",
    ),
    "LONG_FAILURE_NOT_TOLD": Mutant(
        WIRE, "[:_MOST_TEXT]", "", f"{FAILURES}[a loss that raises much]"
    ),
    "REPLICAS_NOT_TOLD": Mutant(
        PIPELINE, "[*self._wires(), *self._beside]", "self._wires()", REPLICA_FAILS
    ),
    "DEAD_RANK_NOT_TOLD": Mutant(
        WIRE,
        'decode(errors="ignore"), ranks)',
        'decode(errors="ignore"))',
        "../chaos/test_pipeline.py",
    ),
    "LATE_RANK_IS_DEAD": Mutant(
        PIPELINE,
        "failure = Failure(errors.TimeoutError,",
        "failure = Failure(PeerError,",
        f"{TESTS}::test_a_slow_rank_is_named_as_late_and_not_as_dead",
    ),
    "OTHER_NEIGHBOUR_NOT_LOOKED_AFTER": Mutant(
        PIPELINE,
        "wire.look()",
        "pass",
        f"{TESTS}::test_a_rank_that_waits_for_one_neighbour_learns_of_the_other",
    ),
    "ONE_PASS_MORE_AHEAD": Mutant(
        "torch._pipeline.order",
        "min(microbatches, stages - 1 - stage)",
        "min(microbatches, stages - stage)",
        f"{TESTS}::test_every_stage_does_each_pass_once_and_in_order",
    ),
    "BACKWARD_PASSES_OUT_OF_ORDER": Mutant(
        "torch._pipeline.order",
        "for microbatch in range(microbatches - ahead, microbatches):",
        "for microbatch in reversed(range(microbatches - ahead, microbatches)):",
        f"{TESTS}::test_every_stage_does_each_pass_once_and_in_order",
    ),
    "MICROBATCHES_COUNT_ALIKE": Mutant(
        PIPELINE,
        "len(marks[each]) / rows",
        "1 / self._microbatches",
        f"{TESTS}::test_losses_and_parameters_are_those_of_the_undivided_network[1f1b-7]",
    ),
    "LAZY_TENSORS_AS_THEY_LIE_IN_MEMORY": Mutant(
        WIRE,
        ".resolve_conj().resolve_neg()",
        "",
        f"{TESTS}::test_tensors_that_are_conjugated_when_they_are_read_arrive_so",
    ),
    "STATISTICS_NOT_AVERAGED": Mutant(
        "torch._pipeline.replicas",
        "if b.dtype in DTYPES and b.numel()",
        "if False",
        f"{TESTS}::test_replicas_of_a_stage_are_averaged",
    ),
    "UNFROZEN_NOT_AVERAGED": Mutant(PIPELINE, "self._replicas.check()", "pass", REPLICA_FAILS),
    "NUMBERS_NOT_CHECKED": Mutant(
        "_messages.array_head",
        "if not (self.number.is_integer() and least <= self.number <= most):",
        "if False:",
        f"{TESTS}::test_numbers_in_messages_are_checked",
    ),
    "SHAPES_OVERFLOW": Mutant(
        "_messages.array_head",
        " or widest > _MOST_ARRAY_BYTES",
        "",
        f"{EDGE}::test_a_shape_must_fit_the_body_and_memory",
    ),
    "TWO_THREADS_LOOK_AT_ONE_ARRAY": Mutant(
        "_messages.edge",
        "threading.RLock()",
        "threading.Semaphore(2)",
        f"{EDGE}::test_each_array_comes_whole_to_one_of_two_threads_that_receive[shm]",
    ),
    "CLOSE_IN_A_WAIT_NOT_NAMED": Mutant(
        "_messages.edge",
        "except Error as error:\n            if self._duplex is None:",
        "except Error as error:\n            if False:",
        f"{EDGE}::test_a_receiver_learns_that_another_thread_has_closed_the_edge[shm]",
    ),
}

if __name__ == "__main__":
    sys.exit(run(MUTANTS, ""))
