// The server of a rank: holds ranges of a table's rows, applies what clients push to them, and
// answers what they pull.
//
// A client sends a push for a range to the range's primary, which applies it, forwards it to the
// servers that hold copies, and acknowledges it when all of them have it. A client keeps a push
// until then, and sends it again to the new primary if the old one dies.
//  P1 The messages from one member to another arrive in the order in which they were sent (M1).
//  P2 Exactly once. A push is cut into messages, each with a number, and a client's numbers grow.
//     It sends the messages of a range to the range's primary in that order, also when it sends
//     them again: it looks for dead servers before it sends anything, and first sends again all
//     that a dead server had not acknowledged, under the old number and so that the rows of a range
//     stay in one message. A range and each copy of it know the number of the last message of each
//     client that they have, and ignore all up to it. The numbers are part of a copy.
//  P3 Nothing that was acknowledged is lost while one holder of the range lives: a server has taken
//     a forwarded push into its copy before it answers, and the primary acknowledges after the
//     answers of all copies, whole or still being made.
//  P4 The primary is the first live server in the range's order, and holders only die. So a server
//     becomes primary only after all before it in the order have died. From then on it takes no
//     forwarded pushes of the range, and a copy takes pushes only from the latest primary it knows.
//     A new primary makes all copies anew, because the old one may have died between two forwards.
//     A server keeps the copy it has until the new one is whole, as the new primary may die too.
//  P5 Staleness. A client sends its clock to every server after all its pushes of earlier clocks
//     have been acknowledged. So a server that knows that a client has reached clock t has all its
//     pushes of clocks below t to the ranges it is primary of, also if it becomes so later. A pull
//     waits until every live client has reached the clock that it asks for. A clock that finds no
//     slot is sent by the client's next call, which may come late. So the server of its rank tells
//     it as well.
//  P6 BSP. A push of clock t is kept, and is applied when every live client has passed t, in the
//     order of clients. A pull at clock t asks for t, and no push of t has been applied then,
//     because its own client has not passed t. A copy applies what its primary has applied, when
//     the primary says so: it may learn of a client's death earlier or later. And a primary takes
//     no push of a client that it knows to be dead, because it may have applied the others of that
//     clock. So both apply the same pushes in the same order.
//  P10 Ranks join. A table is a sequence of editions, one for each group of the job. Between two of
//     them nothing is lost, and nothing is applied twice:
//     (a) All ranks go to the next edition together. A rank goes between two calls, or out of a
//         pull or a close that waits for other ranks; these are made again in the next edition.
//     (b) A client first waits until all its pushes are acknowledged, or for its time limit; pushes
//         that are not acknowledged then may be lost, and a later call says so. When all ranks have
//         waited, each stops its server. So every acknowledged push is in the range of each live
//         holder (P3), and no message of an edition is taken in the next one, which has other
//         mailboxes.
//     (c) Of each range, the rows of one server count: of the latest primary or, if that is dead,
//         of the live holder that comes next. It hands them to the holders by the next edition's
//         placement, except to those that have the same pushes of the same primary already. The
//         numbers of the pushes, and the pushes kept for later clocks, go along. A range that stays
//         is not copied.
//     (d) The numbers of a client's pushes go on growing, also those of a rank that was started
//         again. So no push is refused for one of an earlier edition, or of an earlier process.
//     (e) The servers of the last edition stay as they are until all ranks know that all ranges
//         have come everywhere. If a rank dies before that, the others make the edition anew,
//         without it, from the servers of the last one.
//     (f) A rank that joins has the lowest clock of the others that do not close the table. If all
//         close it, it has a clock beyond theirs. For a client that has said bye does not hold
//         servers back, and some may have applied pushes of clocks up to those of clients that have
//         not, others not yet. No rank may push at such a clock. Otherwise servers would apply the
//         pushes in different orders (P6).
//  P11 A rank that leaves in good order hands over its ranges first. Its server makes copies of the
//     ranges it is primary of on those servers that will hold them without it, stays their primary,
//     and forwards pushes to them. Then it tells all servers that it leaves, and waits until they
//     have answered: by P1 the copies are whole then. Servers that leave at the same time do not
//     count on one another: when a server learns that another one leaves or has died, it begins
//     anew; and once it has handed over, it no longer answers, so that the other one waits for its
//     death. But a server that leaves is primary of a range, or holds a copy, as long as it comes
//     before a later holder in the range's order. So it gets a copy as well.
//  P13 A checkpoint, by calls that all ranks make:
//     (a) Before a rank reads, the pushes of all ranks are acknowledged. Then each server waits for
//         the clocks that the ranks have told one another, and knows the deaths of which the ranks
//         know. So what is read has all pushes of earlier calls, but those that are kept for a
//         later clock (P6). At staleness 0 that is all pushes of clocks below the lowest one.
//     (b) A range is read at its primary, and written there. The ranks agree on who is live, so
//         each range has one.
//     (c) When a range is written, its copies are made anew, as those of a new primary (P4), and it
//         counts as written when they are whole. The numbers of the pushes stay (P2). Pushes that
//         are kept, and hot rows that servers keep, are of the time before, and are dropped.
//     (d) No rank goes on before all servers have the new clocks.
//     (e) A clock comes to a server in two ways (P5), so an old one may come after it has the new
//         ones. A message with a clock says how many restores came before it, and counts at servers
//         that have had as many.
//  P14 At a server wait at most kMostWaiting messages of a client's pulls. A client waits for fewer
//     answers at a time; so if it asks once more, it has given up the oldest, as after a time-out.
//  P15 A server takes no further push or pull of a client while kMostUntaken of its answers lie
//     there, which the client has not taken, or while kMostWaiting of its pushes wait for copies
//     that other servers have not taken. The client's messages stay in its own slots, in their
//     order (P2). So a server keeps at most (kMostUntaken + 2 kMostWaiting) kSlotBytes for a client
//     that takes nothing: the pulls that have waited (P14), also those of hot rows, may all be
//     answered at once. And it keeps kMostWaiting kSlotBytes for each copy of what that client
//     pushes. A clock or a bye, for which other ranks wait, has no answer, and is taken unless it
//     comes after a push or pull that is not. The client of the server's own rank is exempt: it has
//     to be able to end the server, and it takes memory of its own rank only. What servers send is
//     always taken, so that no two wait for each other. They get words of which the latest is
//     enough (MessageWriter::tell_latest), and rows when those before have slots (P12). A server
//     that lies can have them hold copies of all ranges, each of them twice while it arrives.
//  P16 In BSP, servers keep a client's pushes of at most kMostAhead + 1 clocks (P6): a client does
//     not come to a clock before its own server knows that all live clients have come to the clock
//     kMostAhead before it, or to a later one if it has pushed more than TableOptions::most_kept
//     since. Of what a client pushes, a primary keeps TableOptions::most_kept_with() bytes. It
//     drops what is beyond, tells the client why, and forwards it to no copy. All copies on a
//     server together keep as many times that as there are clients; who sends them more lies.
// Its parts are, from the lowest: the state that they share (server_state.hpp), the ranges that it
// holds (held_ranges.hpp), their copies (replication.hpp), pulls (pulls.hpp, hot_pulls.hpp), moves
// to another edition (moves.hpp), leaving (leaving.hpp) and checkpoints (server_checkpoints.hpp).
// P7, in key_lists.hpp, is about lists of keys that are sent once, P8, in held_back.hpp, about
// gradients that a client holds back, P9, in shown_rows.hpp, about rows that clients on this host
// read in place, and P12, in hot_rows.hpp, about rows that many clients pull.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vol/ps/edition.hpp"
#include "vol/ps/held_ranges.hpp"
#include "vol/ps/hot_pulls.hpp"
#include "vol/ps/leaving.hpp"
#include "vol/ps/moves.hpp"
#include "vol/ps/pulls.hpp"
#include "vol/ps/replication.hpp"
#include "vol/ps/server_checkpoints.hpp"
#include "vol/ps/server_state.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

