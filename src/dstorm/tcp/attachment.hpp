// A segment as the engine knows it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "dstorm/shm/segment_memory.hpp"

namespace dstorm::tcp {

struct Attachment {
  std::uint32_t id;
  std::shared_ptr<const shm::SegmentMemory> memory;
  // Grows when this rank has changed something there that other hosts have to know.
  std::atomic<std::uint64_t> changes{1};  // to be said once at least
};

}  // namespace dstorm::tcp
