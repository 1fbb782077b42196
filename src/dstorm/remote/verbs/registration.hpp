// The memory of a segment that this rank's adapter may read and write.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/host/segment_memory.hpp"
#include "dstorm/remote/transport/adapter.hpp"
#include "dstorm/remote/verbs/region.hpp"

namespace dstorm::verbs {

class Registration final : public remote::Registration {
 public:
  // `most_receivers`: the most ranks that any host of the job has. Throws ConfigError if the memory
  // cannot be registered, or if an update of the segment is longer than the adapter can write.
  Registration(const Device& device, const host::Control& control,
               std::shared_ptr<const host::SegmentMemory> memory, std::size_t most_receivers);

  // The mailbox of this rank, from which the adapter reads.
  const Region& mailbox() const noexcept { return mailbox_; }
  // The cursors in the mailbox of each rank of this host.
  const std::vector<Region>& cursors() const noexcept { return cursors_; }
  // The inbox of `sender`; registers it if need be. Throws ConfigError.
  const Region& inbox_of(int sender);

 private:
  Device device_;
  std::shared_ptr<const host::SegmentMemory> memory_;
  Region mailbox_;
  std::vector<Region> cursors_;
  std::map<int, Region> inboxes_;  // of senders whose updates this rank takes in
};

}  // namespace dstorm::verbs
