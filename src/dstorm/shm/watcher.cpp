#include "dstorm/shm/watcher.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dstorm/quiet_thread.hpp"

namespace dstorm::shm {

Watcher::Watcher(Control& control) : control_(control), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_ < 0) {
    throw ConfigError(std::string("cannot watch the other ranks: ") + std::strerror(errno) +
                      "; raise the limit on open files (ulimit -n)");
  }
  thread_ = start_quiet_thread([this] { run(); });
}

Watcher::~Watcher() {
  eventfd_write(stop_, 1);
  thread_.join();
  ::close(stop_);
}

void Watcher::run() {
  std::vector<pollfd> watched{{stop_, POLLIN, 0}};
  std::vector<int> ranks{-1};
  for (int r : control_.neighbours()) {
    watched.push_back({control_.pidfd(r), POLLIN, 0});
    ranks.push_back(r);
  }
  for (;;) {
    if (poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) return;
    if (watched[0].revents != 0) return;
    for (std::size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      watched[i].fd = -1;                     // poll passes over it from now on
      control_.mark(ranks[i], State::kDead);  // false if another rank, or its leaving, was first
      std::atomic_thread_fence(std::memory_order_seq_cst);
      ring(control_.bell(control_.rank()));
    }
  }
}

}  // namespace dstorm::shm
