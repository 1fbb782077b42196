// Waits that sleep. Every rank has one doorbell in shared memory. A process that changes something
// for which the rank may be waiting rings it, which costs one load unless the rank is asleep.
//
// The doorbell is a futex word whose lowest bit says "asleep". No wake-up is lost:
//  W1 The waiter sets the bit (read-modify-write, sequentially consistent), passes a sequentially
//     consistent fence, and then looks at its condition once more before it sleeps on the value it
//     set. Without the fence, processors with weak ordering (ARM) may look before others can see
//     the bit.
//  W2 The ringer makes its change visible, passes a sequentially consistent fence, and then loads
//     the word. Either it sees the bit and wakes the waiter, or the waiter's second look sees the
//     change.
//  W3 Of several ringers, one clears the bit and wakes. If it dies in between, the others believe
//     that the owner is awake. So a process that acts on a death wakes without looking at the bit
//     (rouse).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dstorm/deadline.hpp"
#include "dstorm/host/turn.hpp"
#include "dstorm/recorder/recorder.hpp"

namespace dstorm {

struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> word;
};

// Wakes the owner of the doorbell if it sleeps. The caller has passed a sequentially consistent
// fence since its change (W2); one fence serves any number of rings.
void ring(Doorbell& bell) noexcept;
// Wakes the owner even if another process has cleared the bit and was going to wake it (W3). Needs
// no fence.
void rouse(Doorbell& bell) noexcept;

// Work that a waiting rank may do to bring about what it waits for.
class Work {
 public:
  virtual ~Work() = default;
  // Called again and again while the rank is awake. Returns true if it made progress.
  virtual bool poll() noexcept = 0;
  // The rank goes to sleep.
  virtual void rest() noexcept = 0;
};

using Missed = std::function<std::string()>;

// Given to a wait if it is not known which rank it waits for.
struct AnyRank {
  int operator()() const noexcept { return -1; }
};

class Waiter {
 public:
  // `spin`: the wait burns the core for up to this long before it yields; zero where ranks
  // outnumber cores. A wait calls `interrupt` now and then, at the latest 0.2 s after a signal. It
  // also calls `interrupt` at once when the owner is rung while `alarm` is set, and once when the
  // owner is rung after call_soon(). `interrupt` may throw, which ends the wait.
  Waiter(Doorbell& own, std::chrono::nanoseconds spin, const std::atomic<std::uint32_t>& alarm,
         std::function<void()> interrupt)
      : own_(&own), spin_(spin), alarm_(&alarm), interrupt_(std::move(interrupt)) {}
  // Lets waits do `work`, which must outlive them.
  void lend_a_hand(Work& work) noexcept { work_ = &work; }
  // A wait that has lasted for `after` calls `tell` once, with a text that says what it is waiting
  // for and for how much longer. `tell` may not throw.
  void tell_when_slow(std::chrono::nanoseconds after,
                      std::function<void(const std::string&)> tell) {
    slow_after_ = after;
    tell_ = std::move(tell);
  }
  // Makes a wait give up being busy while it sleeps. `turns` must outlive the waits.
  void give_way(Turns& turns) noexcept { turns_ = &turns; }
  // Records each wait. `recorder` may be null, and must outlive the waits.
  void record_in(Recorder* recorder) noexcept { recorder_ = recorder; }

  // Waits until ready() is true, and returns true; past the time limit, returns ready() once more.
  // ready() must be a cheap look at memory whose writers ring this doorbell. If they do not ring it
  // (`polls`: a network adapter writes), the wait looks again and again, ever less often. `missed`
  // gives the text that says what is being waited for: "barrier: rank 2 did not come". After a
  // ready() that returned false, `missing` gives a rank that is being waited for, or -1.
  template <class Ready, class Missing = AnyRank>
  bool until(Ready&& ready, std::chrono::nanoseconds limit, bool polls = false,
             const Missed& missed = nullptr, const Missing& missing = {}) {
    if (ready()) return true;
    ++waits_;
    Patience patience(*this, limit, polls, missed);
    const auto note_missing = [&] {
      if (recorder_ != nullptr) recorder_->waits_for(missing());
    };
    note_missing();
    for (;;) {
      while (patience.awake()) {
        const bool moved = work_ != nullptr && work_->poll();
        if (ready()) return true;
        note_missing();
        if (moved) patience.renew();
      }
      if (work_ != nullptr) work_->rest();
      const std::uint32_t asleep = own_->word.fetch_or(1, std::memory_order_seq_cst) | 1;  // W1
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (ready()) {
        own_->word.fetch_and(~std::uint32_t{1}, std::memory_order_relaxed);
        return true;
      }
      note_missing();
      if (!patience.sleep(asleep)) return ready();
    }
  }

  // Makes the next sleep call `interrupt` instead. Any thread may call it.
  void call_soon() noexcept { is_called_.store(true, std::memory_order_seq_cst); }

  // The number of calls of until() that had to wait.
  std::uint64_t waits() const noexcept { return waits_; }
  // The time spent in until() after the first look.
  std::chrono::nanoseconds waited() const noexcept { return waited_; }

 private:
  // The stages of one wait: it spins, then yields, then sleeps. It sleeps at once if the core is
  // wanted by a program that computes.
  class Patience {
   public:
    Patience(Waiter& waiter, std::chrono::nanoseconds limit, bool polls, const Missed& missed);
    ~Patience();
    bool awake();                      // true: look again; false: time to sleep
    void renew() noexcept;             // there was progress, so it stays awake longer
    bool sleep(std::uint32_t asleep);  // false: the time is up

   private:
    void yield() noexcept;
    void tell(Clock::time_point now);

    Waiter& waiter_;
    const Missed& missed_;
    bool is_told_ = false;
    Clock::time_point start_, deadline_, looked_at_signals_, awake_since_;
    std::chrono::nanoseconds spin_;
    std::chrono::nanoseconds nap_;  // the length of the next sleep, if no ring ends it
    bool polls_;
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
  Recorder* recorder_ = nullptr;
  std::chrono::nanoseconds slow_after_{};
  std::function<void(const std::string&)> tell_;
  std::uint64_t waits_ = 0;
  std::chrono::nanoseconds waited_{0};
  // The time that yields have taken lately, and that of the long ones among them.
  std::chrono::nanoseconds yielded_{0}, lost_{0};
  Clock::time_point sleeps_until_{};  // yields cost too much: until then waits do not yield
};

}  // namespace dstorm
