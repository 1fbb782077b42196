// Memory that the network adapter may read, and that peers who know its key may write.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "dstorm/remote/verbs/device.hpp"

namespace dstorm::verbs {

// A registration of the caller's memory, which must stay mapped as long as this object lives. When
// it is destroyed, peers' later writes into the memory are refused, and their queues fail. The
// memory's pages stay in RAM and count against the limit on locked memory. Blocking: takes
// milliseconds a gigabyte, and more for pages that are not there yet.
class Region {
 public:
  // `what` names the memory in errors ("segment 'w'"). Throws ConfigError naming the limit and the
  // way out.
  Region(const Device& device, std::span<std::byte> memory, std::string_view what);

  std::uint32_t lkey() const noexcept { return memory_->lkey; }
  std::uint32_t rkey() const noexcept { return memory_->rkey; }
  std::uint64_t address() const noexcept { return reinterpret_cast<std::uintptr_t>(memory_->addr); }
  std::size_t size() const noexcept { return memory_->length; }

 private:
  Device device_;  // before memory_, and so closed after it
  Handle<ibv_mr> memory_;
};

}  // namespace dstorm::verbs
