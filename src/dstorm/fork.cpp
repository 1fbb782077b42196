#include "dstorm/fork.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace dstorm {
namespace {

// One a process: fork() knows no groups.
class Forks {
 public:
  static Forks& instance() {
    static Forks& forks = *new Forks;  // never destroyed: other threads may still have sockets
    return forks;
  }

  void add(int fd) {
    const std::lock_guard lock(mutex_);
    unforked_.push_back(fd);
  }
  void remove(int fd) {
    const std::lock_guard lock(mutex_);
    std::erase(unforked_, fd);
  }
  std::uint32_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  Forks() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().after_in_child(); });
  }

  void after_in_child() {
    for (const int fd : unforked_) ::close(fd);
    unforked_.clear();
    count_.fetch_add(1, std::memory_order_relaxed);
    mutex_.unlock();
  }

  std::mutex mutex_;  // held across a fork
  std::vector<int> unforked_;
  std::atomic<std::uint32_t> count_{0};
};

}  // namespace

std::uint32_t forks() noexcept { return Forks::instance().count(); }

UnforkedDescriptor::UnforkedDescriptor(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  if (descriptor_) Forks::instance().add(descriptor_.get());
}

// Before its number is free for others.
UnforkedDescriptor::~UnforkedDescriptor() {
  if (descriptor_) Forks::instance().remove(descriptor_.get());
}

}  // namespace dstorm
