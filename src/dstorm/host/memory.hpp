// Shared memory of one host without a name: an anonymous memory file (memfd). Other processes open
// it through /proc/<pid>/fd while its maker keeps the descriptor. So nothing is ever in /dev/shm,
// and nothing stays behind, whichever process dies when. The memory is sealed against resizing, and
// its pages are reserved before use, so no access can raise SIGBUS.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dstorm/errors.hpp"

namespace dstorm::host {

// A process has no memory, or another one, where it said that others would find it.
class MemoryGone : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// A mapping of shared memory. Move-only. The destructor unmaps it and closes its descriptor if that
// is still open. Not thread-safe, except data(), size() and populate().
class Memory {
 public:
  Memory() = default;
  // Makes and maps `bytes` bytes of zeros, of which `used` will soon be backed with pages. `what`
  // names the memory in errors ("segment 'w'"). Throws ConfigError with the bytes needed and the
  // bytes there are.
  static Memory create(std::size_t bytes, std::size_t used, std::string_view what);
  // Maps the memory that process `pid` has open as `fd`. Throws ConfigError if this process may
  // not, and MemoryGone if there is none of this size. The caller checks by a token in the memory
  // that it is the one it meant.
  static Memory open(pid_t pid, int fd, std::size_t bytes, std::string_view what);

  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  // Backs [offset, offset + bytes) with pages before it returns; zeros stay zeros. Throws
  // ConfigError if there is no room.
  void reserve(std::size_t offset, std::size_t bytes, std::string_view what);

  // As reserve(), but works after close_fd(), and also throws if there is no room for `wanted`, of
  // which these bytes are a part.
  void populate(std::size_t offset, std::size_t bytes, std::string_view what,
                std::size_t wanted = 0) const;

  // No process can open() the memory after this; mappings stay.
  void close_fd() noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  int fd() const noexcept { return fd_; }

 private:
  Memory(int fd, std::size_t bytes, std::string_view what);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;
  std::size_t room_ = 0;  // available to create(), and not yet reserved
};

// 128 random bits, by which one memory is told from another.
using Token = std::array<std::uint64_t, 2>;
Token make_token();

// The bytes that this process may still allocate: the system's available memory, or the room that
// its control group leaves if that is less.
std::size_t available_bytes();

}  // namespace dstorm::host
