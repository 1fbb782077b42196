#include "dstorm/host/fork.hpp"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace dstorm {

std::atomic<std::uint32_t> detail::forks{0};

namespace {

// One per process: fork() knows nothing of groups.
class Forks {
 public:
  static Forks& instance() {
    static Forks& forks = *new Forks;  // never destroyed: other threads may still have sockets
    return forks;
  }

  // No thread can fork while the caller holds this lock.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  // The descriptors that a child closes. For the holder of the lock.
  std::vector<int>& unforked() noexcept { return unforked_; }

 private:
  Forks() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().after_in_child(); });
  }

  void after_in_child() {
    for (const int fd : unforked_) ::close(fd);
    unforked_.clear();
    detail::forks.fetch_add(1, std::memory_order_relaxed);
    mutex_.unlock();
  }

  std::mutex mutex_;  // held across a fork
  std::vector<int> unforked_;
};

// Runs when the library is loaded, before any caller asks for the number of forks.
[[gnu::constructor]] void notice_forks() noexcept { Forks::instance(); }

}  // namespace

void between_forks(const std::function<void()>& change) {
  const auto held = Forks::instance().hold();
  change();
}

UnforkedDescriptor::UnforkedDescriptor(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  if (!descriptor_) return;
  const auto held = Forks::instance().hold();
  Forks::instance().unforked().push_back(descriptor_.get());
}

UnforkedDescriptor::UnforkedDescriptor(const std::function<int()>& open) {
  const auto held = Forks::instance().hold();
  descriptor_ = Descriptor(open());
  if (descriptor_) Forks::instance().unforked().push_back(descriptor_.get());
}

UnforkedDescriptor::~UnforkedDescriptor() {
  if (!descriptor_) return;
  const auto held = Forks::instance().hold();
  std::erase(Forks::instance().unforked(), descriptor_.get());
  descriptor_ = Descriptor();
}

ClosedInChild::ClosedInChild(int fd) : fd_(fd) {
  if (fd_ < 0) return;
  const auto held = Forks::instance().hold();
  Forks::instance().unforked().push_back(fd_);
}

ClosedInChild::~ClosedInChild() {
  if (fd_ < 0) return;
  const auto held = Forks::instance().hold();
  std::erase(Forks::instance().unforked(), fd_);
}

}  // namespace dstorm
