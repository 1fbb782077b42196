#include "dstorm/remote/net/listener.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "dstorm/errors.hpp"

namespace dstorm::net {
namespace {

// So many calls are accepted before the listener looks at those it has. It is fewer than may be
// half-open, so each call is looked at before it makes way.
constexpr std::size_t kAtOnce = Listener::kMostHalfOpen / 2;
// The pause when no descriptor is left, in which accept() would fail over and over.
constexpr auto kPause = std::chrono::milliseconds(100);
constexpr std::uint64_t kListener = 0;  // its name in epoll; half-open connections have numbers

// A fatal alert of TLS (protocol_version). It tells a caller that only one of the two ends uses
// TLS, in bytes that both kinds understand.
constexpr std::array<unsigned char, 7> kAlert = {0x15, 3, 1, 0, 2, 2, 70};
constexpr unsigned char kTlsHandshake = 0x16;  // the first byte of a caller that uses TLS

bool differs_in_tls(bool tls, int socket) {
  unsigned char first = 0;
  return ::recv(socket, &first, 1, MSG_PEEK) == 1 && (first == kTlsHandshake) != tls;
}

bool watch_for(int epoll, int operation, int fd, std::uint32_t events, std::uint64_t name) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = name;
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

std::string host_of(const Address& address) { return {address.ip().begin(), address.ip().end()}; }

}  // namespace

Listener::Listener(UnforkedDescriptor listener, const KeptKey& key, std::uint32_t own_rank,
                   const Address& listening, const TlsContext* tls, std::chrono::nanoseconds limit,
                   std::chrono::nanoseconds suspect_after,
                   std::function<std::chrono::nanoseconds()> processor_time)
    : waits_(epoll_create1(EPOLL_CLOEXEC)),
      watched_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      socket_(std::move(listener)),
      key_(key),
      own_rank_(own_rank),
      listening_(listening),
      tls_(tls),
      limit_(limit),
      suspect_after_(suspect_after),
      processor_time_(std::move(processor_time)),
      budget_(kShare, kMostSaved, Clock::now()) {
  if (!waits_ || !watched_ || !timer_ ||
      !watch_for(waits_.get(), EPOLL_CTL_ADD, timer_.get(), EPOLLIN, 0) ||
      !watch_for(waits_.get(), EPOLL_CTL_ADD, watched_.get(), EPOLLIN, 0) ||
      !watch_for(watched_.get(), EPOLL_CTL_ADD, socket_.get(), EPOLLIN, kListener)) {
    throw ConfigError("cannot watch for callers at " + listening_.text() + ": " +
                      std::strerror(errno) + "; raise the limit on open files (ulimit -n)");
  }
}

void Listener::expect(std::span<const Address> ranks) {
  for (const Address& one : ranks) hosts_.try_emplace(host_of(one));
  most_half_open_ = std::max(kMostHalfOpen, 2 * hosts_.size());
}

void Listener::expect_at_once(std::size_t callers) {
  most_half_open_ = std::max(kMostHalfOpen, 2 * callers);
  const auto extra = static_cast<std::int64_t>(callers) * kSavedPerCaller;
  budget_ = ProcessorBudget(kShare, kMostSaved + extra, Clock::now());
}

std::vector<Caller> Listener::ready() {
  std::vector<Caller> callers;
  const bool rests = is_resting();
  if (!rests) {
    turn_began_ = processor_time_();
    take_in();
    serve(callers);
  }
  const auto now = Clock::now();
  while (!half_open_.empty() && half_open_.begin()->second.deadline <= now) {
    drop(half_open_.begin());
  }
  if (!rests) {  // else an owner who looks again and again would prolong the rest
    budget_.spend(processor_time_() - turn_began_, now);
    if (const auto until = budget_.has_at(kTurn); until > now) rest(until);
  }
  set_timer();
  return callers;
}

bool Listener::is_resting() {
  if (rests_until_ == Clock::time_point()) return false;
  if (rests_until_ > Clock::now()) return true;
  watch_for(waits_.get(), EPOLL_CTL_MOD, watched_.get(), EPOLLIN, 0);
  rests_until_ = {};
  return false;
}

void Listener::rest(Clock::time_point until) {
  watch_for(waits_.get(), EPOLL_CTL_MOD, watched_.get(), 0, 0);
  rests_until_ = std::max(rests_until_, until);
}

void Listener::take_in() {
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof(from);
    UnforkedDescriptor socket([&] {
      return ::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from), &bytes,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (!socket) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return rest(Clock::now() + kPause);
      }
      continue;  // that one connection has failed (accept(2) lists how)
    }
    if (half_open_.size() == most_half_open_) make_room();
    const Address peer = Address::from(reinterpret_cast<sockaddr*>(&from)).value_or(Address());
    const auto host = hosts_.find(host_of(peer));
    Origin& origin = host == hosts_.end() ? strangers_ : host->second;
    ++origin.half_open;
    ++calls_;
    watch_for(watched_.get(), EPOLL_CTL_ADD, socket.get(), EPOLLIN, calls_);
    half_open_.emplace(
        calls_, HalfOpen{std::move(socket), {}, Clock::now() + limit_, peer, &origin, EPOLLIN});
  }
}