// For one thread.
class Server {
 public:
  // Collective over the members of the table's group, blocking. Throws as dstorm::Mail does.
  // `edition` and `before`: what the ranks have agreed on, and this rank's stopped server of the
  // last edition, null if it joins. Both are null in the first edition. `options` is the same
  // object in all editions.
  Server(std::shared_ptr<dstorm::Group> group, const TableOptions& options,
         const Edition* edition = nullptr, const Server* before = nullptr);

  // Serves until this rank's client ends it, or until the group is left, which throws ConfigError.
  void run();
  // Copies ranges that the next edition's server goes on with out of the memory in which clients
  // read them, which ends with this server. To be called after run(), also if that has thrown.
  void hide() noexcept { held_.hide(is_stopped_); }
  // This server's state for the next edition, once it has stopped. The clock is the client's.
  Brought brought() const { return brought_by(state_, held_); }
  // The servers whose ranges have yet to come here in this edition. Any thread may ask.
  std::vector<int> movers() const { return arrivals_.movers(); }
  // How many ranges have been sent to this server in this edition's move. Any thread may ask.
  std::size_t moved() const { return arrivals_.count(); }
  // The clients that have not come to this clock, as far as this server knows; of the highest
  // number, those that have not said bye. Any thread may ask.
  std::vector<int> behind(std::uint64_t clock) const {
    return state_.clocks.behind(clock, state_.ranks);
  }
  // Has the server tell all others that this rank's client has come to this clock (P5). Any thread.
  void tell_clock(std::uint64_t clock) {
    clock_to_tell_.store(clock);
    state_.mail.wake();
  }
  // How many pulls of hot rows it has answered. Any thread may ask.
  std::uint64_t hot_answers() const { return hot_.answers(); }

 private:
  // Returns false if the message has to wait (P15).
  bool take_if_due(int sender, std::span<const std::byte> message);
  void take(int sender, const Head& head, std::span<const std::byte> message);
  bool take_of_client(int client, const Head& head, std::span<const std::byte> message);
  bool take_of_own_client(const Head& head, std::span<const std::byte> message);
  bool take_of_server(int server, const Head& head, std::span<const std::byte> message);
  void take_clock(const Head& head);
  // Returns whether there was a clock to tell.
  bool tell_clock();
  // Applies pushes and answers pulls up to the clock that all clients have reached.
  void advance();
  // Acts on deaths; returns whether there were any.
  bool follow_deaths();

  ServerState state_;
  HeldRanges held_;
  Arrivals arrivals_;
  Replication replication_{state_, held_, arrivals_};
  Departures departures_{state_, held_, arrivals_, replication_};
  Pulls pulls_{state_, held_, replication_};
  HotPulls hot_{state_, held_, replication_};
  Leaving leaving_{state_, replication_};
  ServerCheckpoints checkpoints_{state_, held_, replication_, hot_};
  std::atomic<std::uint64_t> clock_to_tell_ = 0;
  std::uint64_t told_ = 0;
  bool is_stopped_ = false;
};

}  // namespace vol::ps
