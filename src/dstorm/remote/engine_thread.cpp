// The loops of the engine's two threads. run() is the engine's thread: it sleeps until a connection
// has something, the rank asks for work, or a tick is over. It then takes in from every downlink,
// sends by every uplink (pump()), and looks after the connections: tend() sends heartbeats and ends
// silent connections once a tick, settle() removes connections that have ended, begins probes of
// ranks that may have died, and calls again. While the rank polls by itself, the thread stays
// away (handoff.hpp). run_listener() is the other thread: it lets callers in that have proved the
// job's key.
#include "dstorm/remote/engine.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace dstorm::remote {
namespace {

using std::chrono::nanoseconds;

// The time between two calls to a host that does not answer.
constexpr std::chrono::milliseconds kRedial{20};
// How long the engine's thread keeps away while the rank polls. Arrivals may lie unread for so long
// when the rank stops polling. The time is longer if they are for this rank alone.
constexpr nanoseconds kAway{500'000};
constexpr nanoseconds kAwayAlone{5'000'000};

}  // namespace

void Engine::run() {
  const auto tick = std::clamp<nanoseconds>(
      settings_.suspect_after / 16, std::chrono::milliseconds(1), std::chrono::milliseconds(100));
  nanoseconds limit = tick;
  bool is_busy = false;
  bool in_burst = false;  // the rank held something back before the last turn
  std::array<epoll_event, 64> events;
  for (;;) {
    const bool is_rank_active = handoff_.is_rank_active(in_burst);
    if (is_rank_active) {
      handoff_.stay_away(in_burst, control_.locals().size() == 1 ? kAwayAlone : kAway);
    }
    const bool is_idle = handoff_.fall_asleep();
    const bool wait = is_idle && !is_busy && !is_rank_active;
    const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 wait ? static_cast<int>(limit_ms) : 0);
    handoff_.wait_for_lock();
    const std::lock_guard lock(mutex_);
    in_burst = handoff_.begin_work();
    if (stop_) return;
    const auto now = Clock::now();
    for (int i = 0; i < count; ++i) {
      if (events[static_cast<std::size_t>(i)].data.fd == handoff_.alarm().get()) handoff_.hush();
      if (!adapter_ || events[static_cast<std::size_t>(i)].data.fd != adapter_->event_fd())
        continue;
      if (!adapter_->take_events()) {
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, adapter_->event_fd(), nullptr);
      }
    }
    is_busy = false;
    for (Downlink& one : downlinks_) {
      is_busy = take_in(one, true, now) >= Downlink::kTurn || one.is_at_work() || is_busy;
    }
    listened_.store(now);
    pump(now, true);
    if (now - last_tend_ >= tick) tend(now);
    settle(now);
    const bool is_soon =
        !probes_.empty() || std::any_of(downlinks_.begin(), downlinks_.end(),
                                        [](const Downlink& one) { return one.is_held_up(); });
    limit = is_soon ? std::min<nanoseconds>(tick, Probes::kFirstPatience) : tick;
  }
}

void Engine::add_to_epoll(int fd, std::uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Engine::call(Uplink& uplink, Clock::time_point now) {
  if (uplink.call(++calls_, now)) add_to_epoll(uplink.fd(), EPOLLIN | EPOLLOUT | EPOLLET);
}

// The listener has a thread of its own. A handshake takes as long as sending many updates, and the
// scheduler would hold that time against the engine's thread. The lock is taken only to add callers
// that have been let in.
void Engine::run_listener() {
  std::array<pollfd, 2> wait{{{listener_->fd(), POLLIN, 0}, {listener_stops_.get(), POLLIN, 0}}};
  while (wait[1].revents == 0) {
    if (std::vector<net::Caller> callers = listener_->ready(); !callers.empty())
      let_in(std::move(callers));
    ::poll(wait.data(), wait.size(), -1);
  }
}

// Callers that it does not keep are closed.
void Engine::let_in(std::vector<net::Caller> callers) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (net::Caller& caller : callers) {
    const auto rank = static_cast<int>(caller.introduction.rank);
    const bool is_known = rank >= 0 && rank < control_.size() && !control_.is_local(rank);
    if (!is_known || !control_.is_live(rank)) continue;                             // closes it
    if (caller.introduction.number <= control_.member(rank).link.load()) continue;  // an old call
    Downlink& downlink = downlinks_.emplace_back(
        control_, settings_, std::make_shared<net::Stream>(std::move(caller.stream)),
        caller.introduction, now);
    downlink.watch(is_watched(rank), now);
    add_to_epoll(downlink.fd(), EPOLLIN | EPOLLOUT | EPOLLET);
    for (Uplink& one : uplinks_) {
      if (one.state() != Uplink::State::kAwaiting || one.proxy() != rank) continue;
      downlink.join(one);
      one.share(downlink, ++calls_, now);
    }
  }
  handoff_.wake();  // their first frames may have come
}

// The rank of `host` with which this rank shares a connection, or -1: each is the first proxy of
// the other. The lower of the two ranks calls, for both.
int Engine::shares_with(const std::vector<int>& host) const {
  const int proxy = host[first_proxy(control_.rank(), host)];
  const std::vector<int>& locals = control_.locals();
  const bool is_mutual = locals[first_proxy(proxy, locals)] == control_.rank();
  return is_mutual && !goes_by_adapter(proxy) && control_.is_live(proxy) ? proxy : -1;
}

