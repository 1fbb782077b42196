// The way of one segment from this rank to the other ranks: the segment's memory on this host,
// which the ranks here read and write in place, and the network to the other hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "dstorm/host/segment_memory.hpp"
#include "dstorm/slot/reader.hpp"

namespace dstorm {

class Graph;
class Group;
namespace host {
class Control;
}
namespace remote {
class Engine;
class Inbox;
struct Attachment;
}  // namespace remote

class Channel {
 public:
  // Collective over the live ranks, blocking. Throws on every rank, or on none: ConfigError (no
  // room, no descriptor), TimeoutError, PeerError. `engine` is null in a job of one host. `id` is
  // the same on every rank, and greater than that of any earlier segment. There is memory
  // for the updates that come to this host over `graph` from the beginning.
  Channel(Group& group, host::Control& control, remote::Engine* engine, std::uint32_t id,
          std::string_view what, host::SegmentShape shape, const Graph& graph);
  ~Channel();

  const host::SegmentMemory& memory() const noexcept { return *memory_; }
  std::shared_ptr<const host::SegmentMemory> share_memory() const noexcept { return memory_; }

  // This rank's reader of the mailbox of `sender`, or of the copies of it that this host has.
  SlotReader reader(int sender) const;

  // To be called after this rank has published `bytes` of payload, or has moved only its clock.
  // Wakes the ranks `to` on this host, and sends the change to other hosts; see
  // remote::Engine::flush.
  void deliver(std::span<const int> to, std::size_t bytes, bool may_lag = false) noexcept;
  // To be called after this rank has folded updates of `senders`. `awaited`: the senders may be
  // waiting for that. Other hosts are told when a quarter of the slots is free again, when this
  // rank goes to sleep, or within a tenth of a second. A sender does not wait as long as most of
  // its slots are free, so it need not be told sooner.
  void acknowledge(std::span<const int> senders, bool awaited) noexcept;
  // Wakes ranks of this host that may be waiting for a change that this rank has made in its
  // memory.
  void wake(std::span<const int> ranks) noexcept;
  // The same from any thread, for ranks of any host: this rank has published an update for the
  // ranks, or has folded updates of theirs.
  void tell(std::span<const int> ranks) noexcept;
  void wake_self() noexcept;  // from any thread
  // LATEST: makes the network read the update that it is still sending from a copy instead of the
  // slot. Returns true if that may have freed a slot.
  bool make_room() noexcept;

  // Whether updates arrive in inboxes. An adapter wakes nobody, so a rank that waits for such an
  // update calls take_in() again and again. take_in() moves the updates that have arrived to the
  // mailboxes.
  bool is_polled() const noexcept { return !inboxes_.empty(); }
  void take_in();

  // This rank will neither send nor receive here any more. The other ranks go on to wait for it
  // only if it has dropped the segment.
  void leave(bool is_dropped) noexcept;
  bool is_closed(int rank) const noexcept { return memory_->is_closed(rank); }
  bool has_gone(int rank) const noexcept { return memory_->has_gone(rank); }

  // The ranks of this host, this one included, sorted. A descriptor that is readable when the
  // process of such a rank has ended; -1 for this rank.
  const std::vector<int>& locals() const noexcept;
  // A number of the host of a rank, the same on all ranks, and for as long as the group lives.
  int host_of(int rank) const;
  int pidfd(int rank) const noexcept;

 private:
  host::Control& control_;
  remote::Engine* engine_;
  std::shared_ptr<host::SegmentMemory> memory_;     // shared with the engine, for other ranks' sake
  std::shared_ptr<remote::Attachment> attachment_;  // null without an engine
  std::size_t unacknowledged_ = 0;                  // updates folded, at most
  std::vector<std::unique_ptr<remote::Inbox>> inboxes_;  // of the senders that have adapters
};

}  // namespace dstorm
