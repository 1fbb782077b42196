// Memory that several processes of one host share and that has no name: an anonymous memory file
// (memfd). Others open it through /proc/<pid>/fd while its maker keeps the descriptor, so nothing
// is ever in /dev/shm and nothing can be left behind, whatever dies when. It is sealed against
// resizing and its pages are reserved before use: no access can raise SIGBUS.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dstorm::host {

// A mapping of shared memory. Move-only; unmaps (and closes what is open) when it goes.
class Memory {
 public:
  Memory() = default;
  // Makes and maps `bytes` of zeros, of which `used` will be backed with pages soon. `what` names it
  // in errors ("segment 'w'"). Throws ConfigError naming what is needed and what there is.
  static Memory create(std::size_t bytes, std::size_t used, std::string_view what);
  // Maps what process `pid` has open as `fd`. Throws ConfigError if this process may not, or the
  // size differs; the caller makes sure, by a token inside, that it is the memory it meant.
  static Memory open(pid_t pid, int fd, std::size_t bytes, std::string_view what);

  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  // Backs [offset, offset + bytes) with pages, here and now; zeros stay zeros. Throws ConfigError
  // if there is no room.
  void reserve(std::size_t offset, std::size_t bytes, std::string_view what);

  // Likewise without the descriptor, for pages that nobody uses yet.
  void populate(std::size_t offset, std::size_t bytes, std::string_view what) const;

  // Nobody can open() it after this; mappings stay.
  void close_fd() noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  int fd() const noexcept { return fd_; }

 private:
  Memory(int fd, std::size_t bytes, std::string_view what);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;
  std::size_t room_ = 0;  // found by create(), for what is not reserved yet
};

// 128 random bits, by which memory is told from other memory.
using Token = std::array<std::uint64_t, 2>;
Token make_token();

// What this process may still allocate: the system's available memory or what its control group
// leaves, whichever is less.
std::size_t available_bytes();

}  // namespace dstorm::host
