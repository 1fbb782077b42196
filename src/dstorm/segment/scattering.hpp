// Writes this rank's updates into its slots, and makes them known to their receivers.
#pragma once

#include "dstorm/segment/state.hpp"
#include "dstorm/segment/strays.hpp"

namespace dstorm {

class Scattering {
 public:
  Scattering(SegmentState& state, Strays& strays) : state_(state), strays_(strays) {}

  // See Segment::scatter.
  std::span<const int> scatter(const Segment::Fill& fill, const Graph* graph, bool may_lag);

  // A slot of this rank's mailbox as scratch memory, its own until release_room(). Waits as a QUEUE
  // does if every slot is taken. For the collectives of vol. Ends last_sent().
  std::byte* claim_room(std::chrono::nanoseconds timeout);
  void release_room() noexcept { cancel(); }

  // The payload of this rank's last scatter, unchanging until the next; null if that was skipped,
  // or its slot is no more.
  const std::byte* last_sent() const noexcept { return last_sent_; }
  void forget_last_sent() noexcept { last_sent_ = nullptr; }

 private:
  std::byte* begin(const Graph* graph);
  std::span<const int> end(std::size_t bytes, Tag tag, bool may_lag);
  std::span<const int> skip();
  void cancel() noexcept;
  int wait_for_slot(std::chrono::nanoseconds timeout);

  SegmentState& state_;
  Strays& strays_;
  int slot_ = -1;        // claimed for the scatter in progress
  std::vector<int> to_;  // its receivers
  const std::byte* last_sent_ = nullptr;
};

}  // namespace dstorm
