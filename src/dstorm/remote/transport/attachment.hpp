// A segment as the engine knows it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "dstorm/host/segment_memory.hpp"
#include "dstorm/remote/transport/change_list.hpp"

namespace dstorm::remote {

class Registration;

struct Attachment : Listed<Attachment> {  // listed when this rank has changed it
  Attachment(std::uint32_t number, std::shared_ptr<const host::SegmentMemory> given)
      : id(number), memory(std::move(given)) {}

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

  std::shared_ptr<Registration> registration;  // null without an adapter
};

using Attachments = std::map<std::uint32_t, std::shared_ptr<Attachment>>;

}  // namespace dstorm::remote
