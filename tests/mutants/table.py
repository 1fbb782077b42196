"""Breaks the rules of tables of malt.ps and of messages between two ranks (malt.messages.Edge,
pipelines), and checks that a test notices.

    cmake --preset dev && cmake --build --preset dev --target table_test
    python tests/mutants/table.py [NAME...]

Each row replaces one piece of a file of src/vol/ps or src/dstorm/collective by a weaker one. The
tests of both are built with the broken file, and run with real processes as ranks, over shared
memory and then over TCP. The names P1 to P16 are those of src/vol/ps. A mutant that
passes all is a hole in the tests, and the exit status is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from memory import Mutant

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "dev"
TESTS = [
    *sorted((ROOT / "tests/cpp/vol/ps").glob("*_test.cpp")),
    ROOT / "tests/cpp/collective/duplex_test.cpp",
]
COLLECTIVE = ROOT / "src/dstorm/collective"
SOURCES = [
    *sorted((ROOT / "src/vol/ps").glob("*.cpp")),
    *(COLLECTIVE / "mail.cpp", COLLECTIVE / "duplex.cpp"),
]
TRIES = {"shm": 3, "tcp": 1}  # a death must come at the right moment
SECONDS = {"shm": 120, "tcp": 600}  # tests that take longer count as hanging

CLIENT = "vol/ps/client.cpp"
CLIENT_DEATHS = "vol/ps/client_deaths.cpp"
CLIENT_EDITIONS = "vol/ps/client_editions.cpp"
CLIENT_SENDING = "vol/ps/client_sending.cpp"
SERVER = "vol/ps/server.cpp"
HELD_RANGES = "vol/ps/held_ranges.cpp"
REPLICATION = "vol/ps/replication.cpp"
RANGE = "vol/ps/range.cpp"
HELD_BACK = "vol/ps/held_back.cpp"
SHOWN_ROWS = "vol/ps/shown_rows.cpp"
HOT_ROWS = "vol/ps/hot_rows.cpp"
HOT_PULLS = "vol/ps/hot_pulls.cpp"
EDITION = "vol/ps/edition.cpp"
SERVER_STATE = "vol/ps/server_state.cpp"
MESSAGE_WRITER = "vol/ps/message_writer.cpp"
MOVES = "vol/ps/moves.cpp"
LEAVING = "vol/ps/leaving.cpp"
PULLS = "vol/ps/pulls.cpp"
PLACEMENT = "vol/ps/placement.cpp"
CLIENT_SAVING = "vol/ps/client_saving.cpp"
SERVER_CHECKPOINTS = "vol/ps/server_checkpoints.cpp"
DUPLEX = "dstorm/collective/duplex.cpp"

MUTANTS = [
    Mutant(
        "P16: a client runs ahead of the others",
        "if (options_.is_bsp()) await_others",
        "if (false) await_others",
        CLIENT,
    ),
    Mutant(
        "P16: a client waits for a rank that has died",
        "  checkpoints_.answer_await();\n  return true;",
        "  return true;",
        SERVER,
    ),
    Mutant(
        "P15: a server answers a client that takes no answers",
        "state_.mail.untaken(sender) >= kMostUntaken",
        "false",
        SERVER,
    ),
    Mutant(
        "a server that goes before others takes their ranges along",
        "if (owner != order.end()) std::rotate(order.begin(), owner, owner + 1);",
        "if (owner != order.end()) std::iter_swap(order.begin(), owner);",
        PLACEMENT,
    ),
    Mutant(
        "ranges have no owners",
        "if (range < owners.size()) {",
        "if (range + 1 < owners.size()) {",
        PLACEMENT,
    ),
    Mutant(
        "P13: a rank reads before its server knows of all clocks",
        "if (is_live && state_.clocks.of(client) < await_->clocks[client]) return;",
        "",
        SERVER_CHECKPOINTS,
    ),
    Mutant(
        "P13: a rank reads before its server knows of the deaths",
        "if (is_live && state_.clocks.of(client) < await_->clocks[client]) return;",
        "if (is_live && state_.clocks.of(client) < await_->clocks[client] && client < 2) return;",
        SERVER_CHECKPOINTS,
    ),
    Mutant(
        "P13: what the rule keeps is not read",
        "if (offset < value_bytes_) return values().subspan(offset);",
        "if (offset >= value_bytes_) offset -= value_bytes_;\n"
        "  if (offset < value_bytes_) return values().subspan(offset);",
        RANGE,
    ),
    Mutant(
        "P13: restored rows do not go to the copies",
        "  held_[range].copies.clear();\n  update_copies(range, made);",
        "  update_copies(range, made);",
        REPLICATION,
    ),
    Mutant(
        "P13: a range counts as written before its copies are whole",
        "answer == nullptr ? 0 : await_forwarded",
        "true ? 0 : await_forwarded",
        REPLICATION,
    ),
    Mutant(
        "P13: pushes that are kept are applied to the restored rows",
        "held_.take_kept(range, std::numeric_limits<std::uint64_t>::max());",
        "",
        SERVER_CHECKPOINTS,
    ),
    Mutant(
        "P13: what is held back is added to the restored rows",
        "held_back_.clear();",
        "",
        CLIENT_SAVING,
    ),
    Mutant(
        "P13: hot rows of the time before are given",
        "hot_.forget_rows();",
        "",
        SERVER_CHECKPOINTS,
    ),
    Mutant(
        "P13: servers go on with the clocks of the time before",
        "state_.clocks.note(client, clocks[client]);",
        "",
        SERVER_CHECKPOINTS,
    ),
    Mutant(
        "P13: clients that read in place see the clock of the time before",
        "held_.show_clock();",
        "",
        SERVER_CHECKPOINTS,
    ),
    Mutant(
        "P13: rows that are lost cannot be restored",
        "if (held.range == nullptr) held.range = held_.make(range);  // it was lost",
        "if (held.range == nullptr) return acknowledge(head.id);",
        SERVER_CHECKPOINTS,
    ),
    Mutant(
        "P5: a pull of lost rows waits for clocks",
        "if (held.range != nullptr || held.coming != nullptr) continue;",
        "continue;",
        PULLS,
    ),
    Mutant(
        "P10: a rank joins at a clock of which pushes have been applied",
        "if (each->has_closed == 0) lowest",
        "lowest",
        EDITION,
    ),
    Mutant(
        "P11: a server that leaves gets no copy, though another one leaves before it",
        "if (!members.is_live(server) || has_it) continue;",
        "if (!state_.may_take_over(server) || has_it) continue;",
        REPLICATION,
    ),
    Mutant(
        "P12: a server gives a row of an earlier clock",
        "if (row.values.empty() || row.clock < clock) return std::nullopt;",
        "if (row.values.empty()) return std::nullopt;",
        HOT_ROWS,
    ),
    Mutant(
        "P12: a primary does not wait for the clock",
        "const bool is_due = pull.head.clock <= lowest;  // P5",
        "const bool is_due = true;",
        HOT_PULLS,
    ),
    Mutant(
        "P12: a server asks for each that asks it",
        "if (asked && asked->clock >= clock) return false;",
        "",
        HOT_ROWS,
    ),
    Mutant(
        "P12: nobody else is asked what a dead server was",
        "rows_.forget([this](int server, std::uint64_t) "
        "{ return !state_.members.is_live(server); });",
        "",
        HOT_PULLS,
    ),
    Mutant(
        "P12: a pull that waits is not looked at again",
        "return !state_.mail.is_live(pull.asker) || (has_room(pull.asker) && answer(pull));",
        "return !state_.mail.is_live(pull.asker);",
        HOT_PULLS,
    ),
    Mutant(
        "P12: a lost row is nobody's error",
        "state_.writer.answer(Head::Kind::kLost, pull.asker, pull.head.id, head.first);\n"
        "    return true;",
        "return false;",
        HOT_PULLS,
    ),
    Mutant(
        "P10: a pull waits for a rank that has gone to the next edition",
        "return on_ranks && options_.is_superseded && options_.is_superseded();",
        "return on_ranks && false;",
        CLIENT,
    ),
    Mutant(
        "P10: a rank goes to the next edition before its pushes are acknowledged",
        'wait_until([this] { return sent_.empty(); }, deadline, "move");  // P10 (b)',
        "",
        CLIENT_EDITIONS,
    ),
    Mutant(
        "P10: rows of a server count that a later primary has replaced",
        "std::erase_if(all, [=](const Has& has) { return has.range.place < latest; });",
        "",
        EDITION,
    ),
    Mutant(
        "P10: rows of a server count that another rank knows to be dead",
        "if (!brought[server] || is_dead[server]) continue;",
        "if (!brought[server]) continue;",
        EDITION,
    ),
    Mutant(
        "P10: a copy counts as whole that lacks a push",
        "has.range.check == all.front().range.check &&",
        "",
        EDITION,
    ),
    Mutant(
        "P10: a copy counts as whole that is another primary's",
        "has.range.source == all.front().range.source;",
        "true;",
        EDITION,
    ),
    Mutant(
        "P10: pushes that are kept for a later clock do not go along",
        "if ((moves || place == held.source) &&",
        "if (place == held.source && !moves &&",
        REPLICATION,
    ),
    Mutant(
        "P10: the numbers of a rank that is started again begin anew",
        "last_push_ = edition->pushes[rank];  // P10 (d)",
        "",
        CLIENT,
    ),
    Mutant(
        "P10: the rows of the last edition are lost when an attempt at the next one fails",
        "(is_stopped || held.range.use_count() > 1)",
        "is_stopped",
        HELD_RANGES,
    ),
    Mutant(
        "P10: an edition counts as made before all ranges have come",
        "due_[static_cast<std::size_t>(mover)].fetch_add(1, std::memory_order_release);",
        "",
        MOVES,
    ),
    Mutant(
        "P10: a rank that joins has clock 0",
        "lowest == kNone ? beyond : lowest;",
        "0;",
        EDITION,
    ),
    Mutant(
        "P10: ranges are cut anew when ranks join",
        "shift_(shift_of(rows, most))",
        "shift_(shift_of(rows, this->servers()))",
        PLACEMENT,
    ),
    Mutant(
        "P10: a range that stays is lost",
        "held.range = (*before)[number].range;",
        "",
        MOVES,
    ),
    Mutant(
        "P10: what is held back does not go along",
        "held_back_.take_over(before.held_back_);",
        "",
        CLIENT_EDITIONS,
    ),
    Mutant(
        "P11: a server leaves without copies of its ranges",
        "    replication_.settle();\n",
        "",
        LEAVING,
    ),
    Mutant(
        "P11: a server leaves before the copies are whole",
        "      untold_.push_back(server);\n",
        "",
        LEAVING,
    ),
    Mutant(
        "P11: servers that leave count on one another",
        "(server != own && !members.leaving[static_cast<std::size_t>(server)])",
        "server != own",
        SERVER_STATE,
    ),
    Mutant(
        "P11: a push to a server that has handed over its rows is not sent again",
        "if (options_.may_send_again()) {",
        "if (options_.replicas > 0) {",
        CLIENT_SENDING,
    ),
    Mutant(
        "P9: a client takes rows that have changed while it copied them",
        "if (version.load(std::memory_order_relaxed) == before) return true;",
        "return true;",
        SHOWN_ROWS,
    ),
    Mutant(
        "P9: a client takes rows that are changing",
        "if (before % 2 != 0) continue;",
        "",
        SHOWN_ROWS,
    ),
    Mutant(
        "P9: the version is not odd while the values change",
        "version_->store(next(*version_), std::memory_order_relaxed);",
        "version_->store(next(*version_) + 1, std::memory_order_relaxed);",
        SHOWN_ROWS,
    ),
    Mutant(
        "P9: a client reads rows of which a clock is not there",
        "if (this->clock().load(std::memory_order_acquire) < clock) return false;",
        "",
        SHOWN_ROWS,
    ),
    Mutant(
        "P9: the clock is stored before its pushes are applied",
        "state_.clocks.set_lowest(lowest);\n  if",
        "state_.clocks.set_lowest(lowest);\n  held_.show_clock();\n  if",
        SERVER,
    ),
    Mutant(
        "P9: a client reads in place while a push of its own is on the way",
        "[&](const auto& each) { return each.second.to == part.to; }",
        "[&](const auto&) { return false; }",
        CLIENT,
    ),
    Mutant(
        "P9: a client takes values of a server that another one has replaced",
        "if (!mail_.is_live(servers_ + part.to)) return false;",
        "",
        CLIENT,
    ),
    Mutant(
        "P9: a change begins before a function has computed it",
        "  options_.rule.function(changed.data(), gradients, rows.count);\n"
        "  const Change change(version_);",
        "  const Change change(version_);\n"
        "  options_.rule.function(changed.data(), gradients, rows.count);",
        RANGE,
    ),
    Mutant(
        "P1: a message overtakes those that wait for a slot",
        "slot_ = peer(to).backlog.empty() ? claim(peer(to)) : -1;",
        "slot_ = claim(peer(to));",
        "dstorm/collective/mail.cpp",
    ),
    Mutant(
        "P2: a range takes a push that it has",
        "if (push <= last) return false;",
        "",
        RANGE,
    ),
    Mutant(
        "P2: a push that is sent again has a new number",
        "head.push = again ? *again : ++last_push_;",
        "head.push = ++last_push_;",
        CLIENT_SENDING,
    ),
    Mutant(
        "P2: pushes are sent again in the wrong order",
        "for (const Sent& sent : again) send_again(sent);",
        "for (auto each = again.rbegin(); each != again.rend(); ++each) send_again(*each);",
        CLIENT_DEATHS,
    ),
    Mutant(
        "P2: a copy is made without the numbers of the pushes in it",
        "send(Head::Kind::kCopyEnd, 0, std::as_bytes(source.pushes()));",
        "send(Head::Kind::kCopyEnd, 0, {});",
        REPLICATION,
    ),
    Mutant(
        "P3: a push on its way to a dead server is not sent again",
        "for (const Sent& sent : again) send_again(sent);",
        "",
        CLIENT_DEATHS,
    ),
    Mutant(
        "P3: a push is acknowledged before the copies have it",
        "if (done->missing != 0) return;",
        "",
        REPLICATION,
    ),
    Mutant(
        "P3: pushes are not forwarded to copies",
        "for (int copy : held->copies) by_copy[copy].push_back(stretch);",
        "",
        REPLICATION,
    ),
    Mutant(
        "P3: no copy takes the place of one on a dead server",
        "held.copies.push_back(server);\n",
        "held.copies.push_back(server);\n    if (answer == nullptr) continue;\n",
        REPLICATION,
    ),
    Mutant(
        "P3: a copy that is being made misses the pushes kept for a later clock",
        "for (const Range::Kept& kept : source.kept()) {",
        "for (const Range::Kept& kept : source.kept().first(0)) {",
        REPLICATION,
    ),
    Mutant(
        "P3: a push waits for the answer of a dead copy",
        "if (!state_.members.is_live(server)) take_forwarded(server, kAllForwarded);",
        "",
        REPLICATION,
    ),
    Mutant(
        "P4: a primary takes forwarded pushes, and a copy those of an earlier primary",
        "if (!moves && (held.is_primary || place < held.source)) continue;  // P4",
        "",
        REPLICATION,
    ),
    Mutant(
        "P4: a new primary believes that the copies of the old one are whole",
        "held.copies.clear();  // P4: all are made anew",
        "for (int next = held.source + 1; next < state_.placement.servers(); ++next) {\n"
        "    held.copies.push_back(state_.placement.server(range, next));\n"
        "  }",
        REPLICATION,
    ),
    Mutant(
        "P4: a server drops the copy it has before the new one is whole",
        "follow(held, place);\n    held.coming =",
        "follow(held, place);\n    held.range.reset();\n    held.coming =",
        REPLICATION,
    ),
    Mutant(
        "P5: a client ends its clock before its pushes are acknowledged",
        'wait_until(is_ready, deadline, "clock");  // P5',
        "",
        CLIENT,
    ),
    Mutant(
        "P5: a clock without a slot waits for the client's next call",
        "if (mail_.waiting() > 0) own_server_.tell_clock(clock_);",
        "",
        CLIENT,
    ),
    Mutant(
        "P15: pushes of which nobody takes the copies pile up",
        "replication_.unanswered(sender) >= kMostWaiting",
        "false",
        SERVER,
    ),
    Mutant(
        "P15: hot rows that a server does not take pile up",
        "if (has_room(sender) && answer(pull)) return;",
        "if (answer(pull)) return;",
        HOT_PULLS,
    ),
    Mutant(
        "P12: a server is answered when all rows are here",
        "if (here.empty() || (is_client && !left.empty())) return false;",
        "if (!left.empty()) return false;",
        HOT_PULLS,
    ),
    Mutant(
        "P12: a server asks for a row at a clock that has not come",
        "if (pull.head.clock <= lowest) missing",
        "missing",
        HOT_PULLS,
    ),
    Mutant(
        "P15: a client that takes nothing is told of each failure",
        "if (tells && state_.mail.untaken(kept.client) < kMostUntaken) {",
        "if (tells) {",
        HELD_RANGES,
    ),
    Mutant(
        "P15: answers to forwarded pushes pile up",
        "if (mail_.waiting_for(clients_ + server) != 0) return false;",
        "",
        MESSAGE_WRITER,
    ),
    Mutant(
        "P16: a server keeps whatever a client pushes",
        "if (bytes + kept.bytes() > most) {",
        "if (false) {",
        HELD_RANGES,
    ),
    Mutant(
        "P16: a client does not count what it has pushed",
        "if (ahead > 0 && bytes > options_.most_kept) break;",
        "",
        CLIENT,
    ),
    Mutant(
        "P13: a clock of before a restore counts",
        "if (head.id != clocks.restores()) return;  // P13 (e)",
        "",
        SERVER,
    ),
    Mutant(
        "P5: a pull does not wait for the clocks of other ranks",
        "if (head.clock <= state_.clocks.lowest()) return answer(head, rows);  // P5",
        "return answer(head, rows);",
        PULLS,
    ),
    Mutant(
        "P5: a pull waits for the clocks of dead ranks",
        "if (members.is_client_live(client)) lowest",
        "lowest",
        SERVER_STATE,
    ),
    Mutant(
        "P6: a push is applied at once",
        "(!held.is_primary || head.clock >= state_.clocks.lowest())",
        "!held.is_primary",
        HELD_RANGES,
    ),
    Mutant(
        "P6: a copy applies a push for which its own clock is late",
        "(!held.is_primary || head.clock >= state_.clocks.lowest())",
        "head.clock >= state_.clocks.lowest()",
        HELD_RANGES,
    ),
    Mutant(
        "P6: a copy applies nothing until it is primary",
        "if (held.range != nullptr) held_.apply_kept(range, held.applied, false);",
        "",
        REPLICATION,
    ),
    Mutant(
        "P6: a new primary does not apply what its clocks let through",
        "held_.apply_kept(range, state_.clocks.lowest(), true);\n  held.is_primary",
        "held.is_primary",
        REPLICATION,
    ),
    Mutant(
        "P6: pushes are applied as they came, not in the order of ranks",
        "return std::tuple(kept.clock, kept.client, kept.push);",
        "return kept.clock;",
        RANGE,
    ),
    Mutant(
        "P7: a client does not note that it has used a list",
        "lists.use(*number);",
        "",
        CLIENT_SENDING,
    ),
    Mutant(
        "P7: a client uses the number that a list has with another server",
        "KeyLists& lists = lists_[static_cast<std::size_t>(part.to)];",
        "KeyLists& lists = lists_.front();",
        CLIENT_SENDING,
    ),
    Mutant(
        "P7: the list that was used last makes room",
        "while (held_keys_ > most_keys_) drop(std::prev(lists_.end()));",
        "while (held_keys_ > most_keys_) drop(lists_.begin());",
        "vol/ps/key_lists.cpp",
    ),
    Mutant(
        "P8: a gradient takes the place of what is held back",
        "for (std::size_t j = 0; j < width; ++j) sum[j] += before[j];",
        "sum[0] += 0 * before[0];",
        HELD_BACK,
    ),
    Mutant(
        "P8: a row that is sent is still held back",
        "free_.push_back(held->second);\n      places_.erase(held);",
        "",
        HELD_BACK,
    ),
    Mutant(
        "P8: two rows are held back in one place",
        "      free_.pop_back();\n",
        "",
        HELD_BACK,
    ),
    Mutant(
        "P8: wait() leaves what is held back",
        'if (!push) send_held_back(deadline, "wait");',
        "",
        CLIENT,
    ),
    Mutant(
        "P8: close() drops what is held back",
        'send_held_back(deadline, "close");',
        "",
        CLIENT,
    ),
    Mutant(
        "messages: send() takes the spare slots",
        "return !state.is_live(peer_) || state.writer().pending(peer_) < depth_;",
        "return true;",
        DUPLEX,
    ),
    Mutant(
        "messages: try_send() waits for a slot",
        "if (!state.writer().has_free(",
        "if (false && !state.writer().has_free(",
        DUPLEX,
    ),
    Mutant(
        "messages: what a dead rank sent is lost",
        "if (!found_) throw_gone();",
        "if (is_gone()) throw_gone();",
        DUPLEX,
    ),
    Mutant(
        "messages: the dead rank is not named",
        '" is dead, or has left", {peer_});',
        '" is dead, or has left", std::vector<int>{});',
        DUPLEX,
    ),
    Mutant(
        "messages: a message to a dead rank counts as sent",
        "if (receivers.empty()) throw_gone();",
        "",
        DUPLEX,
    ),
    Mutant(
        "messages: one is taken again",
        "  taken_ = header.iteration;\n",
        "",
        DUPLEX,
    ),
    Mutant(
        "messages: a slot is not given back",
        "reader.consume(header.iteration, reader.ordinal(found_->slot), true);",
        "",
        DUPLEX,
    ),
    Mutant(
        "messages: one is cut to the room for it",
        "if (to.size() != bytes) {",
        "if (to.size() > bytes) {",
        DUPLEX,
    ),
]


def compile_into(folder: Path, sources: list[Path]) -> list[Path]:
    """Compile files, two at a time, and return the objects."""
    objects = [folder / f"{source.stem}.o" for source in sources]
    launcher = os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "").split()
    waiting = list(zip(sources, objects, strict=True))
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        while waiting and len(running) < 2:
            source, made = waiting.pop()
            includes = [f"-I{ROOT}/{path}" for path in ("src", "tests/cpp", "tests/cpp/vol/ps")]
            compiler = [*launcher, os.environ.get("CXX", "g++"), "-std=c++20", "-O1"]
            running.append(subprocess.Popen([*compiler, *includes, "-c", source, "-o", made]))
        if running.pop(0).wait() != 0:
            raise SystemExit("a file does not compile")
    return objects


def outcome(objects: list[Path], program: Path) -> str:
    """Return how the tests notice, or "" if they pass."""
    # table_steps_test.cpp has a function in the place of one of mail.cpp; it comes first.
    links = ["-Wl,-z,muldefs", f"-L{BUILD}", f"-Wl,-rpath,{BUILD}", "-lvol", "-ldstorm"]
    libraries = [*links, "-lgtest", "-lgtest_main", "-lpthread"]
    subprocess.run(
        [os.environ.get("CXX", "g++"), *objects, "-o", program, *libraries],
        check=True,
    )
    for transport, tries in TRIES.items():
        with subprocess.Popen(
            [program, "--gtest_fail_fast", f"--gtest_repeat={tries}"],
            env={**os.environ, "MALT_TRANSPORT": transport},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as run:
            try:
                output, _ = run.communicate(timeout=SECONDS[transport])
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, 9)  # the ranks too
                return f"{transport}: hangs"
        if run.returncode != 0:
            failed = [line for line in output.splitlines() if line.startswith("[  FAILED  ]")]
            return f"{transport}: {failed[0].split()[3] if failed else run.returncode}"
    return ""


def main() -> int:
    """Returns the exit status: 1 if a mutant survives."""
    wanted = sys.argv[1:]
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = compile_into(folder, [*TESTS, *SOURCES])
        if found := outcome(whole, folder / "test"):
            raise SystemExit(f"the tests fail without a mutant: {found}")
        for mutant in MUTANTS:
            if wanted and not any(part in mutant.name for part in wanted):
                continue
            source = (ROOT / "src" / mutant.file).read_text()
            if source.count(mutant.old) != 1:
                raise SystemExit(f"{mutant.name}: not one place to break; mend this table")
            broken = folder / "broken" / Path(mutant.file).name
            broken.parent.mkdir(exist_ok=True)
            broken.write_text(source.replace(mutant.old, mutant.new))
            changed = compile_into(broken.parent, [broken])
            others = [each for each in whole if each.stem != broken.stem]
            found = outcome([*others, *changed], folder / "test")
            print(f"{found or 'MISSED':40} {mutant.name}", flush=True)
            missed += not found
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
