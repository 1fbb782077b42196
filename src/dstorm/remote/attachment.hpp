// A segment as the engine knows it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dstorm/host/segment_memory.hpp"
#include "dstorm/remote/change_list.hpp"
#include "dstorm/remote/verbs/region.hpp"

namespace dstorm::remote {

struct Attachment : Listed<Attachment> {  // listed when this rank has changed it
  Attachment(std::uint32_t number, std::shared_ptr<const host::SegmentMemory> given)
      : id(number), memory(std::move(given)) {}

  // The registration of the inbox of `sender`; registers it if need be. Throws ConfigError.
  const verbs::Region& inbox_of(int sender, const verbs::Device& device) {
    const auto found = inboxes.find(sender);
    if (found != inboxes.end()) return found->second;
    const std::span area(memory->inbox(sender), memory->shape().inbox_bytes);
    return inboxes.try_emplace(sender, device, area, "an inbox").first->second;
  }

  std::uint32_t id;
  std::shared_ptr<const host::SegmentMemory> memory;
  // The number of this rank's last change to the segment that other hosts have to know. Changes are
  // numbered across all segments. The first value stands for the segment as it was made, which has
  // to be sent at least once.
  static constexpr std::uint64_t kUnchanged = 1;
  std::atomic<std::uint64_t> changes{kUnchanged};
  // The number of the last change that must not wait for later ones.
  std::atomic<std::uint64_t> urgent{kUnchanged};

  bool is_closing = false;  // this rank has closed it, and the engine knows

  // With RDMA: the memory that the adapter may read and write.
  std::optional<verbs::Region> mailbox;  // the mailbox of this rank
  std::vector<verbs::Region> cursors;    // in the mailbox of each rank of this host
  std::map<int, verbs::Region> inboxes;  // by sender, for senders whose updates this rank takes in
};

}  // namespace dstorm::remote
