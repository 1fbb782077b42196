// Writes this rank's updates into its slots, and makes them known to their receivers.
#pragma once

#include <atomic>
#include <optional>

#include "dstorm/segment/state.hpp"
#include "dstorm/segment/strays.hpp"

namespace dstorm {

class Scattering {
 public:
  Scattering(SegmentState& state, Strays& strays) : state_(state), strays_(strays) {}

  // See Segment::scatter.
  std::span<const int> scatter(const Segment::Fill& fill, const Graph* graph, bool may_lag);

  // See Segment::begin_scatter and finish_scatter.
  std::optional<std::span<const int>> begin_later(const Segment::Fill& fill, const Graph* graph);
  void finish() noexcept;
  bool is_begun() const noexcept { return is_begun_.load(std::memory_order_acquire); }

  // Claims a slot of this rank's mailbox as scratch memory, until release_room(). If every slot is
  // taken, it waits as a scatter under QUEUE does. last_sent() is null afterwards. For the
  // collectives of vol.
  std::byte* claim_room(std::chrono::nanoseconds timeout);
  void release_room() noexcept { cancel(); }

  // The payload of this rank's last scatter, which does not change until the next scatter. Null if
  // the last scatter was skipped, or if its slot may have been reused.
  const std::byte* last_sent() const noexcept { return last_sent_; }
  void forget_last_sent() noexcept { last_sent_ = nullptr; }

 private:
  std::byte* begin(const Graph* graph);
  void fill_with(const Segment::Fill& fill, std::byte* room);
  std::span<const int> skip();
  void cancel() noexcept;
  void record(std::size_t bytes, std::span<const int> to) const noexcept;
  int wait_for_slot(std::chrono::nanoseconds timeout);

  SegmentState& state_;
  Strays& strays_;
  int slot_ = -1;  // claimed for the scatter in progress
  // Whether finish() is to end a scatter, and its slot.
  std::atomic<bool> is_begun_{false};
  int begun_ = -1;
  std::size_t bytes_ = 0;  // of the scatter in progress
  std::vector<int> to_;    // its receivers
  const std::byte* last_sent_ = nullptr;
  Recorder::Time began_ = 0;  // the scatter in progress, if it is recorded
};

}  // namespace dstorm
