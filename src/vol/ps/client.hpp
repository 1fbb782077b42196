// The client of a rank: pushes to the rows of a table and pulls them, wherever they are.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dstorm/collective/mail.hpp"
#include "dstorm/host/wait.hpp"
#include "vol/ps/edition.hpp"
#include "vol/ps/held_back.hpp"
#include "vol/ps/key_lists.hpp"
#include "vol/ps/placement.hpp"
#include "vol/ps/server_thread.hpp"
#include "vol/ps/shown_rows.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

// Any thread may call; calls go one at a time, as those of a Group do. Rows given by keys have
// growing keys of the table, or the call throws ConfigError. A call throws PeerError if rows are
// lost: their servers are dead, and no live one has a copy. Pushes that have failed make a later
// call throw, once for all that have failed until then. `limit` is the time that the whole call may
// take, from the moment at which it is given: TimeoutError.
class Client {
 public:
  using Limit = std::optional<dstorm::Deadline>;  // none: the group's, from the call on

  // Collective over the members of the table's group, blocking. Throws as dstorm::Mail does.
  // `own_server`: this rank's, which outlives the client. `edition`: what the ranks have agreed on;
  // null in the first edition (P10).
  Client(std::shared_ptr<dstorm::Group> group, const TableOptions& options,
         ServerThread& own_server, const Edition* edition = nullptr);

  // Sends the gradients, rows.count times TableOptions::row_bytes(), and returns the number of the
  // last message. Waits only while many pushes are on their way: TimeoutError if it has to do so
  // before it sends anything. Holds back rows whose gradients are below the table's threshold.
  std::uint64_t push(const Rows& rows, const std::byte* gradients, Limit limit);
  // Waits until the servers have acknowledged the pushes up to this number; none: all, after those
  // held back have been sent.
  void wait(std::optional<std::uint64_t> push, Limit limit);
  // Copies the rows to `to`. Waits until every live client has reached the clock of this one, less
  // the table's staleness.
  void pull(const Rows& rows, std::byte* to, Limit limit);
  // Waits for all pushes, then tells the servers that this client has reached its next clock. In
  // BSP it first waits for live clients that are more than kMostAhead clocks behind (P16).
  void advance(Limit limit);
  std::uint64_t clock() const { return clock_; }
  // Collective over the live clients, blocking: waits for all pushes, also those held back, and
  // until every live client has called it. The client is then closed.
  void finish(Limit limit);

  // Waits until the servers have acknowledged all pushes. Errors of pushes stay for later calls.
  void settle(Limit limit);
  // Ends the thread of this rank's server; the server stays (ServerThread::await_stopped).
  void stop_server(Limit limit);
  // Waits for all pushes, also those held back, and until this rank's server has handed its ranges
  // over to others (P11). The client makes no call afterwards.
  void hand_over(Limit limit);
  // Whether it has told servers that it closes the table, also in an earlier edition.
  bool has_closed() const { return has_closed_; }
  // Takes what `before`, this rank's client in the last edition, has that is not in messages.
  void take_over(Client& before);

  // ---- checkpoints (P13 in server.hpp): all live ranks make these calls together
  // Waits until the servers have acknowledged all pushes; drops their errors, and what is held
  // back.
  void drop_pushes(Limit limit);
  // Waits until this rank's server knows that the ranks have reached these clocks, by rank. For
  // kIsDead it waits until the server and this client know that the rank is dead.
  void await_clocks(std::span<const std::uint64_t> clocks, Limit limit);
  // Copies bytes of a range of which this rank is the primary, from `offset` on: those of its
  // values, then of the rule's states. They are all of values or all of one state.
  void read(std::size_t range, std::uint64_t offset, std::span<std::byte> to, Limit limit);
  // Puts bytes there. end_write(), after the last bytes of the range, waits until its copies are
  // whole.
  void write(std::size_t range, std::uint64_t offset, std::span<const std::byte> from, Limit limit);
  void end_write(std::size_t range, Limit limit);
  // Goes on from these clocks, by rank, and so does this rank's server. Other ranks make the next
  // call that is not one of these when all have returned from here.
  void continue_from(std::span<const std::uint64_t> clocks, Limit limit);
  // The ranges of which this rank is the primary when these ranks are live.
  std::vector<std::size_t> ranges(std::span<const int> live) const;
  const Placement& placement() const { return placement_; }

  std::uint64_t last_push() const { return last_push_; }
  // The ranks whose deaths have lost rows in earlier editions.
  const std::vector<int>& lost_with() const { return lost_with_; }

  std::uint64_t bytes_out() const { return bytes_out_before_ + mail_.bytes_out(); }
  std::uint64_t bytes_in() const { return bytes_in_before_ + mail_.bytes_in(); }
  // Of both, those that stay on this rank: to and from its own server.
  std::uint64_t bytes_own() const {
    return bytes_own_before_ + mail_.bytes_with(servers_ + mail_.rank());
  }
  std::size_t rows_held_back() const { return held_back_.rows(); }
  std::uint64_t rows_in_place() const { return rows_in_place_; }  // pulled so

