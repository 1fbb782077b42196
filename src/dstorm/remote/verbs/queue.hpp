// One reliable connection to one peer's adapter, and one-sided writes over it.
//
// A write is posted, carried out by the adapter, and completed. Writes are carried out in the order
// in which they were posted, and complete in that order. When a write has completed, its bytes are
// in the peer's memory (the peer need not have looked), and the source of the write may be used
// again.
//
// Only some writes ask for a completion of their own (selective signalling): one in every quarter
// of the depth, and those marked `signaled`. A completion counts for everything before it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "dstorm/host/fork.hpp"
#include "dstorm/remote/verbs/device.hpp"

namespace dstorm::verbs {

// The data that one end gives the other, over a channel that both trust. It has a fixed size, no
// pointers and the host's byte order, so it goes to the other process as bytes.
struct Endpoint {
  std::uint32_t queue_pair;    // 24 bits
  std::uint32_t first_packet;  // sequence number, 24 random bits
  std::uint32_t mtu_bytes;
  std::uint16_t lid;
  Fabric fabric;
  std::uint8_t unused;
  std::array<std::uint8_t, 16> gid;
};
static_assert(sizeof(Endpoint) == 32);

struct QueueOptions {
  std::uint32_t depth = 128;  // writes posted and not known to have completed
  std::uint32_t inline_bytes =
      256;  // wished for; Queue::inline_bytes() says what the adapter grants
  // For how long the peer may be silent: 1 ms to 60 s. Without any acknowledgement the queue fails
  // after a quarter to a half of this time, as precisely as the adapter can measure, so that
  // another queue still has time. The peer's adapter acknowledges: a peer process that is merely
  // stopped goes unnoticed.
  std::chrono::milliseconds suspect_after{400};
};

// A source of a write: memory of a Region, or any memory if the write is inline.
struct Part {
  const void* address;
  std::uint32_t bytes;
  std::uint32_t lkey;
};

struct Target {  // in the peer's memory
  std::uint64_t address;
  std::uint32_t rkey;
};

struct WriteFlags {
  // The bytes are copied while posting: the source is free when write() returns.
  bool inlined = false;
  // Asks for a completion of this very write. For the last write of a batch, so that its completion
  // becomes known.
  bool signaled = false;
};

// The reason why a queue cannot be used any more.
struct Failure {
  ibv_wc_status status;
  std::string what;  // "the peer ... (transport retry counter exceeded)"
};

// Except for the constructor and connect(), everything is lock-free, throws nothing and does not
// block. For one thread.
class Queue {
 public:
  static constexpr std::size_t kMostParts = 3;

  // Throws ConfigError if the device has no room, the depth is beyond its limit, or no memory may
  // be locked.
  explicit Queue(const Device& device, const QueueOptions& options = {});

  Endpoint local() const noexcept;
  // To be called once. From then on the peer may write; write() works when the peer has returned
  // from its own connect(). Throws ConfigError if the endpoint makes no sense, is on another kind
  // of network, or cannot be routed to.
  void connect(const Endpoint& remote);

  // Posts one write of the parts, one after the other, to the target: at most kMostParts, and
  // together at most DeviceChoice::longest_write_bytes. Returns the number of the write, counting
  // from 1; or 0 if there was no room (reap() and try again) or the queue has failed. A write that
  // the adapter refuses, or that can never be posted, fails the queue.
  std::uint64_t write(std::span<const Part> parts, const Target& target, WriteFlags flags = {});
  std::uint64_t write(const Part& part, const Target& target, WriteFlags flags = {}) {
    return write(std::span(&part, 1), target, flags);
  }

  // Looks for completions; returns completed().
  std::uint64_t reap();
  std::uint64_t posted() const noexcept { return posted_; }  // number of the last write
  std::uint64_t completed() const noexcept {
    return completed_;
  }  // known to be in place, up to here
  std::uint32_t room() const noexcept {
    return depth_ - static_cast<std::uint32_t>(posted_ - completed_);
  }
  std::uint32_t inline_bytes() const noexcept { return inline_bytes_; }

  // The first error, once it has been met. Writes beyond completed() may or may not have arrived,
  // and the queue refuses new ones.
  const std::optional<Failure>& failed() const noexcept { return failure_; }
  // The device has reported this event. If it makes the queue useless, the queue fails.
  void hear(const DeviceEvent& event);

  // To sleep: call arm(), then reap() once more for completions in between. If these were not
  // enough, wait until fd() is readable. It stays readable until the next arm().
  void arm();
  int fd() const noexcept { return channel_->fd; }

 private:
  void modify(ibv_qp_attr attributes, int mask, const std::string& doing);
  bool concerns(const DeviceEvent& event) const noexcept;
  void fail(ibv_wc_status status, std::string what);

  // Members in the order in which they are made; they are destroyed in reverse.
  Device device_;
  Handle<ibv_comp_channel> channel_;
  ClosedInChild channel_in_child_;
  Handle<ibv_cq> completions_;
  Handle<ibv_qp> pair_;
  std::uint32_t depth_;
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t first_packet_ = 0;
  std::chrono::milliseconds suspect_after_;
  std::uint64_t posted_ = 0;
  std::uint64_t signaled_ = 0;  // the last write that asked for a completion
  std::uint64_t completed_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace dstorm::verbs
