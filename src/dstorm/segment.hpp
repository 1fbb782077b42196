// A segment: bytes of fixed capacity with a receive queue per sender.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dstorm/graph.hpp"
#include "dstorm/group.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/segment/channel.hpp"
#include "dstorm/slot/reader.hpp"
#include "dstorm/slot/writer.hpp"

namespace dstorm {

struct SegmentOptions {
  std::string name = {};       // in errors; two open segments of a job may not share one
  std::size_t slot_bytes = 0;  // the largest update
  int depth = 2;               // slots per sender; at staleness 0 under LATEST at least 2
  Policy policy = Policy::kLatest;
  Graph graph = Graph::all();
  std::size_t home_bytes = 0;    // memory per rank that all ranks of the host may read
  std::size_t result_bytes = 0;  // memory for a shared fold
  std::string kind = {};         // what the layer above keeps in it; must agree between ranks
  // This rank has come back: the others regroup() the segment that it makes.
  bool rejoins = false;
};

// One update, lying in its sender's slot: valid, and unchanging, while the fold runs.
struct Update {
  int rank;
  std::uint64_t iteration;
  std::span<const std::byte> payload;
  std::uint64_t count;
  std::uint32_t format;
};

struct Tag {  // what the layer above wants to know of a payload
  std::uint64_t count = 0;
  std::uint32_t format = 0;
};

// Of the updates this rank has sent: sent = folded + overwritten + rejected + pending + to_dead,
// with overwritten 0 under QUEUE, whenever no gather is in progress. One update to three ranks
// counts three.
struct Stats {
  std::uint64_t sent = 0;
  std::uint64_t folded = 0;
  std::uint64_t overwritten = 0;
  std::uint64_t rejected = 0;
  std::uint64_t pending = 0;
  std::uint64_t to_dead = 0;
  std::uint64_t bytes_out = 0;  // payload bytes sent, counted once per receiver
  std::uint64_t bytes_in = 0;   // payload bytes of updates folded here
  double wait_seconds = 0;      // spent waiting in scatter and gather
};

struct GatherOptions {
  // 0 is BSP, s > 0 SSP: wait until each live in-neighbour is at most s iterations behind this
  // rank. None: do not wait (ASP).
  std::optional<std::uint64_t> staleness = std::nullopt;
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;  // the group's if not given
};

// Keeps the group alive. For threads see Group: what changes the segment or waits is a call, and so
// is close(). stats() and the destructor may run at any time; the rest is for who has the turn.
class Segment {
 public:
  // Collective. ConfigError on every rank if they disagree on any option, if the graph is not
  // strongly connected, or if there is no room.
  Segment(std::shared_ptr<Group> group, SegmentOptions options);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Collective: goes over to another group, in which the others regroup() theirs too, and those who
  // have come back make theirs anew. What live ranks have sent and is pending comes along; the
  // iterations and the counters go on. Who comes back begins at the lowest iteration of the others,
  // as it was when their rounds began: with the one that the slowest of them is in.
  // If it throws, the segment can neither send nor gather until another regroup().
  void regroup(std::shared_ptr<Group> group);

  // Writes one update to the out-neighbours of this round and returns those written to. `fill` gets
  // the slot's memory (slot_bytes, 64-byte aligned) and returns (bytes used, Tag). Advances the
  // iteration. LATEST never blocks: should every slot be under a reader's eyes at this moment, the
  // update counts as overwritten and nobody is returned. QUEUE waits for a slot; TimeoutError names
  // the ranks that hold them all, and the iteration is as before. An exception out of `fill` leaves
  // everything as before. `may_lag`: other hosts may hear of it with what this rank sends them next, when
  // it waits, or 0.1 s later, even if it is killed before.
  template <class Fill>
  std::span<const int> scatter(Fill&& fill, const Graph* graph = nullptr, bool may_lag = false) {
    const Turn turn(*turns_, "scatter", options_.name);
    std::byte* room = begin_scatter(graph);
    if (room == nullptr) return skip_scatter();
    ScatterGuard guard(*this);
    const std::pair<std::size_t, Tag> filled = [&] {
      const Turns::Inside inside(*turns_, Turns::Code::kFold);
      return fill(std::span(room, options_.slot_bytes));
    }();
    guard.keep();
    return end_scatter(filled.first, filled.second, may_lag);
  }
  std::span<const int> scatter(std::span<const std::byte> payload, const Graph* graph = nullptr);

