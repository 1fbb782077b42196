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

struct Attachment : Listed<Attachment> {  // when it has changed
  Attachment(std::uint32_t number, std::shared_ptr<const host::SegmentMemory> given)
      : id(number), memory(std::move(given)) {}

  // Registers what is missing. Throws ConfigError.
  const verbs::Region& inbox_of(int sender, const verbs::Device& device) {
    const auto found = inboxes.find(sender);
    if (found != inboxes.end()) return found->second;
    const std::span area(memory->inbox(sender), memory->shape().inbox_bytes);
    return inboxes.try_emplace(sender, device, area, "an inbox").first->second;
  }

  std::uint32_t id;
  std::shared_ptr<const host::SegmentMemory> memory;
  // The number, among those of all segments, of this rank's last change there that other hosts have
  // to know. What is there from the beginning is to be said once at least.
  static constexpr std::uint64_t kUnchanged = 1;
  std::atomic<std::uint64_t> changes{kUnchanged};
  // The last of them that does not wait for what follows.
  std::atomic<std::uint64_t> urgent{kUnchanged};

  bool is_closing = false;  // this rank has closed it, and the engine knows

  // With RDMA, what the adapter may read and write.
  std::optional<verbs::Region> mailbox;  // this rank's
  std::vector<verbs::Region> cursors;    // in the mailbox of each rank of this host
  std::map<int, verbs::Region> inboxes;  // by sender, for those whose updates this rank takes in
};

}  // namespace dstorm::remote