 private:
  using Stretch = std::pair<std::size_t, std::size_t>;  // begin and end, among the rows of a call
  struct Part {                                         // of a call's rows, for one server
    int to = 0;
    bool has_keys = true;
    bool is_hot = false;
    std::size_t rows = 0;
    std::vector<Stretch> stretches = {};
  };
  struct Sent {  // a push that has not been acknowledged
    int to;
    std::uint64_t push;
    std::uint64_t clock;
    std::int64_t row;  // the first one
    std::size_t count;
    std::vector<std::int64_t> keys;    // none: consecutive rows
    std::vector<std::byte> gradients;  // empty if it cannot be sent again
  };
  struct Pull {  // the one in progress
    Rows rows;
    std::byte* to = nullptr;
    std::map<std::uint64_t, Part> parts = {};  // sent and not answered, by id
  };

  void check(const Rows& rows) const;
  std::vector<Part> split(const Rows& rows, std::span<const Stretch> of, bool is_hot = false);
  std::vector<Part> split_by_heat(const Rows& rows, Stretch of);
  static std::size_t index_beyond(const Rows& rows, std::int64_t row, std::size_t begin,
                                  std::size_t end);
  // `again`: the number of the message that the rows have come from, if they are sent again.
  void send_push(const Rows& rows, const std::byte* gradients, std::optional<std::uint64_t> again,
                 std::uint64_t clock);
  void send_pull(Part part);
  bool read_in_place(const Part& part);
  std::uint64_t asked_clock() const {
    return clock_ - std::min(clock_, options_.staleness.value_or(clock_));
  }
  void see(int server, std::span<const std::byte> body);
  std::size_t name_rows(Head& head, const Rows& rows, const Part& part);
  std::size_t most_at_once() const;
  void send_held_back(const dstorm::Deadline& deadline, const char* what);
  void send_to_all(Head::Kind kind);
  void send_to_server(Head::Kind kind, int server);
  void take(int sender, std::span<const std::byte> message);
  void take_values(const Head& head, std::span<const std::byte> values);
  void follow_view();
  void send_again(const Sent& sent);
  void send_again(const Part& part);
  bool ask_primary(std::uint64_t id);
  // A question to this rank's server (P13); a body follows it, or comes back to `to`.
  void ask_own(Head head, std::span<const std::byte> body, std::span<std::byte> to,
               const dstorm::Deadline& deadline, const char* what = "checkpoint",
               std::optional<std::uint64_t> clock = {});
  std::uint64_t most_ahead() const;
  void await_others(std::uint64_t clock, const dstorm::Deadline& deadline);
  void look();
  // `clock`: it waits for the other clients to come there, and not only for servers; the highest
  // number: for them to close the table.
  void wait_until(const std::function<bool()>& done, const dstorm::Deadline& deadline,
                  const char* what, std::optional<std::uint64_t> clock = {});
  // Of a call that is made now.
  dstorm::Deadline deadline_of(const Limit& limit) const {
    return limit.value_or(mail_.group().timeout());
  }
  bool may_look_again(bool on_ranks) const;
  // The clients and servers that a wait still waits for, with words for what they have not done.
  std::vector<int> behind(std::uint64_t clock) const;
  std::pair<std::vector<int>, std::string> missing(std::optional<std::uint64_t> clock) const;
  // `text`: without the table's name. `dead`: with which rows are lost.
  void note_failure(std::string_view text, const std::vector<int>& dead = {});
  void note_lost(std::int64_t row);
  void throw_if_failed();
  bool has_sent(std::optional<std::uint64_t> push) const;
  std::vector<int> awaited() const;
  // The live servers with copies of the rows, besides the one to which the push went.
  std::vector<int> copies_of(const Sent& sent) const;
  int primary(std::size_t range) const;

  const TableOptions& options_;
  ServerThread& own_server_;
  const int servers_;
  Placement placement_;
  dstorm::Mail mail_;
  std::vector<bool> live_;     // by server, as far as this client has acted on it
  std::vector<int> primary_;   // by range, accordingly
  std::uint64_t last_id_ = 0;  // of messages
  std::uint64_t last_push_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t restores_ = 0;          // in this edition (P13 (e))
  std::map<std::uint64_t, Sent> sent_;  // by id
  std::deque<std::size_t> pushed_ =
      std::deque<std::size_t>(kMostAhead);  // bytes, latest clock first
  HeldBack held_back_;
  // By server: the last request of a pull that has ended without its answer; 0: none. So that such
  // requests do not pile up here, and take the slots of others, the next pull waits until the
  // server has taken them.
  std::vector<std::uint64_t> owes_;
  std::vector<std::optional<ShownRows>> shown_;  // by server; none: it is asked by messages
  std::uint64_t rows_in_place_ = 0;
  std::vector<KeyLists> lists_;     // by server
  std::vector<std::int64_t> keys_;  // of a part
  std::vector<std::byte> values_;   // of a part, without their codec
  Pull pull_;
  std::uint64_t asked_own_ = 0;  // the id of a question that is not answered; 0: none
  std::span<std::byte> own_to_;  // for its answer
  std::string failure_;
  std::vector<int> failed_ranks_;
  std::size_t more_failures_ = 0;
  bool is_finished_ = false;
  bool has_closed_ = false;
  bool has_all_bye_ = false;
  bool is_settling_ = false;
  bool has_handed_over_ = false;
  std::vector<int> lost_with_;
  std::uint64_t bytes_out_before_ = 0;  // in earlier editions
  std::uint64_t bytes_in_before_ = 0;
  std::uint64_t bytes_own_before_ = 0;
};

}  // namespace vol::ps
