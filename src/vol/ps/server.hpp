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
//     waits until every live client has reached the clock that it asks for.
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
//  P14 At a server wait at most kMostWaiting messages of a client's pulls. A client waits for fewer
//     answers at a time; so if it asks once more, it has given up the oldest, as after a time-out.
//  P15 A server takes no further push or pull of a client while kMostUntaken of its answers lie
//     there, which the client has not taken. The client's messages stay in its own slots, in their
//     order (P2). So a server keeps at most (kMostUntaken + 2 kMostWaiting) kSlotBytes for a client
//     that takes nothing: the pulls that have waited (P14), also those of hot rows, may all be
//     answered at once. A clock or a bye, for which other ranks wait, has no answer, and is taken
//     unless it comes after a push or pull that is not. The client of the server's own rank is
//     exempt: it has to be able to end the server, and it takes memory of its own rank only.
//  P16 In BSP, servers keep a client's pushes of at most kMostAhead + 1 clocks (P6): a client does
//     not come to a clock before its own server knows that all live clients have come to the clock
//     kMostAhead before it. Only the caller bounds what it pushes between two clocks.
// P7, in key_lists.hpp, is about lists of keys that are sent once, P8, in held_back.hpp, about
// gradients that a client holds back, P9, in shown_rows.hpp, about rows that clients on this host
// read in place, and P12, in hot_rows.hpp, about rows that many clients pull.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/collective/mail.hpp"
#include "vol/ps/edition.hpp"
#include "vol/ps/hot_rows.hpp"
#include "vol/ps/key_lists.hpp"
#include "vol/ps/placement.hpp"
#include "vol/ps/range.hpp"
#include "vol/ps/shown_rows.hpp"
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
  void hide() noexcept;
  // This server's state for the next edition, once it has stopped. The clock is the client's.
  Brought brought() const;
  // The servers whose ranges have yet to come here in this edition. Any thread may ask.
  std::vector<int> movers() const;
  // The clients that have not come to this clock, as far as this server knows; of the highest
  // number, those that have not said bye. Any thread may ask.
  std::vector<int> behind(std::uint64_t clock) const;
  // How many pulls of hot rows it has answered. Any thread may ask.
  std::uint64_t hot_answers() const { return hot_answers_.load(std::memory_order_relaxed); }
  // How many ranges have been sent to this server in this edition's move. Any thread may ask.
  std::size_t moved() const { return moved_; }

 private:
  struct Held {
    std::shared_ptr<Range> range;   // null: this server does not have it
    std::unique_ptr<Range> coming;  // a copy whose bytes are arriving; `range` stays until then
    bool is_primary = false;
    int source = 0;             // place in the order of the latest primary known (P4)
    std::uint64_t applied = 0;  // a copy: the clock of its source's last kApplied (P6)
    int mover = -1;  // the server that hands it to this one; -1: none, or it has come (P10)
    std::vector<int> copies;  // primary: the servers that are to have every push
  };
  struct Answer {  // to a push
    int client;
    std::uint64_t id;
    int missing = 0;         // answers of copies
    std::int64_t lost = -1;  // a row that this server does not have
    std::string failure = {};
  };
  struct Forwarding {
    int to;
    std::shared_ptr<Answer> answer;
  };
  struct Waiting {  // a pull
    Head head;
    std::vector<std::int64_t> keys;  // none: consecutive rows
  };
  struct HotPull {
    int asker;  // a client, or a server further from the root
    Head head;
    std::vector<std::int64_t> keys;
  };
  struct Move {  // of a range to a server
    std::size_t number;
    std::shared_ptr<Range> range;
    int to;
  };
  struct Await {  // for what a checkpoint needs (P13)
    std::uint64_t id;
    std::vector<std::uint64_t> clocks;  // by client; or kIsDead
  };
  struct Stretch {  // rows of one range among those of a message
    std::size_t begin, end;
    std::size_t range;
  };

  // Returns false if the message has to wait (P15).
  bool take_if_due(int sender, std::span<const std::byte> message);
  void take(int sender, const Head& head, std::span<const std::byte> message);
  void take_push(const Head& head, const Rows& rows, const std::byte* gradients);
  void take_pull(const Head& head, const Rows& rows);
  void take_forward(int from, const Head& head, const Rows& rows, const std::byte* gradients);
  void take_forwarded(std::uint64_t id);
  void take_applied(int from, std::uint64_t clock);
  void take_copy(int from, const Head& head, std::span<const std::byte> body);
  void take_clock(const Head& head);

  void take_hot_pull(int sender, const Head& head, const Rows& rows);
  void take_hot_values(const Head& head, const Rows& rows, const std::byte* values);
  void take_hot_lost(const Head& head);
  bool answer_hot(const HotPull& pull);
  void send_values(const Head& head, std::span<const std::byte> values, int client);
  void ask_for_hot(const std::vector<std::int64_t>& keys, std::uint64_t clock, int parent);
  void serve_hot();

  // Leaves room for one more, if `most` of them may be of the member that `is_same` knows (P14).
  template <class Pull, class IsSame>
  static void drop_oldest(std::vector<Pull>& pulls, std::size_t most, IsSame&& is_same) {
    if (static_cast<std::size_t>(std::ranges::count_if(pulls, is_same)) < most) return;
    pulls.erase(std::ranges::find_if(pulls, is_same));
  }

  bool follow_view();
  void settle(std::size_t range);
  void become_primary(std::size_t range);
  // `answer`: waits until the copies are whole.
  void update_copies(std::size_t range, const std::shared_ptr<Answer>& answer = nullptr);
  // `id`: of a Forwarding; 0: none.
  void send_copy(std::size_t number, const Range& source, int to, std::uint64_t id = 0);

  void move_from(const Edition& edition, const Server* before);
  bool send_next_move();
  void note_moved(Held& held);

  void hand_over();
  void take_leaving(int from, const Head& head);
  void take_leaving_known(int from, std::uint64_t round);
  void send_to_server(Head::Kind kind, std::uint64_t id, int to, std::uint64_t clock = 0);
  static void follow(Held& held, int place);

  void take_of_checkpoint(const Head& head, std::span<const std::byte> body);
  std::vector<std::uint64_t> read_clocks(std::span<const std::byte> body) const;
  void answer_await();
  void answer_read(const Head& head);
  void take_written(const Head& head);
  void continue_from(std::span<const std::uint64_t> clocks);

  std::unique_ptr<Range> make_range(std::size_t range) const;
  Held* primary_of(std::size_t range);
  void keep(Range& range, const Head& head, const Rows& rows, const std::byte* gradients);
  void change(std::size_t number, const Head& head, const Rows& rows, const std::byte* gradients,
              std::string& failure);
  void apply(std::size_t range, const Rows& rows, const std::byte* gradients);
  void apply_kept(std::size_t range, std::uint64_t clock, bool tells);
  void apply_kept_at_start(std::size_t range);
  void show();
  void show(std::size_t range);
  void forward(const Head& head, const Rows& rows, const std::byte* gradients,
               std::span<const Stretch> stretches, int to, const std::shared_ptr<Answer>& answer);
  void send_rows(Head head, const Rows& rows, const std::byte* gradients, int to);
  void answer_if_done(const std::shared_ptr<Answer>& answer);
  void answer(Head::Kind kind, int client, std::uint64_t id, std::int64_t row = 0,
              const std::string& text = {});
  void advance();
  void answer_pull(const Head& head, const Rows& rows);
  enum class Values : std::uint8_t { kNone, kWhole, kCoded };
  Rows read_rows(const Head& head, std::span<const std::byte> message, Values values);
  std::span<const std::int64_t> read_keys(const Head& head, const std::byte* keys);
  const std::byte* decode(const Head& head, const std::byte* values);
  std::vector<Stretch> stretches_of(const Rows& rows) const;
  [[noreturn]] void throw_damaged(int sender, const char* what) const;

  bool may_take_over(int server) const;
  std::uint64_t lowest_clock() const;
  void note_clock(std::size_t client, std::uint64_t clock);
  int own() const { return mail_.rank() - clients_; }
  bool is_live(int server) const {
    return live_[static_cast<std::size_t>(clients_) + static_cast<std::size_t>(server)];
  }

  const TableOptions& options_;
  const int clients_;             // as many as servers
  const std::vector<int> ranks_;  // of this edition
  Placement placement_;
  dstorm::Mail mail_;
  std::optional<ShownRows> shown_;     // none: clients pull by messages only
  bool is_full_ = false;               // shown_ has found no room: it gets no more ranges
  std::vector<Held> held_;             // by range; without a range where this server has none
  std::vector<bool> live_;             // by member, as far as this server has acted on it
  std::vector<std::uint64_t> clocks_;  // by client; the highest number once it has said bye
  std::vector<std::atomic<std::uint64_t>> told_clocks_;  // the same, for other threads
  std::uint64_t lowest_ = 0;
  std::map<std::uint64_t, Forwarding> forwardings_;  // by the message's id
  std::uint64_t last_id_ = 0;
  std::vector<Waiting> waiting_;  // pulls that ask for a later clock
  HotRows hot_;
  std::vector<HotPull> hot_pulls_;  // not answered
  std::atomic<std::uint64_t> hot_answers_{0};
  std::vector<KeyLists> lists_;     // by client
  std::vector<std::int64_t> keys_;  // of the message being read
  std::vector<std::byte> values_;   // of the message being read or written, without its codec
  int reading_ = -1;                // the member that sent it
  bool has_said_all_bye_ = false;
  bool is_stopped_ = false;
  std::deque<Move> moves_;  // to be sent
  // by server: how many of its ranges have yet to come
  std::vector<std::atomic<std::size_t>> due_;
  std::size_t moved_ = 0;  // ranges that have been due
  bool is_handing_over_ = false;
  bool has_handed_over_ = false;
  std::uint64_t round_ = 0;    // of kLeaving
  std::vector<int> untold_;    // servers that have not answered it
  std::vector<bool> leaving_;  // by server: it hands over its ranges
  std::optional<Await> await_;
};

}  // namespace vol::ps
