#include "dstorm/host/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <string>

#include "dstorm/errors.hpp"

namespace dstorm {
namespace {

// Yields before the sleep. They are enough for every rank of a crowded host to run once, so a round
// among runnable ranks costs context switches and no futex calls; and few enough to be no load.
constexpr std::uint32_t kYields = 64;
// The longest sleep without a look at signals.
constexpr std::chrono::milliseconds kNap{200};
// A wait that polls yields for kPollYields, because a sleep does not end to the microsecond. Then
// its naps double from kFirstNap to kPollNap.
constexpr std::chrono::milliseconds kPollYields{1};
constexpr std::chrono::microseconds kFirstNap{20};
constexpr std::chrono::milliseconds kPollNap{1};
// A yield that takes longer than kLongYield has mostly given the core to a program that computes:
// ranks that only wait yield back much sooner. A sleep ends at once when another rank rings,
// because the scheduler lets a thread that has used less than its share of the core run first. So
// where such yields are three quarters of the last kJudged that yields have taken, waits do without
// them for kShun times as long, and what they try of them costs a fiftieth of the time. If this
// process was stopped, or the whole machine, a yield takes as long as that, which says nothing
// about later ones: hence kMostLost.
constexpr std::chrono::milliseconds kLongYield{1};
constexpr std::chrono::milliseconds kJudged{16};
constexpr std::chrono::milliseconds kMostLost{20};
constexpr int kShun = 50;
// Looks between two readings of the clock.
constexpr std::uint32_t kLooks = 32;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
          const timespec* limit) {
  // The kernel wants the address of the word itself. std::atomic<uint32_t> is that word and no
  // more.
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  return static_cast<int>(syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation,
                                  value, limit, nullptr, 0));
}

}  // namespace

void ring(Doorbell& bell) noexcept {
  std::uint32_t word = bell.word.load(std::memory_order_seq_cst);
  if ((word & 1) == 0) return;
  // The new value differs from the value slept on, so a waiter between W1 and the futex call does
  // not fall asleep.
  if (bell.word.compare_exchange_strong(word, (word + 2) & ~std::uint32_t{1})) {
    futex(bell.word, FUTEX_WAKE, 1, nullptr);
  }
}

void rouse(Doorbell& bell) noexcept {
  // Either the waiter sets the bit after this addition, and then sees the change when it looks at
  // its condition; or the value on which it is about to sleep has been changed by this addition.
  bell.word.fetch_add(2, std::memory_order_seq_cst);
  futex(bell.word, FUTEX_WAKE, 1, nullptr);
}

Waiter::Patience::Patience(Waiter& waiter, std::chrono::nanoseconds limit, bool polls,
                           const Missed& missed)
    : waiter_(waiter),
      missed_(missed),
      start_(Clock::now()),
      looked_at_signals_(start_),
      awake_since_(start_),
      spin_(std::min(waiter.spin_, limit)),
      nap_(kNap),
      polls_(polls) {
  if (polls) nap_ = kFirstNap;
  // A limit beyond the range of the clock means "no limit".
  const auto most = Clock::time_point::max() - start_;
  deadline_ = limit >= most ? Clock::time_point::max() : start_ + limit;
  if (waiter.recorder_ != nullptr) waiter.recorder_->wait_began(Recorder::to_time(start_));
}

Waiter::Patience::~Patience() {
  const auto now = Clock::now();
  waiter_.waited_ += now - start_;
  if (waiter_.recorder_ != nullptr) waiter_.recorder_->wait_ended(Recorder::to_time(now));
}

bool Waiter::Patience::awake() {
  if (!polls_ && start_ < waiter_.sleeps_until_) return false;
  if (spin_ > std::chrono::nanoseconds::zero()) {
    // The first looks cost nothing. After them the wait yields in between: if the rank that it
    // waits for has been put on the same core, that rank runs at once.
    if (++looks_ < kLooks) {
      pause_cpu();
    } else {
      yield();
      if (looks_ % kLooks == 0 && Clock::now() - awake_since_ >= spin_) spin_ = {};
    }
    return true;
  }
  if (polls_ ? Clock::now() - awake_since_ >= kPollYields : yields_ >= kYields) return false;
  ++yields_;
  yield();
  return true;
}

void Waiter::Patience::yield() noexcept {
  const auto before = Clock::now();
  sched_yield();
  const auto now = Clock::now();
  const std::chrono::nanoseconds took = now - before;
  std::chrono::nanoseconds& yielded = waiter_.yielded_;
  std::chrono::nanoseconds& lost = waiter_.lost_;
  yielded += took;
  if (took >= kLongYield) lost += took;
  if (yielded < kJudged) return;
  if (lost > yielded * 3 / 4) {
    waiter_.sleeps_until_ = now + kShun * std::min<std::chrono::nanoseconds>(lost, kMostLost);
  }
  yielded = lost = {};
}

void Waiter::Patience::renew() noexcept {
  const auto now = Clock::now();
  if (now >= deadline_ || now - looked_at_signals_ >= kNap || waiter_.is_called_.load() ||
      waiter_.alarm_->load() != 0) {
    // sleep() deals with this, once the wait is no longer awake.
    return;
  }
  awake_since_ = now;
  spin_ = std::min<std::chrono::nanoseconds>(waiter_.spin_, deadline_ - now);
  looks_ = yields_ = 0;
}

bool Waiter::Patience::sleep(std::uint32_t asleep) {
  std::optional<Turns::Pause> pause;
  if (waiter_.turns_ != nullptr) pause.emplace(*waiter_.turns_);
  const bool is_called = waiter_.is_called_.exchange(false, std::memory_order_seq_cst);  // W1
  if ((is_called || waiter_.alarm_->load(std::memory_order_seq_cst) != 0) && waiter_.interrupt_) {
    waiter_.interrupt_();
    return true;
  }
  const auto now = Clock::now();
  if (now >= deadline_) return false;
  if (!is_told_ && waiter_.tell_ && missed_ && now - start_ >= waiter_.slow_after_) tell(now);
  const auto nap = std::min<std::chrono::nanoseconds>(deadline_ - now, nap_);
  if (polls_) nap_ = std::min<std::chrono::nanoseconds>(nap_ * 2, kPollNap);
  const timespec limit{static_cast<std::time_t>(nap.count() / 1'000'000'000),
                       static_cast<long>(nap.count() % 1'000'000'000)};
  const bool woken = futex(waiter_.own_->word, FUTEX_WAIT, asleep, &limit) == 0 || errno == EAGAIN;
  // A signal came, or the last look at signals was long enough ago.
  if ((!woken && (errno == EINTR || !polls_)) || now - looked_at_signals_ >= kNap) {
    looked_at_signals_ = now;
    if (waiter_.interrupt_) waiter_.interrupt_();
  }
  return true;
}

void Waiter::Patience::tell(Clock::time_point now) {
  is_told_ = true;
  std::string text = missed_() + " within " + format_seconds(now - start_);
  if (deadline_ != Clock::time_point::max()) {
    text += "; this rank waits on, for up to " + format_seconds(deadline_ - start_);
  }
  waiter_.tell_(text);
}

}  // namespace dstorm
