"""Breaks each invariant of the slot protocol on purpose and sees that a test notices.

    python tests/mutants/slot.py [NAME...]

Every row replaces one piece of src/dstorm/slot.hpp by a weaker one, builds tests/cpp/slot_test.cpp
against the broken copy, plain and under the thread sanitizer, and runs it. A mutant that passes
both is a hole in the tests, and the exit status is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILDS = {"plain": ["-O2"], "tsan": ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"]}
# Plain, a race shows only while two threads really run at once: some tries.
TRIES = {"plain": 4, "tsan": 1}


class Mutant(NamedTuple):
    name: str  # the invariant it breaks, and how
    old: str
    new: str


MUTANTS = [
    Mutant(
        "S2: ticket stored before the payload is complete (relaxed)",
        "ticket.iteration.store(header.iteration, std::memory_order_release);",
        "ticket.iteration.store(header.iteration, std::memory_order_relaxed);",
    ),
    Mutant(
        "S2: ticket loaded without acquire",
        "return box_.ticket(slot, receiver_).iteration.load(std::memory_order_acquire);",
        "return box_.ticket(slot, receiver_).iteration.load(std::memory_order_relaxed);",
    ),
    Mutant(
        "S3: no hold at all (a skipped pin)",
        "cursor_->hold.store(iteration << 1 | 1, std::memory_order_release);",
        "(void)iteration;",
    ),
    Mutant(
        "S3: hold let go before the reading",
        "cursor_->hold.store(iteration << 1, std::memory_order_release);",
        "cursor_->hold.store(0, std::memory_order_release);",
    ),
    Mutant(
        "S3: no fence between hold and ticket",
        "static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }",
        "static void fence() { std::atomic_thread_fence(std::memory_order_acq_rel); }",
    ),
    Mutant(
        "S3: hold released without release order",
        "void let_go() { cursor_->hold.store(0, std::memory_order_release); }",
        "void let_go() { cursor_->hold.store(0, std::memory_order_relaxed); }",
    ),
    Mutant(
        "S4 (a): a slot counts as free before everyone has consumed it",
        "if (!consumed(r, sent.iteration) && live(r)) return false;",
        "if (!consumed(r, sent.iteration) && live(r)) return r > 1;",
    ),
    Mutant(
        "S4 (a): consumed loaded without acquire",
        "consumed.load(std::memory_order_acquire) >= iteration;",
        "consumed.load(std::memory_order_relaxed) >= iteration;",
    ),
    Mutant(
        "S4 (a): consumed stored without release",
        "cursor_->consumed.store(iteration, std::memory_order_release);",
        "cursor_->consumed.store(iteration, std::memory_order_relaxed);",
    ),
    Mutant(
        "S4 (b): no fence between revoked ticket and hold",
        "std::atomic_thread_fence(std::memory_order_seq_cst);\n    if (is_held(sent, live)) {",
        "if (is_held(sent, live)) {",
    ),
    Mutant(
        "S4 (b): holds not looked at again after the tickets are revoked",
        "std::atomic_thread_fence(std::memory_order_seq_cst);\n    if (is_held(sent, live)) {",
        "if (false) {",
    ),
    Mutant(
        "S4 (b): tickets not revoked",
        "for (int r : sent.to) box_.ticket(slot, r).iteration.store(0, std::memory_order_relaxed);",
        "",
    ),
    Mutant(
        "S4 (b): a hold covers only what it names, not what is newer",
        "return (hold & 1) != 0 ? iteration >= hold >> 1 : iteration == hold >> 1;",
        "return iteration == hold >> 1;",
    ),
    Mutant(
        "S4 (c): the dead count as readers",
        "if (!consumed(r, sent.iteration) && live(r)) return false;",
        "if (!consumed(r, sent.iteration)) return false;",
    ),
    Mutant(
        "S5: consumed does not advance (folded twice)",
        "cursor_->consumed.store(iteration, std::memory_order_release);",
        "",
    ),
    Mutant(
        "S6: clock moves before the tickets",
        "    for (int r : to) {\n      Ticket& ticket",
        "    box_.clock().store(header.iteration, std::memory_order_release);\n"
        "    for (int r : to) {\n      Ticket& ticket",
    ),
    Mutant(
        "QUEUE: one look for the oldest (an update passed over)",
        "return older < 0 ? first : older;",
        "return first;",
    ),
    Mutant(
        "QUEUE: overwrites what has not been folded",
        "if (policy == Policy::kQueue) return -1;",
        "",
    ),
    Mutant(
        "counters: what is skipped is not counted",
        "for (int r : to) ++ordinals_[static_cast<std::size_t>(r)];\n",
        "",
    ),
]


def is_caught(mutant: Mutant, build: str, folder: Path) -> bool:
    source = (ROOT / "src/dstorm/slot.hpp").read_text()
    if source.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: not one place to break; mend this table")
    (folder / "dstorm").mkdir(exist_ok=True)
    (folder / "dstorm/slot.hpp").write_text(source.replace(mutant.old, mutant.new))
    program = folder / "slot_test"
    subprocess.run(
        [os.environ.get("CXX", "g++"), "-std=c++20", *BUILDS[build], f"-I{folder}", f"-I{ROOT}/src",
         str(ROOT / "tests/cpp/slot_test.cpp"), "-o", str(program), "-lgtest", "-lgtest_main",
         "-lpthread"],
        check=True,
    )  # fmt: skip
    try:
        run = subprocess.run(
            [str(program), "--gtest_fail_fast", f"--gtest_repeat={TRIES[build]}"],
            env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
            capture_output=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


def main() -> int:
    wanted = sys.argv[1:]
    missed = 0
    for mutant in MUTANTS:
        if wanted and not any(name in mutant.name for name in wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            caught = [build for build in BUILDS if is_caught(mutant, build, Path(folder))]
        result = f"caught by {', '.join(caught)}" if caught else "MISSED"
        print(f"{result:24} {mutant.name}", flush=True)
        missed += not caught
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
