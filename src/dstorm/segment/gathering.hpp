// Finds the updates that have arrived for this rank, and gives them to a fold.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include "dstorm/segment/state.hpp"
#include "dstorm/segment/strays.hpp"

namespace dstorm {

class Gathering {
 public:
  Gathering(SegmentState& state, Strays& strays) : state_(state), strays_(strays) {}

  // See Segment::gather.
  std::size_t gather(const GatherOptions& options, const Segment::Fold& fold);
  // See Segment::begin_gather and finish_gather.
  std::size_t begin_later(const GatherOptions& options, const Segment::Fold& fold);
  void finish() noexcept;
  bool is_begun() const noexcept { return is_begun_.load(std::memory_order_acquire); }
  // See Segment::await_update.
  bool await_update(std::size_t live, std::chrono::nanoseconds timeout);
  // See Segment::reject.
  void reject(std::size_t update) { found_[update].is_folded = false; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Found {  // one for each Update
    std::uint64_t ordinal;
    bool is_stashed;  // it lies in the stash, not in a slot
    bool is_folded;
  };

  void collect(const GatherOptions& options);
  void collect_own_iteration(std::chrono::nanoseconds timeout);
  void collect_own_iteration_of(int rank, std::uint64_t own);
  void collect_newest();
  void collect_queued(std::uint64_t limit);
  void find(const GatherOptions& options, const Segment::Fold& fold);
  bool is_full() const { return updates_.size() >= state_.options().most_updates; }
  void settle();
  void release() noexcept;
  void record(Recorder& recorder, Recorder::Time began) const noexcept;
  void let_go() noexcept;
  void wait_for_clocks(std::uint64_t target, std::chrono::nanoseconds timeout);
  void wait_for_quorum(const Quorum& quorum, std::chrono::nanoseconds timeout,
                       Clock::time_point began);
  std::optional<std::chrono::nanoseconds> automatic_deadline() const;
  void wait_for_folds(std::chrono::nanoseconds timeout);
  bool hears_of_epoch();
  bool has_update(int rank);
  const Stash::Stashed* stashed(int rank, std::uint64_t limit) const;
  void take(int rank, int slot, std::uint64_t after, std::uint64_t limit);
  void take(const Stash::Stashed& update);

  SegmentState& state_;
  Strays& strays_;
  std::vector<Update> updates_;        // being gathered
  std::vector<Found> found_;           // one for each of updates_, in the same order
  std::vector<int> held_;              // senders in whose mailboxes this rank holds a slot
  std::vector<int> senders_;           // of the updates that have been folded
  std::atomic<bool> is_begun_{false};  // finish() is to end a gather
  // For how long gathers waited for a quorum that came, lately, whatever its share.
  std::optional<std::chrono::nanoseconds> usual_wait_;
  int cut_short_ = 0;  // gathers since then, of which the deadline came first
};

}  // namespace dstorm
