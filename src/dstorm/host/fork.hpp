// A process that a rank has forked is not a rank. It has all memory and descriptors of the rank,
// but none of its threads, so it may neither use nor tidy up the parts of a group. The library
// notices fork(). It does not notice a bare clone() or vfork(); a program may use these only to
// execute another program right after.
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
// The number of forks between the first process that loaded this library and this process. A caller
// that has stored it and finds it changed is in a forked child, and only then. Costs one load; any
// thread may call it.
inline std::uint32_t forks() noexcept { return detail::forks.load(std::memory_order_relaxed); }

// A descriptor that a forked child closes at once. As long as the child held a connection or a
// listening socket open, no other rank could see on it that the rank has died. Any thread.
class UnforkedDescriptor {
 public:
  // A child that is forked before this call keeps the descriptor.
  // NOLINTNEXTLINE(google-explicit-constructor): it stands where a descriptor would.
  UnforkedDescriptor(Descriptor descriptor);
  // Takes the descriptor that `open` returns, or -1 for none. No thread can fork while `open` runs,
  // so `open` must not block.
  explicit UnforkedDescriptor(const std::function<int()>& open);
  UnforkedDescriptor(UnforkedDescriptor&&) noexcept = default;
  UnforkedDescriptor& operator=(UnforkedDescriptor&&) noexcept = default;
  ~UnforkedDescriptor();

  int get() const noexcept { return descriptor_.get(); }  // -1 if empty
  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

 private:
  Descriptor descriptor_;
};

// Calls it while no thread can fork, and in one thread at a time: so what it changes is whole in
// every child. It may not block, and may not make an UnforkedDescriptor.
void between_forks(const std::function<void()>& change);

// Makes a forked child close a descriptor that a library owns. The caller makes this object right
// after the library has opened the descriptor, and destroys it right before the library closes it.
// Any thread.
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
