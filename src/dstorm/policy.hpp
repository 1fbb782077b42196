// The two ways in which a full receive queue is handled.
#pragma once

#include <cstdint>

namespace dstorm {

enum class Policy : std::uint32_t {
  kLatest = 1,  // the sender replaces the oldest update that nobody is reading; it never waits
  kQueue = 2    // the sender waits until every receiver has folded an update; none is lost
};

}  // namespace dstorm
