// The state that the parts of a segment share: group and mailboxes, the round, the iteration.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dstorm/host/wait.hpp"
#include "dstorm/segment.hpp"
#include "dstorm/segment/channel.hpp"
#include "dstorm/segment/rounds.hpp"
#include "dstorm/segment/stash.hpp"
#include "dstorm/slot/reader.hpp"
#include "dstorm/slot/writer.hpp"

namespace dstorm {

// For the thread that has the turn (host/turn.hpp). The layers above, vol and collective, use it
// too: they wait as a segment does, and keep data of their own in its memory.
class SegmentState {
 private:
  std::shared_ptr<Group> group_;
  const std::shared_ptr<Turns> turns_;
  Recorder* const recorder_;  // the job's
  const SegmentOptions options_;
  const std::string name_;
  const MailboxShape shape_;

 public:
  // Checks the options, and opens nothing. Throws ConfigError.
  SegmentState(std::shared_ptr<Group> group, SegmentOptions options);
  ~SegmentState();
  SegmentState(const SegmentState&) = delete;
  SegmentState& operator=(const SegmentState&) = delete;

  // open() is collective over the live ranks: it opens the mailboxes in `group`, and changes
  // nothing if it throws. The old mailboxes stay until use() replaces them by the new ones.
  struct Mailboxes {
    std::unique_ptr<Channel> channel;
    std::vector<SlotReader> readers;  // by rank
    std::optional<SlotWriter> writer;
  };
  Mailboxes open(Group& group) const;
  void use(std::shared_ptr<Group> group, Mailboxes mailboxes);

  const SegmentOptions& options() const noexcept { return options_; }
  bool is_queue() const noexcept { return options_.policy == Policy::kQueue; }
  const std::string& name() const noexcept { return name_; }  // in errors: "segment 'w'"
  Group& group() const noexcept { return *group_; }
  Recorder* recorder() const noexcept { return recorder_; }  // null if nothing is recorded
  Turns& turns() const noexcept { return *turns_; }
  const std::vector<int>& peers() const noexcept { return peers_; }  // all other ranks, sorted
  bool is_live(int rank) const noexcept {
    return group_->is_live(rank) && !channel_->is_closed(rank);
  }
  bool is_closed() const noexcept { return channel_->is_closed(group_->rank()); }

  const MailboxShape& shape() const noexcept { return shape_; }
  bool is_open() const noexcept { return channel_ != nullptr; }
  Channel& channel() const noexcept { return *channel_; }
  const host::SegmentMemory& memory() const noexcept { return channel_->memory(); }
  std::shared_ptr<const host::SegmentMemory> share_memory() const noexcept {
    return channel_->share_memory();
  }
  // The mailbox of `rank` in this host's memory; for a rank of another host, its first copy.
  Mailbox mailbox(int rank) const { return memory().box(rank); }
  SlotReader& reader(int rank) { return readers_[static_cast<std::size_t>(rank)]; }
  SlotWriter& writer() noexcept { return *writer_; }
  const SlotWriter& writer() const noexcept { return *writer_; }
  // The iteration up to which everything that `rank` has sent has arrived at this host.
  std::uint64_t clock_of(int rank);
  // Moves updates that an adapter has written to the mailboxes, in which readers find them.
  void take_in() {
    if (channel_->is_polled()) channel_->take_in();
  }
  // A copy of the header of a slot in `rank`'s mailbox. The slot was found by a look for an
  // iteration above `after` and up to `limit`. Throws Error if the header says something else.
  SlotHeader header_of(int rank, int slot, std::uint64_t after, std::uint64_t limit);

  // Throws ConfigError if there was no memory here for an update of some sender. This is noted
  // before that sender's clock goes on here: a rank that has seen the clock sees this too.
  void check_room() const;
  // Every call on the segment begins with this. Throws ConfigError after close() or after the rank
  // has left the group, what Group::check_standing() throws, and Superseded if a round of the loop
  // may begin here (`begins_round`).
  void begin_call(bool begins_round);

  // As Waiter::until, and counts the time. Returns false when the time is up.
  template <class Ready, class What, class Missing = AnyRank>
  bool wait(Ready&& ready, std::chrono::nanoseconds timeout, const What& missed,
            const Missing& missing = {}) {
    return ready() || wait_on(ready, timeout, std::cref(missed), missing);
  }
  template <class Ready>
  bool wait(Ready&& ready, std::chrono::nanoseconds timeout) {
    return ready() || wait_on(ready, timeout, nullptr, AnyRank{});
  }

  // Leaves the segment. Any thread may call it at any time; idempotent.
  void shut() noexcept;
  // See Segment.
  void drop() noexcept;
  Stats stats() const;
  // Adds to `stats` the counters of the updates sent to `rank`.
  void add_stats(int rank, bool is_live, Stats& stats) const;

  Rounds rounds;
  Stash stash;
  std::uint64_t iteration = 0;         // of this rank's last scatter
  bool is_in_round = false;            // this iteration has been scattered and not yet gathered
  bool is_used = false;                // this rank has begun to scatter, gather or fold here
  std::vector<std::uint64_t> resumed;  // by rank: its iteration when it came into this group
  std::uint64_t bytes_out = 0;         // see Stats
  std::uint64_t bytes_in = 0;
  Stats gone;  // of updates to ranks of earlier groups that are not in this group

 private:
  void leave(bool is_dropped) noexcept;
  template <class Ready, class Missing>
  bool wait_on(Ready& ready, std::chrono::nanoseconds timeout, const Missed& missed,
               const Missing& missing) {
    Waiter& waiter = group_->waiter();
    const std::chrono::nanoseconds before = waiter.waited();
    const auto look = [&] {
      check_room();
      take_in();
      return ready();
    };
    const bool done = waiter.until(look, timeout, channel_->is_polled(), missed, missing);
    waited_ += waiter.waited() - before;
    return done;
  }

  std::unique_ptr<Channel> channel_;
  std::vector<int> peers_;
  std::vector<SlotReader> readers_;  // by rank
  std::optional<SlotWriter> writer_;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace dstorm