// The rank that this one has called now speaks over the same connection.
void Engine::share(Uplink& uplink, Clock::time_point now) {
  const std::optional<Uplink::Shared> shared = uplink.take_shared();
  if (!shared) return;
  if (shares_with(uplink.host()) != uplink.proxy() || uplink.proxy() < control_.rank()) {
    return uplink.partner_is_over(false, "wants to share a connection that is not shared");
  }
  Downlink& downlink = downlinks_.emplace_back(control_, settings_, uplink.stream(), shared->call,
                                               now, shared->unparsed, shared->frame_bytes);
  downlink.watch(is_watched(downlink.sender()), now);
  downlink.join(uplink);
  uplink.join(downlink);
  handoff_.wake();  // more may have come
}

// E4. A segment that this rank has closed stays in closing_ until it can be removed.
void Engine::take_changes() {
  changed_segments_.take([this](const std::shared_ptr<Attachment>& changed) {
    if (!attachments_.contains(changed->id))
      return;  // it was not made after all, or all ranks have closed it
    for (Uplink& one : uplinks_) one.note(changed);
    if (!changed->memory->has_gone(control_.rank())) return;
    if (!std::exchange(changed->is_closing, true)) closing_.push_back(changed);
  });
}

std::uint64_t Engine::looks() {
  const std::lock_guard lock(mutex_);
  std::uint64_t looks = looks_;
  for (const Uplink& one : uplinks_) looks += one.looks();
  return looks;
}

void Engine::pump(Clock::time_point now, bool with_answers, bool may_lag) {
  take_changes();
  for (Uplink& one : uplinks_) {
    const int before = one.adapter_fd();
    one.pump(attachments_, leaving_, with_answers, may_lag, now);
    if (one.adapter_fd() != before) add_to_epoll(one.adapter_fd(), EPOLLIN | EPOLLET);
    share(one, now);
  }
  handoff_.set_blocked(std::any_of(uplinks_.begin(), uplinks_.end(),
                                   [](const Uplink& one) { return one.is_blocked(); }));
}

// Removes connections that have ended, and calls again where one was lost.
void Engine::settle(Clock::time_point now) {
  for (auto one = downlinks_.begin(); one != downlinks_.end();) {
    if (one->end() == Downlink::End::kDisconnected) probes_.begin(one->sender(), true, now);
    if (one->end() == Downlink::End::kBroken) turn_away(one->sender());
    if (one->end() == Downlink::End::kRefused && goes_by_adapter(one->sender())) {
      refusals_[one->sender()] = one->reason();
    }
    one = one->end() == Downlink::End::kNot ? std::next(one) : downlinks_.erase(one);
  }
  for (Uplink& one : uplinks_) {
    if (const auto proxy = one.take_disconnected()) probes_.begin(*proxy, false, now);
  }
  probe(now);
  for (Uplink& one : uplinks_) {
    unreached_since_[static_cast<std::size_t>(control_.host_of(one.host()[0]))].store(
        one.down_since().value_or(kReached));
    if (is_out()) one.hang_up();
    if (is_out() || one.state() != Uplink::State::kOver || now - one.last_call() < kRedial) {
      continue;
    }
    call(one, now);
  }
  changed_.notify_all();
}

// Whether the others go on without this rank.
bool Engine::is_out() const { return control_.is_left_out(control_.rank()); }

void Engine::tend(Clock::time_point now) {
  if (now - last_tend_ > settings_.suspect_after) back_at_ = now;
  last_tend_ = now;
  for (Uplink& one : uplinks_) one.tend(now);
  erase_closed();
  for (Downlink& one : downlinks_) {
    one.tend(attachments_, detached_, settings_.suspect_after, now);
    if (one.end() == Downlink::End::kNot && one.has_adapter()) refusals_.erase(one.sender());
  }
}

// Removes segments that no rank of this host uses any more, and of which no other host needs
// anything.
void Engine::erase_closed() {
  looks_ += closing_.size();
  std::erase_if(closing_, [&](const std::shared_ptr<Attachment>& attachment) {
    const bool is_needed_here =
        std::any_of(control_.locals().begin(), control_.locals().end(),
                    [&](int r) { return control_.is_live(r) && !attachment->memory->has_gone(r); });
    if (is_needed_here || !std::all_of(uplinks_.begin(), uplinks_.end(), [&](Uplink& one) {
          return one.is_done_with(*attachment);
        })) {
      return false;
    }
    erase(attachment->id);
    return true;
  });
}

bool Engine::is_watched(int rank) const {
  return watched_[static_cast<std::size_t>(control_.host_of(rank))];
}

void Engine::watch(std::vector<bool> hosts) noexcept {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  watched_ = std::move(hosts);
  for (Uplink& one : uplinks_) one.watch(is_watched(one.host()[0]), now);
  for (Downlink& one : downlinks_) one.watch(is_watched(one.sender()), now);
}

void Engine::note_end(int rank) noexcept {
  std::atomic<bool>& is_noted = ended_elsewhere_[static_cast<std::size_t>(rank)];
  if (is_noted.exchange(true)) return;
  has_ended_elsewhere_.store(true);
  handoff_.wake();
}

void Engine::probe(Clock::time_point now) {
  if (has_ended_elsewhere_.exchange(false)) {
    for (int r = 0; r < control_.size(); ++r) {
      if (ended_elsewhere_[static_cast<std::size_t>(r)].load()) probes_.note_end(r, now);
    }
  }
  if (!probes_.step(was_away(now), now)) return;
  control_.ring(control_.locals());
  eventfd_write(news_, 1);
}

// Whether this rank was stopped for so long that the others may have evicted it.
bool Engine::was_away(Clock::time_point now) const {
  return now - last_tend_ > settings_.suspect_after ||
         (back_at_ && now - *back_at_ <= settings_.suspect_after);
}

// Takes nothing more from a rank that has broken the protocol. The others will come to suspect it,
// or see the same.
void Engine::turn_away(int rank) {
  if (control_.mark(rank, host::State::kEvicted)) control_.ring(control_.locals());
}

}  // namespace dstorm::remote
