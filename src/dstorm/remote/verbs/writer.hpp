// The RDMA path of a rank's updates to one other host. The rank's adapter writes its updates into
// its inbox there (inbox.hpp), and how far it has folded into the cursors of the senders there.
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
class Writer {
 public:
  // The memory on the other host that may be written for one segment.
  struct Window {
    Target inbox;                 // this rank's inbox
    std::vector<Target> cursors;  // by rank of that host: the first cursor of its mailbox
  };

  // `most_receivers`: the most ranks that any host of the job has.
  Writer(const Device& device, std::size_t most_receivers, std::chrono::milliseconds suspect_after);

  Endpoint local() const noexcept { return queue_.local(); }
  void connect(const Endpoint& remote) { queue_.connect(remote); }
  void open_window(std::uint32_t segment, Window window);
  bool has_window(std::uint32_t segment) const { return windows_.contains(segment); }

  // The longest payload that an update may ever have: all its writes fit into the queue together.
  static std::uint64_t most_payload_bytes(const Device& device, std::size_t most_receivers);

  // Whether there is room for an update with a payload of so many bytes; or for words.
  bool has_room(std::size_t payload_bytes) const noexcept;
  bool has_room() const noexcept { return queue_.room() > 0; }
  // Each of the send functions needs room. It returns the number of its last write, or 0 if the
  // queue has failed. `own` is this host's memory of the segment, with the mailbox registered as
  // `region`; `host` are the ranks of the other host.
  std::uint64_t send_update(std::uint32_t segment, const host::SegmentMemory& own,
                            const Region& region, int slot, const SlotHeader& header,
                            std::span<const Addressee> to, std::span<const int> host);
  std::uint64_t send_clock(std::uint32_t segment, std::uint64_t clock);
  // `cursor` is that of `receiver`, this rank, in the mailbox of the other host's rank at index
  // `place`. `signaled` is false if more writes follow soon, whose completion shows that this one
  // has completed too.
  std::uint64_t send_cursor(std::uint32_t segment, std::size_t place, int receiver,
                            const Cursor& cursor, bool signaled);

  std::uint64_t reap() { return queue_.reap(); }
  std::uint64_t completed() const noexcept { return queue_.completed(); }
  // Whether all posted writes have completed.
  bool is_idle() const noexcept {
    return !queue_.failed() && queue_.completed() == queue_.posted();
  }
  void hear(const DeviceEvent& event) { queue_.hear(event); }
  const std::optional<Failure>& failed() const noexcept { return queue_.failed(); }
  // For sleeping: see Queue.
  void arm() { queue_.arm(); }
  int fd() const noexcept { return queue_.fd(); }

 private:
  std::uint64_t send_words(const Target& target, std::span<const std::uint64_t> words,
                           bool signaled);
  std::size_t chunk_of(std::size_t bytes) const;

  std::size_t receivers_;
  std::size_t longest_;  // bytes of one write
  // Headers and trailers of updates on their way, used in turn: at most this many updates are in
  // flight. Behind them, for an adapter that takes too little inline, lie the words of each other
  // write in flight.
  std::size_t frame_bytes_;
  host::Memory frames_;  // shared: this process keeps the adapter's pages when the program forks
  Region frames_region_;
  std::vector<std::uint64_t> frame_writes_;  // the last write from each
  std::size_t next_frame_ = 0;
  std::map<std::uint32_t, Window> windows_;
  Queue queue_;
};

}  // namespace dstorm::verbs
