// Waiting that sleeps. Every rank has one doorbell in shared memory; whoever changes something that
// rank may be waiting for rings it, which costs one load unless the rank is asleep.
//
// The doorbell is a futex word whose lowest bit says "asleep". No wake-up is lost:
//  W1 the waiter sets the bit (read-modify-write, sequentially consistent), and then looks at its
//     condition once more before it sleeps on the value it set;
//  W2 the ringer makes its change visible, passes a sequentially consistent fence, then loads the
//     word: either it sees the bit and wakes, or the waiter's second look sees the change;
//  W3 of several ringers one clears the bit, and wakes. Should it die in between, the others take the
//     owner for awake: so whoever goes on after a death wakes without asking for the bit.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dstorm/host/turn.hpp"

namespace dstorm {

using Clock = std::chrono::steady_clock;

struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> word;
};

// Wakes the owner of the doorbell if it sleeps. The caller has passed a sequentially consistent
// fence since the change (W2): one fence serves any number of rings.
void ring(Doorbell& bell) noexcept;
// Wakes the owner also if another has undertaken to (W3). Needs no fence.
void rouse(Doorbell& bell) noexcept;

// What a rank that waits may do in the meantime for what it waits for.
class Work {
 public:
  virtual ~Work() = default;
  // Again and again, while it is awake: true if that brought something forward.
  virtual bool poll() noexcept = 0;
  virtual void rest() noexcept = 0;  // it goes to sleep
};

using Missed = std::function<std::string()>;

class Waiter {
 public:
  // `spin`: burn up to this long before yielding the core; zero where ranks outnumber cores.
  // `interrupt` is called now and then while waiting, at the latest 0.2 s after a signal, and may
  // throw.
  // So it is, at once, when the owner is rung after `alarm` has been set, and while it is; and once,
  // when it is rung after call_soon().
  Waiter(Doorbell& own, std::chrono::nanoseconds spin, const std::atomic<std::uint32_t>& alarm,
         std::function<void()> interrupt)
      : own_(&own), spin_(spin), alarm_(&alarm), interrupt_(std::move(interrupt)) {}
  // `work` outlives the waits.
  void lend_a_hand(Work& work) noexcept { work_ = &work; }
  // A wait that has lasted for `after` says so once: what it misses, and for how long it goes on.
  // `tell` may not throw.
  void tell_when_slow(std::chrono::nanoseconds after,
                      std::function<void(const std::string&)> tell) {
    slow_after_ = after;
    tell_ = std::move(tell);
  }
  // Who sleeps is not busy. `turns` outlive the waits.
  void give_way(Turns& turns) noexcept { turns_ = &turns; }

  // Until ready() is true: returns true. Past the time limit: returns ready() once more.
  // ready() must be a cheap look at memory whose writers ring this doorbell; if they do not
  // (`silent`: a network adapter), it is looked at again and again, ever less often. `missed` says
  // what is waited for: "barrier: rank 2 did not come".
  template <class Ready>
  bool until(Ready&& ready, std::chrono::nanoseconds limit, bool silent = false,
             const Missed& missed = nullptr) {
    if (ready()) return true;
    ++waits_;
    Patience patience(*this, limit, silent, missed);
    for (;;) {
      while (patience.awake()) {
        const bool moved = work_ != nullptr && work_->poll();
        if (ready()) return true;
        if (moved) patience.renew();
      }
      if (work_ != nullptr) work_->rest();
      const std::uint32_t asleep = own_->word.fetch_or(1, std::memory_order_seq_cst) | 1;  // W1
      if (ready()) {
        own_->word.fetch_and(~std::uint32_t{1}, std::memory_order_relaxed);
        return true;
      }
      if (!patience.sleep(asleep)) return ready();
    }
  }

  // Any thread.
  void call_soon() noexcept { is_called_.store(true, std::memory_order_seq_cst); }

  // Calls of until() that had to wait.
  std::uint64_t waits() const noexcept { return waits_; }
  // Time spent in until() beyond the first look.
  std::chrono::nanoseconds waited() const noexcept { return waited_; }

 private:
  // The stages of one wait: spin, yield, sleep.
  class Patience {
   public:
    Patience(Waiter& waiter, std::chrono::nanoseconds limit, bool silent, const Missed& missed);
    ~Patience();
    bool awake();                      // true: look again; false: time to sleep
    void renew() noexcept;             // it is not in vain to stay awake
    bool sleep(std::uint32_t asleep);  // false: the time is up

   private:
    void tell(Clock::time_point now);

    Waiter& waiter_;
    const Missed& missed_;
    bool is_told_ = false;
    Clock::time_point start_, deadline_, looked_at_signals_, awake_since_;
    std::chrono::nanoseconds spin_;
    std::chrono::nanoseconds nap_;  // the next one, if nobody rings
    bool silent_;
    std::uint32_t looks_ = 0;
    std::uint32_t yields_ = 0;
  };

  Doorbell* own_;
  std::chrono::nanoseconds spin_;
  const std::atomic<std::uint32_t>* alarm_;
  std::function<void()> interrupt_;
  std::atomic<bool> is_called_{false};
  Work* work_ = nullptr;
  Turns* turns_ = nullptr;
  std::chrono::nanoseconds slow_after_{};
  std::function<void(const std::string&)> tell_;
  std::uint64_t waits_ = 0;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace dstorm
