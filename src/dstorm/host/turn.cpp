#include "dstorm/host/turn.hpp"

#include <sched.h>

#include <thread>

#include "dstorm/errors.hpp"

namespace dstorm {
namespace {

constexpr const char* kRule =
    "the calls of one job go one at a time: make them in one thread, or hold a lock of your own "
    "around each";

std::string name_of(const char* call, std::string_view of) {
  return of.empty() ? std::string(call) : std::string(call) + " of '" + std::string(of) + "'";
}

}  // namespace

Turns::Turns(Threads threads) : threads_(std::move(threads)), forks_(forks()) {}

// The first naps only yield: most work is over by then.
void Turns::nap(std::uint32_t naps) noexcept {
  constexpr std::uint32_t kYields = 16;
  constexpr std::chrono::microseconds kNap{50};
  const std::chrono::nanoseconds time = naps < kYields ? std::chrono::nanoseconds(0) : kNap;
  if (threads_.nap) {
    threads_.nap(time);
  } else if (time.count() == 0) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(time);
  }
}

void Turns::lock_slowly() noexcept {
  std::uintptr_t nobody = 0;
  for (std::uint32_t naps = 0;
       !busy_.compare_exchange_weak(nobody, self(), std::memory_order_acquire); nobody = 0) {
    nap(naps++);
  }
}

void Turns::check(const char* call, bool inside_wait) {
  if (is_forked()) return;
  if (has_turn() && inside_wait && code_ == Code::kInterrupt) return;
  const Turn turn(*this, call);
}

bool Turns::await_end(std::chrono::nanoseconds limit) {
  const auto start = std::chrono::steady_clock::now();
  const auto is_over = [this] {
    return is_forked() || has_turn() || owner_.load(std::memory_order_acquire) == 0;
  };
  for (std::uint32_t naps = 0; !is_over(); ++naps) {
    if (std::chrono::steady_clock::now() - start > limit) return false;
    nap(naps);
  }
  return true;
}

Turns::Pause::Pause(Turns& turns, std::optional<Code> code) noexcept
    : turns_(turns), is_own_(!turns.is_forked() && turns.has_turn()) {
  if (!is_own_) return;
  before_ = turns_.code_;
  turns_.code_ = code.value_or(before_);
  ends_ = turns_.is_busy();
  if (ends_) turns_.unlock();
}

Turns::Pause::~Pause() {
  if (!is_own_ || turns_.is_forked()) return;
  if (ends_) turns_.lock();
  turns_.code_ = before_;
}

Turns::Look::Look(Turns& turns) noexcept
    : turns_(turns), ends_(!turns.is_forked() && !turns.is_busy()) {
  if (ends_) turns_.lock();
}

// Refuses a call because another thread's call is in progress. This thread is busy when it enters.
void Turns::refuse_other(const char* call, std::string_view of) {
  const std::uintptr_t owner = owner_.load(std::memory_order_relaxed);
  const char* const others = call_.load(std::memory_order_relaxed);
  unlock();
  std::string thread = threads_.name ? threads_.name(owner) : "";
  if (!thread.empty()) thread = " (" + thread + ")";
  throw ConfigError(name_of(call, of) + ": another thread" + thread + " is in " + others +
                    ", which waits for other ranks or runs a function of yours; " + kRule);
}

void Turns::refuse_inside(const char* call, std::string_view of) const {
  const std::string what = name_of(call, of);
  const std::string in = call_.load(std::memory_order_relaxed);
  throw ConfigError(
      code_ == Code::kFold
          ? what + " inside the function that " + in + " of the same job runs; call it when " + in +
                " has returned"
          : what + " inside a signal handler or callback, in the middle of " + in +
                " of the same job, which waits; take a note there, and call it when " + in +
                " has returned");
}

}  // namespace dstorm
