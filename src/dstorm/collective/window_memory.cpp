#include "dstorm/collective/window_memory.hpp"

#include <cstring>
#include <string>

#include "dstorm/errors.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm {
namespace {

// The memory begins with the token.
constexpr std::size_t kHeadBytes = kPage;

}  // namespace

WindowMemory::WindowMemory(std::span<const std::byte> content)
    : token_(host::make_token()),
      memory_(host::Memory::create(kHeadBytes + content.size(), kHeadBytes + content.size(),
                                   "a window")) {
  memory_.reserve(0, memory_.size(), "a window");
  std::memcpy(memory_.data(), &token_, sizeof(token_));
  if (!content.empty()) std::memcpy(bytes().data(), content.data(), content.size());
}

WindowMemory::WindowMemory(pid_t pid, int fd, std::size_t bytes, const host::Token& token)
    : token_(token), memory_(host::Memory::open(pid, fd, kHeadBytes + bytes, "a window")) {
  if (std::memcmp(memory_.data(), &token_, sizeof(token_)) != 0) {
    throw ConfigError("the memory of a window is not where process " + std::to_string(pid) +
                      " said; do the ranks share a PID namespace?");
  }
  memory_.close_fd();
}

std::span<std::byte> WindowMemory::bytes() const {
  return {memory_.data() + kHeadBytes, memory_.size() - kHeadBytes};
}

}  // namespace dstorm
