// The policy of a segment: what a scatter does when every slot of the sender's mailbox is in use.
#pragma once

#include <cstdint>

namespace dstorm {

enum class Policy : std::uint32_t {
  // The sender replaces the oldest update that no receiver is reading, and never waits.
  kLatest = 1,
  // The sender waits, up to its time limit, until every live receiver has folded the update of some
  // slot. No update is lost.
  kQueue = 2
};

}  // namespace dstorm
