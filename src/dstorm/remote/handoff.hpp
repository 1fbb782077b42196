// Which of two threads does the engine's work: the rank's own thread, or the engine's. The rank's
// thread is quicker while the rank scatters and waits, for nobody has to be woken; the engine's
// thread works while the rank computes.
//
// Invariants (sequentially consistent throughout):
//  E2 No work is forgotten. A thread that wants something done calls want(), and then does it if
//     the lock is free, or wakes the engine's thread if that sleeps. The engine's thread says that
//     it is about to sleep (the state), and then looks whether something is wanted. So either it
//     sees the wish, or the other thread sees that it sleeps.
//  E3 Nothing that the rank holds back is forgotten. The rank sets holds_back_, and then wakes the
//     engine's thread unless the state is kAwayBriefly, in which it will look soon by itself. The
//     engine's thread sets the state, and then looks at holds_back_. The thread that clears
//     holds_back_ sends all there is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "dstorm/host/descriptor.hpp"

namespace dstorm::remote {

class Handoff {
 public:
  // Of the engine's thread.
  enum class State : std::uint8_t {
    kWorking,      // has the lock
    kAsleep,       // until a connection has something, or something is wanted
    kAway,         // leaves the work to the rank, as long as the rank takes turns
    kAwayBriefly,  // the same for kHeldBack, to send then what the rank holds back
    kWoken,        // was in one of the three states before, and the alarm has been rung
    kQueued,       // waits for the lock
  };
  // The engine's thread sends after this time what the rank holds back.
  static constexpr std::chrono::nanoseconds kHeldBack{100'000};

  Handoff();
  // An eventfd, readable when the engine's thread is to wake; invalid if it could not be opened.
  const Descriptor& alarm() const noexcept { return alarm_; }
  void ring() noexcept;
  void hush() noexcept;  // the alarm is read
  State state() const noexcept { return state_.load(); }

  // Any thread.
  void want() noexcept { wanted_.store(true); }
  bool is_wanted() const noexcept { return wanted_.load(); }
  // The caller has the lock, and does now what is wanted. Returns whether anything was.
  bool take_wanted() noexcept { return wanted_.exchange(false); }
  // E2. Something is wanted that the engine's thread is to do.
  void wake() noexcept;
  // Whether a connection takes no more for now. Set with the lock.
  void set_blocked(bool is_blocked) noexcept { is_blocked_.store(is_blocked); }
  bool is_blocked() const noexcept { return is_blocked_.load(); }

  // The rank's thread.

  // E3. The rank has changed something that is to wait for more.
  void hold_back() noexcept;
  // The caller has the lock, and sends all there is. Returns whether anything was held back.
  bool take_held_back() noexcept { return holds_back_.load() && holds_back_.exchange(false); }
  // There is something to send before the rank sleeps, but not now.
  void note() noexcept { noted_.store(true, std::memory_order_relaxed); }
  // Whether something is held back here, or may lie in a socket.
  bool has_unsent() const noexcept { return holds_back_.load() || lags_.load(); }
  // The same, with the lock, for a caller that sends it.
  bool take_unsent() noexcept;
  // The rank takes in by itself what arrives.
  void note_poll() noexcept { polled_.store(true, std::memory_order_relaxed); }
  // The rank has sent or taken in by itself, with the lock. end_send() is for one who has sent.
  void end_turn() noexcept { turns_.fetch_add(1); }
  void end_send(bool may_lag) noexcept;
  // Whether the engine's thread leaves the work to the rank.
  bool is_away() const noexcept { return is_away(state_.load()); }
  // The rank goes to sleep. Returns whether it has something to send before that.
  bool has_to_send() noexcept;
  void rest() noexcept;

  // The engine's thread.

  // Whether the rank takes turns, or has something held back, so that the thread should stay away.
  bool is_rank_active(bool in_burst) noexcept;
  // Leaves the work to the rank for `limit` at most. Ends when the rank takes no more turns, when
  // something is wanted, or at the alarm. `in_burst`: the rank held something back before the last
  // turn.
  void stay_away(bool in_burst, std::chrono::nanoseconds limit) noexcept;
  // E2, E3. The thread is about to sleep. Returns whether it may: nothing is to be done.
  bool fall_asleep() noexcept;
  void wait_for_lock() noexcept { state_.store(State::kQueued); }
  // The thread has the lock, and does all there is. Returns whether the rank held something back.
  bool begin_work() noexcept;

 private:
  static bool is_away(State state) noexcept {
    return state == State::kAway || state == State::kAwayBriefly;
  }
  static bool is_sleep(State state) noexcept { return state == State::kAsleep || is_away(state); }
  bool rouse_from(State state) noexcept;

  const Descriptor alarm_;
  std::atomic<State> state_{State::kWorking};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> noted_{false};       // something is to be sent when there is time
  std::atomic<bool> holds_back_{false};  // the rank has something that it has not sent yet
  std::atomic<bool> lags_{false};        // something may still lie in a socket
  std::atomic<bool> polled_{false};      // the rank has polled since the thread last looked
  std::atomic<bool> is_blocked_{false};
  std::atomic<std::uint64_t> turns_{0};  // times the rank has sent or taken in by itself
};

}  // namespace dstorm::remote
