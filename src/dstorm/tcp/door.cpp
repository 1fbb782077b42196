#include "dstorm/tcp/door.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "dstorm/errors.hpp"

namespace dstorm::tcp {
namespace {

// As many are accepted before those that are there are looked at again, so that in a flood an
// honest caller gets its turns.
constexpr int kAtOnce = 8;
// With no descriptor left, accept() would fail over and over.
constexpr auto kPause = std::chrono::milliseconds(100);

bool watch_for(int epoll, int operation, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

}  // namespace

Door::Door(UnforkedDescriptor listener, const KeptKey& key, std::uint32_t own_rank,
           const Address& listening, const TlsContext* tls, std::chrono::nanoseconds limit,
           std::chrono::nanoseconds silence)
    : watched_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      listener_(std::move(listener)),
      key_(key),
      own_rank_(own_rank),
      listening_(listening),
      tls_(tls),
      limit_(limit),
      silence_(silence) {
  if (!watched_ || !timer_ || !watch_for(watched_.get(), EPOLL_CTL_ADD, timer_.get(), EPOLLIN) ||
      !watch_for(watched_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN)) {
    throw ConfigError("cannot watch for callers at " + listening_.text() + ": " +
                      std::strerror(errno) + "; raise the limit on open files (ulimit -n)");
  }
}

std::vector<Caller> Door::ready() {
  take_in();
  std::vector<Caller> callers;
  const auto now = Clock::now();
  for (auto at = half_open_.begin(); at != half_open_.end();) {
    const auto one = at++;
    switch (one->handshake.advance(one->stream)) {
      case Handshake::Step::kWaiting:
        if (now < one->deadline) {
          watch(*one);
          continue;
        }
        ++dropped_;
        break;
      case Handshake::Step::kRefused:
        ++refused_;
        last_refusal_ = one->peer.text() + ": " + one->handshake.reason();
        break;
      case Handshake::Step::kDone:
        if (one->events != 0) watch_for(watched_.get(), EPOLL_CTL_DEL, one->stream.fd(), 0);
        callers.push_back({std::move(one->stream), one->handshake.introduction()});
        break;
    }
    half_open_.erase(one);
  }
  set_timer();
  return callers;
}

void Door::take_in() {
  if (paused_until_ > Clock::now()) return;
  if (paused_until_ != Clock::time_point()) {
    watch_for(watched_.get(), EPOLL_CTL_MOD, listener_.get(), EPOLLIN);
    paused_until_ = {};
  }
  for (int i = 0; i < kAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof(from);
    UnforkedDescriptor socket([&] {
      return ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &bytes,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (!socket) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return pause();
      }
      continue;  // that one connection has failed (accept(2) lists how)
    }
    if (half_open_.size() == kMostHalfOpen) {
      half_open_.pop_front();
      ++dropped_;
    }
    half_open_.push_back({Stream::accept(std::move(socket), tls_, silence_),
                          Handshake::callee(key_, own_rank_, listening_), Clock::now() + limit_,
                          Address::from(reinterpret_cast<sockaddr*>(&from)).value_or(Address()),
                          0});
  }
}

void Door::pause() {
  watch_for(watched_.get(), EPOLL_CTL_MOD, listener_.get(), 0);
  paused_until_ = Clock::now() + kPause;
}

void Door::watch(HalfOpen& one) {
  const std::uint32_t events = one.handshake.wants_write() ? EPOLLOUT : EPOLLIN;
  if (events == one.events) return;
  watch_for(watched_.get(), one.events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, one.stream.fd(),
            events);
  one.events = events;
}

void Door::set_timer() {
  itimerspec when{};  // zeros: never
  auto next = paused_until_;
  if (!half_open_.empty() && (next == Clock::time_point() || half_open_.front().deadline < next)) {
    next = half_open_.front().deadline;
  }
  if (next != Clock::time_point()) {
    const auto wait =
        std::max(std::chrono::nanoseconds(1), std::chrono::nanoseconds(next - Clock::now()));
    when.it_value.tv_sec = wait / std::chrono::seconds(1);
    when.it_value.tv_nsec = (wait % std::chrono::seconds(1)).count();
  }
  timerfd_settime(timer_.get(), 0, &when, nullptr);  // and what it said is forgotten
}

}  // namespace dstorm::tcp
