// A process that a rank has forked is no rank. It has all of the rank's memory and descriptors, but
// not its threads, so it may neither use nor tidy up what a group is made of. fork() is noticed; a
// bare clone() or vfork() is not, and is for who executes another program right after.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "dstorm/host/descriptor.hpp"

namespace dstorm {

namespace detail {
extern std::atomic<std::uint32_t> forks;
}
// Forks between the first process that has loaded this library and this process: differs from what
// it was before if, and only if, this is a child. A load; any thread.
inline std::uint32_t forks() noexcept { return detail::forks.load(std::memory_order_relaxed); }

// A descriptor that a forked child closes at once: while it had a connection, or the socket of one
// who listens, nobody could see on it that the rank has ended. Any thread.
class UnforkedDescriptor {
 public:
  // A child that is forked before this has it still.
  // NOLINTNEXTLINE(google-explicit-constructor): it stands where a descriptor would.
  UnforkedDescriptor(Descriptor descriptor);
  // What `open` returns, -1 if none. No thread forks meanwhile, so it must not block.
  explicit UnforkedDescriptor(const std::function<int()>& open);
  UnforkedDescriptor(UnforkedDescriptor&&) noexcept = default;
  UnforkedDescriptor& operator=(UnforkedDescriptor&&) noexcept = default;
  ~UnforkedDescriptor();

  int get() const noexcept { return descriptor_.get(); }  // -1 without one
  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

 private:
  Descriptor descriptor_;
};

// Has a forked child close a descriptor that a library owns: made right after the library has
// opened it, and gone right before it is closed. Any thread.
class ClosedInChild {
 public:
  explicit ClosedInChild(int fd);  // -1: none
  ClosedInChild(ClosedInChild&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ClosedInChild& operator=(ClosedInChild&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ClosedInChild();

 private:
  int fd_;
};

}  // namespace dstorm