  // Folds what has arrived: waits as `options` says, then calls fold(std::span<const Update>) once
  // with the updates in rank order (of one sender in order of iteration) if there are any, and
  // returns the number. LATEST: at most one update a sender, its newest; what it replaces counts as
  // overwritten. QUEUE: all of them. At staleness 0 exactly those of this rank's own iteration
  // (under QUEUE also older ones not folded yet), and it returns only when the next scatter finds a
  // slot that everyone has folded, so that no update of a BSP round is ever overwritten. If fold
  // throws, none counts as folded and all stay pending; reject() takes single ones out.
  // TimeoutError names the in-neighbours waited for; nothing is folded then. Dead ranks are left
  // out.
  template <class Fold>
  std::size_t gather(const GatherOptions& options, Fold&& fold) {
    const Turn turn(*turns_, "gather", options_.name);
    const std::span<const Update> updates = begin_gather(options);
    GatherGuard guard(*this);
    if (!updates.empty()) {
      const Turns::Inside inside(*turns_, Turns::Code::kFold);
      fold(updates);
    }
    guard.keep();
    end_gather();
    return updates.size();
  }
  // LATEST: waits until a gather without staleness would find something, more or fewer than `live`
  // ranks live in the group, or it has been superseded. False: the time is up.
  bool await_update(std::size_t live, std::chrono::nanoseconds timeout);
  // Inside a fold: this update counts as rejected instead of folded.
  void reject(std::size_t update) { found_[update].folded = false; }

  // A slot of this rank's mailbox as scratch memory that stays its own until release_room(); waits
  // like QUEUE does if every slot is taken. For collectives of the layer above. Ends last_sent().
  std::byte* claim_room(std::chrono::nanoseconds timeout);
  void release_room();

  // Waits as scatter and gather do, counted in stats().wait_seconds. See Waiter::until.
  template <class Ready, class What>
  bool wait(Ready&& ready, std::chrono::nanoseconds timeout, const What& missed) {
    return ready() || wait_on(ready, timeout, std::cref(missed));
  }
  template <class Ready>
  bool wait(Ready&& ready, std::chrono::nanoseconds timeout) {
    return ready() || wait_on(ready, timeout, nullptr);
  }

  std::uint64_t iteration() const noexcept { return iteration_; }
  // The iteration up to which everything that `rank` has sent has come to this host.
  std::uint64_t clock_of(int rank);
  // The ranks that have left the job in good order with fewer scatters than this rank has made.
  std::vector<int> left_behind();
  // Whether this rank has begun to scatter, gather or fold here.
  bool is_used() const noexcept { return is_used_; }
  // The payload of this rank's last scatter, unchanging until the next; null if that was skipped.
  const std::byte* last_sent() const noexcept { return last_sent_; }
  // In- and out-neighbours of this rank's last scatter (of round 0 before any).
  const std::vector<int>& in_neighbours() const { return round_->in; }
  const std::vector<int>& out_neighbours() const { return round_->out; }
  const std::vector<int>& peers() const noexcept { return peers_; }  // all other ranks, sorted
  // The mixing weight of each of in_neighbours().
  const std::vector<double>& weights() const { return round_->weights; }

  struct Round {  // a graph in one round, as this rank sees it
    std::vector<int> out, in;
    std::vector<double> weights;  // of each of `in`
  };
  // Of the segment's own graph, among the members of the job as of this rank's last scatter.
  Round round(std::uint64_t number) const { return make_round(options_.graph, number); }
  // Who the graph is drawn among: all ranks, or those that were left when this rank last scattered.
  const std::vector<int>& members() const noexcept { return view_.members; }
  bool is_repaired() const noexcept;
  bool is_live(int rank) const noexcept {
    return group_->is_live(rank) && !channel_->is_closed(rank);
  }

  // At the beginning of a call. Throws ConfigError after close(), or after the group was left, and
  // what Group::check_standing() does; and Superseded if a round of the loop may begin here.
  void begin_call(bool begins_round);
  bool is_closed() const noexcept { return channel_->is_closed(group_->rank()); }

  // Reads what the receivers have noted in shared memory; asks nobody. Any thread, at any time.
  Stats stats() const;
  const SegmentOptions& options() const noexcept { return options_; }
  Group& group() const noexcept { return *group_; }
  Turns& turns() const noexcept { return *turns_; }
  Channel& channel() const noexcept { return *channel_; }

  // Leaves the segment: others' waits leave this rank out. Not collective; idempotent.
  void close();
  // Likewise, for destructors: at any time, by any thread.
  void shut() noexcept;

