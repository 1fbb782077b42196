"""Breaks each invariant of slots and inboxes on purpose and checks that a test notices.

    python tests/mutants/memory.py [NAME...]

Every row replaces one piece of a file by a weaker one, builds that file's test against the broken
copy, plain and under the thread sanitizer, and runs it. A mutant that passes both is a hole in the
tests, and the exit status is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Build(NamedTuple):
    flags: list[str]
    tries: int
    seconds: int  # a test that takes longer counts as hanging


BUILDS = {
    # A race shows only while two threads really run at once, so there are some tries.
    "plain": Build(["-O2"], 4, 120),
    "tsan": Build(["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"], 1, 120),
    "simulated": Build(["-O2"], 1, 600),
}


class Mutant(NamedTuple):
    name: str  # the invariant it breaks, and how
    old: str
    new: str
    file: str = "dstorm/slot/writer.hpp"


# The files that are built for the mutants of a file, besides its broken copy.
TESTS = {
    "dstorm/slot/layout.hpp": ["tests/cpp/slot/slot_test.cpp"],
    "dstorm/slot/writer.hpp": ["tests/cpp/slot/slot_test.cpp"],
    "dstorm/slot/reader.hpp": ["tests/cpp/slot/slot_test.cpp"],
    "dstorm/slot/carrier.hpp": ["tests/cpp/slot/slot_test.cpp"],
    "dstorm/slot/copies.hpp": ["tests/cpp/slot/copies_test.cpp"],
    "dstorm/remote/verbs/inbox.hpp": [
        "tests/cpp/remote/verbs/inbox_test.cpp",
        "src/dstorm/slot/checksum.cpp",
        "src/dstorm/remote/verbs/inbox.cpp",
    ],
    "dstorm/remote/verbs/inbox.cpp": [
        "tests/cpp/remote/verbs/inbox_test.cpp",
        "src/dstorm/slot/checksum.cpp",
    ],
    "dstorm/membership/membership.cpp": [
        "tests/model/membership_test.cpp",
        "src/dstorm/membership/accusations.cpp",
    ],
    "dstorm/membership/accusations.cpp": ["tests/cpp/membership/accusations_test.cpp"],
}


MUTANTS = [
    Mutant(
        "S2: ticket stored before the payload is complete (relaxed)",
        "ticket.iteration.store(iteration, std::memory_order_release);",
        "ticket.iteration.store(iteration, std::memory_order_relaxed);",
    ),
    Mutant(
        "S2: ticket loaded without acquire",
        "return box_.ticket(slot, receiver_).iteration.load(std::memory_order_acquire);",
        "return box_.ticket(slot, receiver_).iteration.load(std::memory_order_relaxed);",
        "dstorm/slot/reader.hpp",
    ),
    Mutant(
        "S8: an update is shown when it is announced",
        "      ++ordinals_[static_cast<std::size_t>(r)];\n    }\n  }\n  void show",
        "      ++ordinals_[static_cast<std::size_t>(r)];\n    }\n    show(slot);\n  }\n  void show",
    ),
    Mutant(
        "S8: the clock moves when an update is announced",
        "      ++ordinals_[static_cast<std::size_t>(r)];\n    }\n  }\n  void show",
        "      ++ordinals_[static_cast<std::size_t>(r)];\n    }\n    advance(header.iteration);\n"
        "  }\n  void show",
    ),
    Mutant(
        "S3: a reader stores no hold",
        "cursor_->hold.store(iteration << 1 | 1, std::memory_order_release);",
        "(void)iteration;",
        "dstorm/slot/reader.hpp",
    ),
    Mutant(
        "S3: a reader drops its hold before it reads",
        "cursor_->hold.store(iteration << 1, std::memory_order_release);",
        "cursor_->hold.store(0, std::memory_order_release);",
        "dstorm/slot/reader.hpp",
    ),
    Mutant(
        "S3: no fence between hold and ticket",
        "static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }",
        "static void fence() { std::atomic_thread_fence(std::memory_order_acq_rel); }",
        "dstorm/slot/reader.hpp",
    ),
    Mutant(
        "S3: hold released without release order",
        "void let_go() { cursor_->hold.store(0, std::memory_order_release); }",
        "void let_go() { cursor_->hold.store(0, std::memory_order_relaxed); }",
        "dstorm/slot/reader.hpp",
    ),
    Mutant(
        "S4 (a): a slot counts as free before all receivers have consumed it",
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
        "dstorm/slot/reader.hpp",
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
        "S4 (b): an open hold covers only the iteration that it names, not newer ones",
        "return (hold & 1) != 0 ? iteration >= hold >> 1 : iteration == hold >> 1;",
        "return iteration == hold >> 1;",
    ),
    Mutant(
        "S4 (c): a dead receiver keeps a slot in use",
        "if (!consumed(r, sent.iteration) && live(r)) return false;",
        "if (!consumed(r, sent.iteration)) return false;",
    ),
    Mutant(
        "S5: consumed does not advance (folded twice)",
        "cursor_->consumed.store(iteration, std::memory_order_release);",
        "",
        "dstorm/slot/reader.hpp",
    ),
    Mutant(
        "S6: clock moves before the tickets",
        "      put_ticket(slot, {r, ordinals_",
        "      advance(sent.iteration);\n      put_ticket(slot, {r, ordinals_",
    ),
    Mutant(
        "QUEUE: only one look for the oldest update (one is skipped)",
        "return older < 0 ? first : older;",
        "return first;",
        "dstorm/slot/reader.hpp",
    ),
    Mutant(
        "QUEUE: a sender overwrites an update that is not folded",
        "if (policy == Policy::kQueue) return -1;",
        "",
    ),
    Mutant(
        "counters: a skipped update is not counted",
        "for (int r : to) ++ordinals_[static_cast<std::size_t>(r)];\n",
        "",
    ),
    Mutant(
        "C2: a copy is taken from a rank that may still write it",
        "(word & kHeld) == 0 || place_of(word) == place || has_ended(place_of(word));",
        "true;",
        "dstorm/slot/copies.hpp",
    ),
    Mutant(
        "C2: no rank takes the copy of a dead rank",
        "(word & kHeld) == 0 || place_of(word) == place || has_ended(place_of(word));",
        "(word & kHeld) == 0 || place_of(word) == place;",
        "dstorm/slot/copies.hpp",
    ),
    Mutant(
        "C2: a copy is released without release order",
        "word, word & ~kHeld, std::memory_order_acq_rel",
        "word, word & ~kHeld, std::memory_order_relaxed",
        "dstorm/slot/copies.hpp",
    ),
    Mutant(
        "C2: a release frees a copy that a later connection holds",
        "std::uint64_t word = taken.holding;",
        "std::uint64_t word = words_[1 + taken.copy].load();",
        "dstorm/slot/copies.hpp",
    ),
    Mutant(
        "C4: an outdated connection makes a copy current",
        "if (current >> kLinkBit > link) return {Outcome::kOutdated};",
        "",
        "dstorm/slot/copies.hpp",
    ),
    Mutant(
        "copies: an invalid number of the current copy is believed",
        "return copy < copies() ? copy : 0;",
        "return copy;",
        "dstorm/slot/copies.hpp",
    ),
    Mutant(
        "copies: a lower ticket counts as one of the last update",
        "if (k == 0 || k < sent.iteration) continue;",
        "if (k == 0) continue;",
    ),
    Mutant(
        "copies: the next writer does not learn the receivers of an update",
        "sent.to.push_back(r);\n      }\n      sent.left",
        "}\n      sent.left",
    ),
    Mutant(
        "S3, carrier: no hold",
        "box_.cursor(r).hold.store(found.iteration << 1, std::memory_order_release);",
        "",
        "dstorm/slot/carrier.hpp",
    ),
    Mutant(
        "S3, carrier: tickets not looked at again after the hold",
        "if (ticket(slot, to.rank) != found.iteration) return false;",
        "",
        "dstorm/slot/carrier.hpp",
    ),
    Mutant(
        "S3, carrier: takes an update before all its tickets are there",
        "return header_.iteration == found.iteration && header_.receivers == tickets;",
        "return header_.iteration == found.iteration;",
        "dstorm/slot/carrier.hpp",
    ),
    Mutant(
        "S4 (a), carrier: takes an update that its receivers have consumed",
        "return box_.cursor(receiver).consumed.load(std::memory_order_acquire) < iteration &&\n"
        "           live(receiver);",
        "return live(receiver);",
        "dstorm/slot/carrier.hpp",
    ),
    Mutant(
        "S4 (c), carrier: takes an update for a dead receiver",
        "return box_.cursor(receiver).consumed.load(std::memory_order_acquire) < iteration &&\n"
        "           live(receiver);",
        "return box_.cursor(receiver).consumed.load(std::memory_order_acquire) < iteration;",
        "dstorm/slot/carrier.hpp",
    ),
    Mutant(
        "S3, carrier: ordinals read before the hold is certain",
        "      to_.push_back({r, 0});\n    }",
        "      to_.push_back({r, box_.ticket(slot, r).ordinal});\n    }",
        "dstorm/slot/carrier.hpp",
    ),
    Mutant(
        "S3, carrier: hold released without release order",
        "box_.cursor(to.rank).hold.store(0, std::memory_order_release);",
        "box_.cursor(to.rank).hold.store(0, std::memory_order_relaxed);",
        "dstorm/slot/carrier.hpp",
    ),
    Mutant(
        "carrier: only one look for the oldest update (one is skipped)",
        "if (const Found older = look(after, found.iteration - 1, live); older.slot >= 0) {",
        "if (const Found older = found; false) {",
        "dstorm/slot/carrier.hpp",
    ),
    Mutant(
        "L2: an update that does not match its checksum is accepted",
        "return checksum.value() == tail.checksum;",
        "return true;",
        "dstorm/remote/verbs/inbox.cpp",
    ),
    Mutant(
        "L2: header not part of the checksum",
        "  checksum.add(std::as_bytes(std::span(&header, 1)));\n",
        "",
        "dstorm/remote/verbs/inbox.cpp",
    ),
    Mutant(
        "L2: ordinals not part of the checksum",
        "  checksum.add(std::span(trailer_).first(trailer_.size() - sizeof(tail.checksum)));\n",
        "",
        "dstorm/remote/verbs/inbox.cpp",
    ),
    Mutant(
        "L2: a payload longer than the slot is believed",
        "header.payload_bytes > shape_.slot_bytes() ||",
        "",
        "dstorm/remote/verbs/inbox.cpp",
    ),
    Mutant(
        "L2: the update of another sender is accepted",
        "header.sender != static_cast<std::uint32_t>(sender_)",
        "false",
        "dstorm/remote/verbs/inbox.cpp",
    ),
    Mutant(
        "C1: a rank takes the copy of a stopped rank that is taking in",
        "return rank_at(place) < 0 || has_ended(rank_at(place)); };",
        "return rank_at(place) < 0 || !live(rank_at(place)); };",
        "dstorm/remote/verbs/inbox.hpp",
    ),
    Mutant(
        "C1: a holder that is not a rank of this host is asked for its state",
        "return rank_at(place) < 0 || has_ended",
        "return has_ended",
        "dstorm/remote/verbs/inbox.hpp",
    ),
    Mutant(
        "C1: a rank that takes in uses what it knew before other ranks took their turns",
        "if (!taken_.is_unchanged || !writer_ || copy_ != taken_.copy) {",
        "if (!writer_ || copy_ != taken_.copy) {",
        "dstorm/remote/verbs/inbox.hpp",
    ),
    Mutant(
        "S6: an update that a dead writer began to publish gets another slot",
        "if (const int begun = writer_->begun(iteration); begun >= 0) {\n"
        "      return complete(slot, iteration, begun);\n    }",
        "",
        "dstorm/remote/verbs/inbox.hpp",
    ),
    Mutant(
        "L5: QUEUE skips an update that is not whole yet",
        "    return is_for_nobody(slot, iteration, live);",
        "    return is_for_nobody(slot, iteration, live) || is_over(iteration, 0);",
        "dstorm/remote/verbs/inbox.hpp",
    ),
    Mutant(
        "L5: QUEUE skips an update that has not begun to arrive",
        "read(slot, iteration, header, writer_->payload(room)) && is_next(live)) {",
        "read(slot, iteration, header, writer_->payload(room))) {",
        "dstorm/remote/verbs/inbox.hpp",
    ),
    Mutant(
        "L5: an update only for dead ranks holds up a QUEUE",
        "    return is_for_nobody(slot, iteration, live);",
        "    return false;",
        "dstorm/remote/verbs/inbox.hpp",
    ),
    Mutant(
        "L4: the clock is read after the slots",
        "if (clock > now && all_there) writer_->advance(clock);",
        "const std::uint64_t later = head().clock.load(std::memory_order_acquire);\n"
        "    if (later > now && all_there) writer_->advance(later);",
        "dstorm/remote/verbs/inbox.hpp",
    ),
    Mutant(
        "L4: only one look for the oldest update (one is skipped)",
        "return older.slot < 0 ? found : older;",
        "return found;",
        "dstorm/remote/verbs/inbox.cpp",
    ),
]


def outcome(mutant: Mutant, build: str, folder: Path) -> str:
    """Return how the test notices: "BUILD" or "BUILD (hangs)", or "" if it passes."""
    source = (ROOT / "src" / mutant.file).read_text()
    if source.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: not one place to break; mend this table")
    broken = folder / mutant.file
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.write_text(source.replace(mutant.old, mutant.new))
    sources = [str(ROOT / name) for name in TESTS[mutant.file]]
    sources += [str(broken)] if broken.suffix == ".cpp" else []
    program = folder / "test"
    flags, tries, seconds = BUILDS[build]
    subprocess.run(
        [os.environ.get("CXX", "g++"), "-std=c++20", *flags, f"-I{folder}", f"-I{ROOT}/src",
         f"-I{ROOT}/tests/cpp", *sources, "-o", str(program),
         "-lgtest", "-lgtest_main", "-lpthread"],
        check=True,
    )  # fmt: skip
    try:
        run = subprocess.run(
            [str(program), "--gtest_fail_fast", f"--gtest_repeat={tries}"],
            env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{build} (hangs)"
    return build if run.returncode != 0 else ""


def main(mutants: Sequence[Mutant], builds: Sequence[str]) -> int:
    wanted = sys.argv[1:]
    missed = 0
    for mutant in mutants:
        if wanted and not any(name in mutant.name for name in wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcomes = [outcome(mutant, build, Path(folder)) for build in builds]
            caught = [one for one in outcomes if one]
        result = f"caught by {', '.join(caught)}" if caught else "MISSED"
        print(f"{result:24} {mutant.name}", flush=True)
        missed += not caught
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(MUTANTS, ["plain", "tsan"]))
