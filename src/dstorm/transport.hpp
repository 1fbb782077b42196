// The interface below dStorm: how an update that lies in a sender's slot becomes readable
// elsewhere. One folder a transport (shm/ now); docs/transports.md says how to add one.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "dstorm/slot.hpp"

namespace dstorm {

// What a segment is made of, the same on every rank.
struct SegmentShape {
  MailboxShape mailbox;
  std::size_t home_bytes;    // per rank: memory of the rank's own that all may read
  std::size_t result_bytes;  // once per host: room for a shared fold
};

// One segment as one transport carries it. Its memory is mapped as long as it lives.
class Channel {
 public:
  virtual ~Channel() = default;

  // The mailbox of `sender` as it is seen on this host: the sender's own memory, or what has
  // arrived of it.
  virtual std::byte* mailbox(int sender) = 0;
  virtual std::byte* home(int rank) = 0;  // nullptr without one
  virtual std::byte* result() = 0;        // nullptr without one
  // One zeroed cache line per rank and purpose, shared by all ranks of this host.
  static constexpr int kBoards = 2;
  virtual std::byte* board(int which, int line) = 0;

  // Brings a slot that its sender has just published to those of `to` that do not read it in place,
  // and wakes all of them. One call a scatter.
  virtual void deliver(int slot, std::span<const int> to) = 0;
  // Wakes ranks that may be waiting for something this rank has just changed on this host.
  virtual void wake(std::span<const int> ranks) = 0;

  // This rank will neither send nor receive here any more; the others' waits leave it out.
  virtual void close() noexcept = 0;
  virtual bool is_closed(int rank) const noexcept = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const noexcept = 0;
  // Collective over the live ranks. Throws on every rank, or on none: ConfigError (no room, no
  // descriptor), TimeoutError.
  virtual std::unique_ptr<Channel> open(std::string_view what, const SegmentShape& shape) = 0;
};

}  // namespace dstorm
