// A segment whose updates a GPU writes and folds, while the thread that calls goes on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "dstorm/device/lane.hpp"
#include "dstorm/device/slots.hpp"
#include "dstorm/segment.hpp"

namespace vol::device {

using dstorm::device::Address;
using dstorm::device::Gpu;
using dstorm::device::Stream;

// Threads: as for a Segment. The caller has the turn. At most one scatter and one gather are on
// their way: a scatter waits for those before it, and a gather for the gather before it.
class StreamExchange {
 public:
  // Collective: see the constructor of Segment. `options` says all but the slots' bytes; an update
  // has `bytes` bytes. Without `sends` it takes no memory, and nothing can be scattered or
  // gathered. Also throws the same ConfigError on all ranks if one of them has no memory for the
  // slots.
  StreamExchange(std::shared_ptr<dstorm::Group> group, dstorm::SegmentOptions options,
                 std::size_t bytes, std::shared_ptr<Gpu> gpu, dstorm::device::SlotKind kind,
                 bool sends = true);
  // Waits until the GPU has finished. If it does not, the memory that it may use is never freed.
  ~StreamExchange();
  StreamExchange(const StreamExchange&) = delete;
  StreamExchange& operator=(const StreamExchange&) = delete;

  dstorm::Segment& segment() noexcept { return *segment_; }
  const dstorm::Segment& segment() const noexcept { return *segment_; }
  const Gpu& gpu() const noexcept { return lane_->gpu(); }
  dstorm::device::SlotKind kind() const noexcept { return kind_; }

  // write(to) begins to write an update to `to`, on `stream`. The receivers see it when all that
  // `stream` then has is done.
  std::span<const int> scatter(Stream stream, const std::function<void(Address to)>& write,
                               dstorm::Tag tag, const dstorm::Graph* graph = nullptr);
  // fold(updates, addresses) begins to read the updates at these addresses, on `stream`. Their
  // slots are kept until all that `stream` then has is done. Returns how many there are.
  using Fold = std::function<void(std::span<const dstorm::Update>, std::span<const Address>)>;
  std::size_t gather(Stream stream, const dstorm::GatherOptions& options, const Fold& fold);

  // Waits until the GPU has finished all that was begun here. Throws TimeoutError after the
  // group's time limit, and Error if the GPU has failed.
  void await_device();
  // Throws Error if the GPU has failed.
  void check_device() const { lane_->check(); }
  // Waits until the GPU has done what `stream` has, for at most `limit`. The caller's thread is
  // not busy meanwhile. Throws TimeoutError, and Error if the GPU has failed.
  void await_stream(Stream stream, std::chrono::nanoseconds limit);
  // Whether the GPU has finished all that was begun here; does not wait.
  bool is_idle() const noexcept { return lane_->await_idle(std::chrono::nanoseconds(0)); }
  // As Segment::shut(), when the GPU has finished: a rank that has left has sent everything before
  // it says so, and others count on that. A GPU that does not finish is given a minute. Any
  // thread.
  void shut() noexcept;
  // Collective: see Segment::regroup.
  void regroup(std::shared_ptr<dstorm::Group> group);
  // As Segment::stats(), with the bytes of the updates wherever they lie.
  dstorm::Stats stats() const;

 private:
  void await(bool with_scatter);
  [[noreturn]] void throw_timeout(std::chrono::nanoseconds limit) const;

  std::size_t bytes_;
  dstorm::device::SlotKind kind_;
  bool sends_;
  std::unique_ptr<dstorm::Segment> segment_;
  std::unique_ptr<dstorm::device::Slots> slots_;  // uses the segment, and is destroyed before it
  std::unique_ptr<dstorm::device::Lane> lane_;
  std::vector<Address> addresses_;
};

}  // namespace vol::device
