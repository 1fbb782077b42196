// The one-sided way of a rank's updates to one other host: its adapter writes them into the inbox
// areas there (inbox.hpp), and what it has folded into the cursors of the senders there.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "dstorm/host/segment_memory.hpp"
#include "dstorm/remote/verbs/inbox.hpp"
#include "dstorm/remote/verbs/queue.hpp"
#include "dstorm/remote/verbs/region.hpp"

namespace dstorm::verbs {

// One thread at a time. Nothing blocks.
class Sender {
 public:
  // What may be written of a segment on the other host.
  struct Window {
    Target inbox;                 // this rank's inbox
    std::vector<Target> cursors;  // by rank of that host: the first cursor of its mailbox
  };

  // `most_receivers`: the most ranks that any host of the job has.
  Sender(const Device& device, std::size_t most_receivers, std::chrono::milliseconds silence);

  Endpoint local() const noexcept { return queue_.local(); }
  void connect(const Endpoint& remote) { queue_.connect(remote); }
  void open_window(std::uint32_t segment, Window window);
  bool has_window(std::uint32_t segment) const { return windows_.contains(segment); }

  // The longest payload that an update may ever have: its writes fit into the queue together.
  static std::uint64_t most_payload_bytes(const Device& device, std::size_t most_receivers);

  // Whether there is room for an update of so many bytes of payload, or for words.
  bool has_room(std::size_t payload_bytes) const noexcept;
  bool has_room() const noexcept { return queue_.room() > 0; }
  // Each needs room, and returns the number of the last write it took, or 0: the queue has failed.
  // `own` is this host's memory
  // of the segment, registered as `region`; `host` the ranks of the other host.
  std::uint64_t send_update(std::uint32_t segment, const host::SegmentMemory& own,
                            const Region& region, int slot, const SlotHeader& header,
                            std::span<const Addressee> to, std::span<const int> host);
  std::uint64_t send_clock(std::uint32_t segment, std::uint64_t clock);
  // `cursor` is that of `receiver`, this rank, in the mailbox of the other host's rank `place`. Not
  // `signaled`: more follows soon, by whose completion this becomes known too.
  std::uint64_t send_cursor(std::uint32_t segment, std::size_t place, int receiver,
                            const Cursor& cursor, bool signaled);

  std::uint64_t reap() { return queue_.reap(); }
  std::uint64_t completed() const noexcept { return queue_.completed(); }
  // Everything that was to be written is in place.
  bool is_idle() const noexcept {
    return !queue_.failed() && queue_.completed() == queue_.posted();
  }
  void hear(const DeviceEvent& event) { queue_.hear(event); }
  const std::optional<Failure>& failed() const noexcept { return queue_.failed(); }
  // Sleeping: see Queue.
  void arm() { queue_.arm(); }
  int fd() const noexcept { return queue_.fd(); }

 private:
  std::uint64_t send_words(const Target& target, std::span<const std::uint64_t> words,
                           bool signaled);
  std::size_t chunk_of(std::size_t bytes) const;

  std::size_t receivers_;
  std::size_t longest_;  // bytes of one write
  // Headers and trailers on their way, used in turn: no more updates than these are in flight. Behind
  // them, for an adapter that takes too little inline, the words of each write that is in flight.
  std::size_t frame_bytes_;
  host::Memory frames_;  // shared: this process keeps the adapter's pages when the program forks
  Region frames_region_;
  std::vector<std::uint64_t> frame_writes_;  // the last write from each
  std::size_t next_frame_ = 0;
  std::map<std::uint32_t, Window> windows_;
  Queue queue_;
};

}  // namespace dstorm::verbs