// D4. Half of an origin's places are for calls that have not been answered. Otherwise a flood could
// leave those with one place at a time.
void Listener::make_room() {
  const auto fuller = [](const auto& a, const auto& b) {
    return a.second.origin->half_open < b.second.origin->half_open;
  };
  const Origin* fullest =
      std::max_element(half_open_.begin(), half_open_.end(), fuller)->second.origin;
  const bool is_answered = fullest->answered * 2 > fullest->half_open;
  const auto goes = [&](const auto& one) {
    return one.second.origin == fullest && one.second.answered.has_value() == is_answered;
  };
  drop(std::find_if(half_open_.begin(), half_open_.end(), goes));
}

// D2, D3, D4.
void Listener::serve(std::vector<Caller>& callers) {
  std::vector<Place> due = find_due();
  std::shuffle(due.begin(), due.end(), random_);
  const auto turn = [](Place one) {
    return one->second.answered ? 0 : 1 + one->second.origin->last_turn;
  };
  do {
    if (due.empty()) return;
    const auto next = std::min_element(due.begin(), due.end(),
                                       [&](Place a, Place b) { return turn(a) < turn(b); });
    advance(*next, callers);
    due.erase(next);
  } while (processor_time_() - turn_began_ < kTurn);
}

// The connections from which something has arrived, or to which there is room to write.
std::vector<Listener::Place> Listener::find_due() {
  std::vector<epoll_event> events(1 + most_half_open_);
  const int count = epoll_wait(watched_.get(), events.data(), static_cast<int>(events.size()), 0);
  events.resize(static_cast<std::size_t>(std::max(count, 0)));
  std::vector<Place> due;
  for (const epoll_event& event : events) {
    const std::uint64_t number = event.data.u64;  // a copy, because the system packs events
    if (number != kListener) due.push_back(half_open_.find(number));
  }
  return due;
}

void Listener::advance(Place place, std::vector<Caller>& callers) {
  HalfOpen& one = place->second;
  if (!one.answered) {
    if (differs_in_tls(tls_ != nullptr, one.fd())) {
      ::send(one.fd(), kAlert.data(), kAlert.size(), MSG_NOSIGNAL);
      return refuse(place, tls_ != nullptr ? "the caller uses no TLS"
                                           : "the caller uses TLS, and this end does not");
    }
    one.answered = Exchange{Stream::accept(std::move(one.socket), tls_, suspect_after_),
                            Handshake::callee(key_, own_rank_, listening_)};
    ++one.origin->answered;
    one.origin->last_turn = ++turns_;
  }
  auto& [stream, handshake] = *one.answered;
  switch (handshake.advance(stream)) {
    case Handshake::Step::kWaiting:
      return watch(place);
    case Handshake::Step::kRefused:
      return handshake.is_dropped() ? drop(place) : refuse(place, handshake.reason());
    case Handshake::Step::kDone:
      const Address peer = one.peer;
      Exchange done = std::move(*take_out(place).answered);
      const Mac session_key = done.handshake.session_key(done.stream);
      callers.push_back({std::move(done.stream), done.handshake.introduction(), peer, session_key});
  }
}

void Listener::refuse(Place place, const std::string& reason) {
  ++refused_;
  last_refusal_ = place->second.peer.text() + ": " + reason;
  take_out(place);
}

void Listener::drop(Place place) {
  ++dropped_;
  take_out(place);
}

// The socket is taken out of epoll by hand: a process that is being forked may still have it open,
// and epoll would go on reporting it.
Listener::HalfOpen Listener::take_out(Place place) {
  HalfOpen one = std::move(place->second);
  half_open_.erase(place);
  --one.origin->half_open;
  if (one.answered) --one.origin->answered;
  watch_for(watched_.get(), EPOLL_CTL_DEL, one.fd(), 0, 0);
  return one;
}

void Listener::watch(Place place) {
  auto& [number, one] = *place;
  const auto& [stream, handshake] = *one.answered;
  const std::uint32_t events = handshake.wants_write() ? EPOLLOUT : EPOLLIN;
  if (events == one.events) return;
  watch_for(watched_.get(), EPOLL_CTL_MOD, stream.fd(), events, number);
  one.events = events;
}

void Listener::set_timer() {
  itimerspec when{};  // zeros: never
  auto next = rests_until_;
  const auto oldest = half_open_.begin();
  if (oldest != half_open_.end() &&
      (next == Clock::time_point() || oldest->second.deadline < next)) {
    next = oldest->second.deadline;
  }
  if (next != Clock::time_point()) {
    const auto wait =
        std::max(std::chrono::nanoseconds(1), std::chrono::nanoseconds(next - Clock::now()));
    when.it_value.tv_sec = wait / std::chrono::seconds(1);
    when.it_value.tv_nsec = (wait % std::chrono::seconds(1)).count();
  }
  timerfd_settime(timer_.get(), 0, &when, nullptr);  // also clears what the timer reported
}

}  // namespace dstorm::net
