"""Breaks the rules of the agreement on an epoch and checks that the simulated jobs notice.

    python tests/mutants/membership.py [NAME...]

It works as memory.py does, with src/dstorm/membership/membership.cpp and
tests/model/membership_test.cpp. That test has one thread, so there is no race to look for.
"""

from __future__ import annotations

from memory import Mutant, main

FILE = "dstorm/membership/membership.cpp"

MUTANTS = [
    # ---- M1: the duties of an acceptor
    Mutant(
        "M1: an acceptor breaks its promise and accepts a lower ballot",
        "if (proposed.round == 0 || proposed < own_.promised) return;",
        "if (proposed.round == 0) return;",
        FILE,
    ),
    Mutant(
        "M1: an acceptor accepts a ballot without promising it",
        "own_.promised = proposed;",
        "if (members.empty()) own_.promised = proposed;",
        FILE,
    ),
    # ---- M1: the duties of a proposer
    Mutant(
        "M1: a proposer does not wait for a quorum of promises",
        "if (phase_ == Phase::kPreparing && has_quorum()) {",
        "if (phase_ == Phase::kPreparing) {",
        FILE,
    ),
    Mutant(
        "M1: a proposer ignores what other ranks have accepted",
        "if (agrees(peer.record) && peer.record.accepted > best->accepted) best = &peer.record;",
        "",
        FILE,
    ),
    Mutant(
        "M1: a proposer takes the oldest accepted ballot, not the newest",
        "peer.record.accepted > best->accepted)",
        "peer.record.accepted.round > 0 &&\n"
        "          (best->accepted.round == 0 || peer.record.accepted < best->accepted))",
        FILE,
    ),
    Mutant(
        "M1: a proposer always proposes its own draft",
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
        "M1: half of the members are a quorum without the tie rule",
        "if (twice > members.size()) return true;",
        "if (twice >= members.size()) return true;",
        FILE,
    ),
    Mutant(
        "M1: two members are a quorum",
        "if (twice > members.size()) return true;",
        "if (twice >= 4) return true;",
        FILE,
    ),
    Mutant(
        "M1: at a tie either half is a quorum",
        "missing.front() != members.front()",
        "true",
        FILE,
    ),
    Mutant(
        "M1: under tie='neither' the half with the lowest rank goes on",
        "options_.tie == TieRule::kLowest &&",
        "",
        FILE,
    ),
    Mutant(
        "M1: a rank counts as dead when only the proposer knows that it is dead",
        "return !agrees(peer.record) || knows_all(peer.record.ended);",
        "return true || knows_all(peer.record.ended);",
        FILE,
    ),
    Mutant(
        "M1: a suspected rank counts as dead",
        "if (!agrees(peer.record)) missing",
        "if (!agrees(peer.record) && !contains(own_.accused, peer.rank)) missing",
        FILE,
    ),
    Mutant(
        "M1: a rank believes a record that calls it dead itself",
        "if (r == options_.rank || !view().has(r) || has_ended(r)) continue;",
        "if (!view().has(r) || has_ended(r)) continue;",
        FILE,
    ),
    Mutant(
        "a rank ignores deaths that other members report",
        "note_ended(record.ended);",
        "",
        FILE,
    ),
    Mutant(
        "M1: a rank accepts records from a rank that it has called dead",
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
    # ---- M2, M3, and that the agreement ends
    Mutant(
        "M2: a rank adopts an older view",
        "if (record.view.epoch > view().epoch) adopt",
        "if (record.view.epoch != view().epoch) adopt",
        FILE,
    ),
    Mutant(
        "M3: a rank that is not in the view goes on",
        "if (!own_.view.has(options_.rank)) standing_ = Standing::kEvicted;",
        "",
        FILE,
    ),
    Mutant(
        "M3: a rank that finds no quorum goes on",
        "if (in_trouble > 2 * options_.timeout) {",
        "if (false) {",
        FILE,
    ),
    Mutant(
        "dead ranks are members of the next epoch",
        "next_members_ = accusations_.at_peace(members);",
        "next_members_ = accusations_.at_peace(view().members);",
        FILE,
    ),
    Mutant(
        "a proposer whose proposal fails makes no other",
        "now - proposed_at_ > patience + turn()",
        "false",
        FILE,
    ),
    Mutant(
        "a rank takes a long tick for an absence of its own",
        "now - last_tick_ - worked >",
        "now - last_tick_ >",
        FILE,
    ),
    Mutant(
        "a rank that was absent suspects the other ranks",
        "listens_since_ = now - options_.timeout / 2;",
        "",
        FILE,
    ),
    Mutant(
        "the next members are not computed again after a new accusation",
        "accusations_.set(accuser, accused);\n  next_members_.reset();",
        "accusations_.set(accuser, accused);",
        FILE,
    ),
    Mutant(
        "a proposal names the members at its acceptance, not at its start",
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
    # ---- the ranks that the next epoch leaves out
    Mutant(
        "only the accuser counts in a pair of ranks at odds, not the accused",
        "pairs[(to * kBits + i) * words_ + from] |= block[i];",
        "pairs[(to * kBits + i) * words_ + from] |= 0;",
        "dstorm/membership/accusations.cpp",
    ),
    Mutant(
        "the pairs of a removed rank still count",
        "    counts.subtract(row(going));\n",
        "",
        "dstorm/membership/accusations.cpp",
    ),
    # ---- watching a few
    Mutant(
        "ranks that do not watch each other hear nothing of each other in trouble",
        "if (is_changed || has_trouble()) own_.news = own_.beat;",
        "if (is_changed) own_.news = own_.beat;",
        FILE,
    ),
    Mutant(
        "a rank in trouble waits for no sign of those that it does not watch",
        "if (!peer.owes_since) peer.owes_since = now;",
        "",
        FILE,
    ),
    Mutant(
        "a rank that is not watched owes a sign for ever",
        "if (!peer.is_watched) peer.owes_since.reset();",
        "",
        FILE,
    ),
    Mutant(
        "a new epoch forgets who said nothing in the trouble before it",
        "peer.owes_since = before->owes_since;",
        "",
        FILE,
    ),
    Mutant(
        "a rank that others accuse is given the whole limit by those that do not watch it",
        "now - heard > options_.timeout / 4 && is",
        "now - heard > options_.timeout && is",
        FILE,
    ),
    Mutant(
        "a proposer does not wait for those that learn of an accusation by others",
        "watches_all_ ? 1 : 3;",
        "1;",
        FILE,
    ),
]

if __name__ == "__main__":
    raise SystemExit(main(MUTANTS, ["simulated"]))