 private:
  template <class Ready>
  bool wait_on(Ready& ready, std::chrono::nanoseconds timeout, const Missed& missed) {
    Waiter& waiter = group_->waiter();
    const std::chrono::nanoseconds before = waiter.waited();
    const auto look = [&] {
      if (channel_->is_silent()) channel_->take_in();
      return ready();
    };
    const bool done = waiter.until(look, timeout, channel_->is_silent(), missed);
    waited_ += waiter.waited() - before;
    return done;
  }
  struct Found {  // what becomes of an update being gathered
    std::uint64_t ordinal;
    bool is_put_by;  // and not in a slot
    bool folded;
  };
  struct PutBy {  // an update copied out of its slot; see put_by() and take_along()
    int rank;
    SlotHeader header;
    std::uint64_t ordinal;
    std::vector<std::byte> payload;
  };
  class ScatterGuard {
   public:
    explicit ScatterGuard(Segment& segment) : segment_(&segment) {}
    ~ScatterGuard() {
      if (segment_ != nullptr) segment_->cancel_scatter();
    }
    void keep() { segment_ = nullptr; }

   private:
    Segment* segment_;
  };
  class GatherGuard {
   public:
    explicit GatherGuard(Segment& segment) : segment_(&segment) {}
    ~GatherGuard() {
      if (segment_ != nullptr) segment_->let_go();
    }
    void keep() { segment_ = nullptr; }

   private:
    Segment* segment_;
  };

  void check_options() const;
  void check_agreement(Group& group) const;
  void open(const std::shared_ptr<Group>& group);
  void agree_on_iterations(Group& group);
  void take_along(const Group& next);
  bool comes_along(int rank) const;
  std::uint64_t last_ordinal(int rank) const;
  void add_stats(int rank, bool is_live, Stats& stats) const;
  Graph among_members(const Graph& graph) const;
  Round make_round(const Graph& graph, std::uint64_t round) const;
  const Round& round_of(const Graph& graph, std::uint64_t round);
  void draw_graph();
  void follow_view();
  bool hears_of_epoch();
  void take_in_strays(bool exact);
  std::byte* begin_scatter(const Graph* graph);
  std::span<const int> end_scatter(std::size_t bytes, Tag tag, bool may_lag);
  std::span<const int> skip_scatter();
  void cancel_scatter() noexcept;
  int wait_for_slot(std::chrono::nanoseconds timeout);
  std::span<const Update> begin_gather(const GatherOptions& options);
  void collect_own_iteration(std::chrono::nanoseconds timeout);
  bool has_update(int rank);
  void collect_newest();
  void collect_queued(std::uint64_t limit);
  void wait_for_clocks(std::uint64_t target, std::chrono::nanoseconds timeout);
  void wait_for_folds(std::chrono::nanoseconds timeout);
  void put_by(int rank, std::uint64_t limit, int most);
  const PutBy* newest_put_by(int rank, std::uint64_t limit) const;
  SlotHeader header_of(int rank, int slot, std::uint64_t after, std::uint64_t limit);
  void take(int rank, int slot, std::uint64_t after, std::uint64_t limit);
  void take(const PutBy& kept);
  void end_gather();
  void let_go() noexcept;
  SlotReader& reader(int rank) { return readers_[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<Group> group_;
  const std::shared_ptr<Turns> turns_;
  SegmentOptions options_;
  MailboxShape mailbox_shape_;
  std::unique_ptr<Channel> channel_;
  std::vector<int> peers_;
  std::vector<SlotReader> readers_;  // by rank
  std::optional<SlotWriter> writer_;
  View view_;                     // what the graph is drawn for
  std::vector<Round> repeating_;  // options_.graph over one period, if that is short
  Round other_round_;             // any other graph or round
  const Round* round_ = nullptr;  // of the last scatter
  bool in_step_ = false;          // this rank's out- and in-neighbours are the same in every round
  std::uint64_t iteration_ = 0;
  bool is_in_round_ = false;  // this iteration has been scattered, and not gathered
  bool is_used_ = false;
  int slot_ = -1;  // claimed for the scatter in progress
  const std::byte* last_sent_ = nullptr;
  std::vector<int> to_;                 // whom it goes to
  std::vector<Update> updates_;         // being gathered
  std::vector<Found> found_;            // likewise, in the same order
  std::vector<PutBy> put_by_;           // to be gathered first; by sender in order of iteration
  std::vector<std::uint64_t> resumed_;  // by rank: the iteration it came into this group with
  std::vector<int> along_;              // the ranks that came with one, sorted
  std::vector<int> freed_;              // senders of what is put by
  std::vector<int> held_;               // senders whose cursor holds something
  Stats gone_;  // of updates to ranks that did not come along from an earlier group
  std::uint64_t bytes_out_ = 0;
  std::uint64_t bytes_in_ = 0;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace dstorm
