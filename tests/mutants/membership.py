"""Breaks the rules of the agreement on an epoch and sees that the simulated jobs notice.

    python tests/mutants/membership.py [NAME...]

As memory.py, with src/dstorm/membership/membership.cpp and tests/model/membership_test.cpp. That
is in one thread, so there is no race to look for.
"""

from __future__ import annotations

from memory import Mutant, main

FILE = "dstorm/membership/membership.cpp"

MUTANTS = [
    # ---- M1: what an acceptor owes
    Mutant(
        "M1: a promise is not kept (a lower ballot is accepted)",
        "if (proposed.round == 0 || proposed < own_.promised) return;",
        "if (proposed.round == 0) return;",
        FILE,
    ),
    Mutant(
        "M1: what is accepted is not promised",
        "own_.promised = proposed;",
        "if (members.empty()) own_.promised = proposed;",
        FILE,
    ),
    # ---- M1: what a proposer owes
    Mutant(
        "M1: no promises are gathered",
        "if (phase_ == Phase::kPreparing && has_quorum()) {",
        "if (phase_ == Phase::kPreparing) {",
        FILE,
    ),
    Mutant(
        "M1: not bound to what others have accepted",
        "if (agrees(peer.record) && peer.record.accepted > best->accepted) best = &peer.record;",
        "",
        FILE,
    ),
    Mutant(
        "M1: bound to the oldest that was accepted, not to the newest",
        "peer.record.accepted > best->accepted)",
        "peer.record.accepted.round > 0 &&\n"
        "          (best->accepted.round == 0 || peer.record.accepted < best->accepted))",
        FILE,
    ),
    Mutant(
        "M1: bound to nothing that was accepted",
        "best->accepted.round > 0 ? best->accepted_members : draft_",
        "draft_",
        FILE,
    ),
    Mutant(
        "M1: a promise counts as an acceptance",
        "(phase_ == Phase::kPreparing ? record.promised : record.accepted) == own_.proposed",
        "record.promised == own_.proposed",
        FILE,
    ),
    # ---- M1: quorums
    Mutant(
        "M1: half is enough",
        "if (twice > members.size()) return true;",
        "if (twice >= members.size()) return true;",
        FILE,
    ),
    Mutant(
        "M1: two are enough",
        "if (twice > members.size()) return true;",
        "if (twice >= 4) return true;",
        FILE,
    ),
    Mutant(
        "M1: a tie goes to either half",
        "missing.front() != members.front()",
        "true",
        FILE,
    ),
    Mutant(
        "M1: neither half is to go on, and that of the lowest does",
        "options_.tie == TieRule::kLowest &&",
        "",
        FILE,
    ),
    Mutant(
        "M1: who has ended for the proposer has ended for all",
        "return !agrees(peer.record) || knows_all(peer.record.ended);",
        "return true || knows_all(peer.record.ended);",
        FILE,
    ),
    Mutant(
        "M1: the silent count as ended",
        "if (!agrees(peer.record)) missing",
        "if (!agrees(peer.record) && !contains(own_.accused, peer.rank)) missing",
        FILE,
    ),
    Mutant(
        "M1: a rank takes itself for ended, as another says so",
        "if (r == options_.rank || !view().has(r) || has_ended(r)) continue;",
        "if (!view().has(r) || has_ended(r)) continue;",
        FILE,
    ),
    Mutant(
        "whom other members have buried is not noted",
        "note_ended(record.ended);",
        "",
        FILE,
    ),
    Mutant(
        "M1: words come from whom one has called ended",
        "if (!is_member() || rank == options_.rank || has_ended(rank)) return;",
        "if (!is_member() || rank == options_.rank) return;",
        FILE,
    ),
    Mutant(
        "M1: records of an older epoch count in this one",
        "record.view.epoch < view().epoch ||",
        "",
        FILE,
    ),
    Mutant(
        "M1: an older record of a rank replaces a newer one",
        "if (record.beat <= peer->record.beat) return;",
        "",
        FILE,
    ),
    # ---- M2, M3, and that it ends
    Mutant(
        "M2: an older view is taken over",
        "if (record.view.epoch > view().epoch) adopt",
        "if (record.view.epoch != view().epoch) adopt",
        FILE,
    ),
    Mutant(
        "M3: who is not in the view goes on",
        "if (!own_.view.has(options_.rank)) {",
        "if (false) {",
        FILE,
    ),
    Mutant(
        "M3: who finds no quorum goes on",
        "if (in_trouble > 2 * options_.timeout) {",
        "if (false) {",
        FILE,
    ),
    Mutant(
        "the ended are members of the next epoch",
        "next_members_ = accusations_.at_peace(members);",
        "next_members_ = accusations_.at_peace(view().members);",
        FILE,
    ),
    Mutant(
        "who does not get on with a proposal makes no other",
        "now - proposed_at_ > patience + turn()",
        "false",
        FILE,
    ),
    Mutant(
        "a tick that takes long counts as an absence",
        "now - last_tick_ - worked >",
        "now - last_tick_ >",
        FILE,
    ),
    Mutant(
        "an absence counts as the others' silence",
        "listens_since_ = now - options_.timeout / 2;",
        "",
        FILE,
    ),
    Mutant(
        "the next members are not found anew when somebody else is accused",
        "accusations_.set(accuser, accused);\n  next_members_.reset();",
        "accusations_.set(accuser, accused);",
        FILE,
    ),
    Mutant(
        "a proposal names those who stay when it is accepted, not when it began",
        "best->accepted_members : draft_;",
        "best->accepted_members : next_members();",
        FILE,
    ),
    Mutant(
        "a proposal does not wait until accusations have settled",
        "in_trouble - std::max(settling, Time::zero()) >= turn()",
        "in_trouble >= turn()",
        FILE,
    ),
    # ---- whom the next epoch does without
    Mutant(
        "a rank is at odds only with those that it accuses itself",
        "pairs[(to * kBits + i) * words_ + from] |= block[i];",
        "pairs[(to * kBits + i) * words_ + from] |= 0;",
        "dstorm/membership/accusations.cpp",
    ),
    Mutant(
        "those who have gone still count",
        "    counts.subtract(row(going));\n",
        "",
        "dstorm/membership/accusations.cpp",
    ),
]

if __name__ == "__main__":
    raise SystemExit(main(MUTANTS, ["simulated"]))
