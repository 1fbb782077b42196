// One segment as this rank reaches the others through it: the memory of its host, which its ranks
// read and write in place, and the network to the other hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "dstorm/host/segment_memory.hpp"
#include "dstorm/remote/verbs/inbox.hpp"
#include "dstorm/slot/reader.hpp"

namespace dstorm {

class Group;
namespace host {
class Control;
}
namespace remote {
class Engine;
struct Attachment;
}  // namespace remote

class Channel {
 public:
  // Collective over the live ranks. Throws on every rank, or on none: ConfigError (no room, no
  // descriptor), TimeoutError. `engine` is null in a job of one host.
  // `id`: the same on every rank, and greater than any segment's before.
  Channel(Group& group, host::Control& control, remote::Engine* engine, std::uint32_t id,
          std::string_view what, host::SegmentShape shape);

  const host::SegmentMemory& memory() const noexcept { return *memory_; }
  std::shared_ptr<const host::SegmentMemory> share_memory() const noexcept { return memory_; }

  // For what this rank folds of `sender`.
  SlotReader reader(int sender) const;

  // After this rank has published `bytes` of payload, or moved its clock alone: wakes those of
  // `to`, and sends what other hosts have to know; see remote::Engine::flush.
  void deliver(std::span<const int> to, std::size_t bytes, bool may_lag = false) noexcept;
  // After it has folded what `senders` sent, who may be waiting for that (`awaited`) or not. Other
  // hosts hear of it when a quarter of the slots is free again, when this rank goes to sleep, or
  // within a tenth of a second: who has most of its slots left does not wait for one.
  void acknowledge(std::span<const int> senders, bool awaited) noexcept;
  // Wakes ranks of this host that may be waiting for something this rank has changed in its memory.
  void wake(std::span<const int> ranks) noexcept;
  // LATEST: has what a slow network is still sending read from a copy instead of its slot. True if
  // that may have freed one.
  bool make_room() noexcept;

  // Whether updates come by RDMA, of which nobody tells: who waits for one looks again and again,
  // with take_in(), which moves what has come to the mailboxes.
  bool is_silent() const noexcept { return !inboxes_.empty(); }
  void take_in();

  // This rank will neither send nor receive here any more; the others' waits leave it out.
  void close() noexcept;
  bool is_closed(int rank) const noexcept { return memory_->is_closed(rank); }

 private:
  host::Control& control_;
  remote::Engine* engine_;
  std::shared_ptr<host::SegmentMemory> memory_;     // shared with the engine, for other ranks' sake
  std::shared_ptr<remote::Attachment> attachment_;  // null without an engine
  std::size_t unacknowledged_ = 0;                  // updates folded, at most
  std::vector<verbs::Inbox> inboxes_;               // of the senders that have RDMA
};

}  // namespace dstorm
