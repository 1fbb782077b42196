// The memory of a recorder, mapped by its writer or by a reader.
#pragma once

#include <cstddef>
#include <span>

#include "dstorm/recorder/layout.hpp"

namespace dstorm {

class RecorderMemory {
 public:
  // Maps the memory file behind `fd` and keeps a descriptor of its own, by which other processes
  // find the memory in /proc/<pid>/fd. Throws ConfigError if the file is no memory file, or may
  // shrink: an access beyond its end would raise SIGBUS.
  RecorderMemory(int fd, bool writes);
  ~RecorderMemory();
  RecorderMemory(const RecorderMemory&) = delete;
  RecorderMemory& operator=(const RecorderMemory&) = delete;

  int fd() const noexcept { return fd_; }
  // The number of cells that the ring of calls can have in a job of `size` ranks: a power of two,
  // or 0 if the memory is too small.
  std::size_t room_for_cells(int size) const noexcept;
  RecorderHeader& header() const noexcept { return *reinterpret_cast<RecorderHeader*>(data_); }
  std::span<RecorderPeer> peers(int size) const noexcept;
  // All places for names; the header says how many are in use.
  std::span<ReportName> names(int size) const noexcept;
  // The ring of the values that are reported under a name.
  EventRing reports(int size, std::size_t name) const noexcept;
  EventRing changes(int size) const noexcept;
  EventRing calls(int size, std::size_t cells) const noexcept;

 private:
  std::byte* data_;
  std::size_t bytes_;
  int fd_;
};

}  // namespace dstorm
