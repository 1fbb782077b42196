// The memory under a window (window.hpp).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "dstorm/host/memory.hpp"

namespace dstorm {

// Memory that a window lets the others write into. It is shared memory, and it may outlive its
// windows, and be that of one after the other. It has a descriptor as long as it lives.
class WindowMemory {
 public:
  // Begins with a copy of `content`. Throws ConfigError if there is no room.
  explicit WindowMemory(std::span<const std::byte> content);
  // That of another process of this host; its maker gives `token`. Throws ConfigError.
  WindowMemory(pid_t pid, int fd, std::size_t bytes, const host::Token& token);

  std::span<std::byte> bytes() const;
  int fd() const { return memory_.fd(); }
  const host::Token& token() const { return token_; }

 private:
  host::Token token_;
  host::Memory memory_;
};

}  // namespace dstorm
