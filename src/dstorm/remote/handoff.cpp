#include "dstorm/remote/handoff.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

namespace dstorm::remote {

Handoff::Handoff() : alarm_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Handoff::ring() noexcept { eventfd_write(alarm_.get(), 1); }

void Handoff::hush() noexcept {
  eventfd_t value = 0;
  eventfd_read(alarm_.get(), &value);
}

// Of several callers, one rings. A caller that finds another state need not ring: the thread has
// changed the state since, and looks at everything after that (E2, E3); or another caller rings.
bool Handoff::rouse_from(State state) noexcept {
  if (!state_.compare_exchange_strong(state, State::kWoken)) return false;
  ring();
  return true;
}

void Handoff::wake() noexcept {
  want();
  if (const State state = state_.load(); is_sleep(state)) rouse_from(state);
}

void Handoff::hold_back() noexcept {
  holds_back_.store(true);
  const State state = state_.load();
  if (state == State::kAsleep || state == State::kAway) rouse_from(state);
}

bool Handoff::take_unsent() noexcept {
  const bool was_held_back = take_held_back();
  return (lags_.load() && lags_.exchange(false)) || was_held_back;
}

// A connection that is blocked is watched by the engine's thread, unless that looks soon anyway.
void Handoff::end_send(bool may_lag) noexcept {
  lags_.store(may_lag);
  end_turn();
  if (is_blocked_.load()) rouse_from(State::kAway);
}

bool Handoff::has_to_send() noexcept {
  return noted_.exchange(false, std::memory_order_relaxed) || has_unsent();
}

void Handoff::rest() noexcept {
  polled_.store(false, std::memory_order_relaxed);
  for (State state = state_.load(); is_away(state); state = state_.load()) {
    if (rouse_from(state)) return;
  }
}

bool Handoff::is_rank_active(bool in_burst) noexcept {
  return polled_.exchange(false, std::memory_order_relaxed) || in_burst || holds_back_.load();
}

void Handoff::stay_away(bool in_burst, std::chrono::nanoseconds limit) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + limit;
  pollfd alarm{alarm_.get(), POLLIN, 0};
  for (bool is_rank_at_it = true; is_rank_at_it;) {
    const std::uint64_t before = turns_.load();
    state_.store(State::kAway);  // E2, E3: before the looks
    const bool is_brief = in_burst || holds_back_.load() || is_blocked_.load();
    if (is_brief) state_.store(State::kAwayBriefly);
    const auto left =
        std::max(std::chrono::nanoseconds(end - Clock::now()), std::chrono::nanoseconds::zero());
    const std::int64_t nap_ns = is_brief ? kHeldBack.count() : left.count();
    const timespec nap{nap_ns / 1'000'000'000, nap_ns % 1'000'000'000};
    if (wanted_.load() || ppoll(&alarm, 1, &nap, nullptr) != 0) break;
    is_rank_at_it = turns_.load() != before && Clock::now() < end;
  }
}

bool Handoff::fall_asleep() noexcept {
  state_.store(State::kAsleep);
  return !wanted_.load() && !holds_back_.load();
}

bool Handoff::begin_work() noexcept {
  state_.store(State::kWorking);
  wanted_.store(false);
  return holds_back_.exchange(false);
}

}  // namespace dstorm::remote
