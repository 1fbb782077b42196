// Turns: the calls of one job go one at a time, whichever threads make them.
//
// A group, its segments and the layers above share state that has no locks. So each call begins
// with a Turn. While a call works, its thread is `busy`, and other threads wait for it; that is
// short. While the call waits for other ranks, or runs a function of the user's, its thread is not
// busy but keeps the turn. A call of another thread then throws ConfigError, because it might have
// to wait for long, or for ever. So does a call that a user's function makes in the middle of the
// call that runs it.
//
//  T1 Only a thread that has made the job busy touches state of the job.
//  T2 owner_ is the thread whose call is in progress. It changes only while the job is busy.
//  T3 No thread is busy while it waits for other ranks or runs code of the user's. So a thread that
//     wants to be busy soon is.
//
// In a forked child all of this does nothing, because no call of the job works there.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "dstorm/host/fork.hpp"

namespace dstorm {

class Turns {
 public:
  // Functions of the program's language that know its threads. Neither may throw.
  struct Threads {
    std::function<std::string(std::uintptr_t)> name;    // of the thread with this pthread_t, or ""
    std::function<void(std::chrono::nanoseconds)> nap;  // naps in a thread that waits to be busy
  };
  explicit Turns(Threads threads = {});
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // The kind of code that the thread with the turn runs.
  enum class Code : std::uint8_t {
    // The library's: it may begin further calls, as parts of the one in progress.
    kOwn,
    // The user's, in the middle of a gather or scatter.
    kFold,
    // The user's, in the middle of a wait.
    kInterrupt
  };

  // Throws ConfigError if a call could not begin now. For functions that need no Turn of their own.
  // `inside_wait`: the call may also begin in kInterrupt.
  void check(const char* call, bool inside_wait);
  // Waits until no other thread's call is in progress. Returns false when the time is up.
  bool await_end(std::chrono::nanoseconds limit);

  // A call, from its beginning to its end. Calls that the same thread makes inside it are parts of
  // it. The constructor throws ConfigError, and has then changed nothing. `call` is a literal; `of`
  // is the name of the thing the call is about.
  class [[nodiscard]] Turn {
   public:
    Turn(Turns& turns, const char* call, std::string_view of = {})
        : turns_(turns), entry_(turns.begin(call, of)) {}
    ~Turn() { turns_.end(entry_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    friend Turns;
    enum class Entry : std::uint8_t { kNone, kResumed, kFirst };
    Turns& turns_;
    Entry entry_;
  };

  // Inside a call: the thread is not busy for as long as this object lives, and runs code of kind
  // `code`.
  class [[nodiscard]] Pause {
   public:
    // Without `code`, the kind of code stays as it was.
    explicit Pause(Turns& turns, std::optional<Code> code = std::nullopt) noexcept;
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Turns& turns_;
    Code before_ = Code::kOwn;
    bool is_own_;
    bool ends_ = false;
  };

  // Inside a call: the thread runs the user's code and stays busy, so no other thread's call works.
  class [[nodiscard]] Inside {
   public:
    Inside(Turns& turns, Code code) noexcept : turns_(turns), before_(turns.code_) {
      turns_.code_ = code;
    }
    ~Inside() { turns_.code_ = before_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Turns& turns_;
    Code before_;
  };

  // A short look at the job's state. Any thread may take one, even while another thread's call
  // waits. It only makes the job busy. For counters and destructors.
  class [[nodiscard]] Look {
   public:
    explicit Look(Turns& turns) noexcept;
    ~Look() {
      if (ends_) turns_.unlock();
    }
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;

   private:
    Turns& turns_;
    bool ends_;
  };

 private:
  static std::uintptr_t self() noexcept { return static_cast<std::uintptr_t>(pthread_self()); }
  bool is_forked() const noexcept { return forks_ != forks(); }
  bool has_turn() const noexcept { return owner_.load(std::memory_order_relaxed) == self(); }
  bool is_busy() const noexcept { return busy_.load(std::memory_order_relaxed) == self(); }
  void lock() noexcept {
    std::uintptr_t nobody = 0;
    if (!busy_.compare_exchange_strong(nobody, self(), std::memory_order_acquire)) lock_slowly();
  }
  void lock_slowly() noexcept;
  void unlock() noexcept { busy_.store(0, std::memory_order_release); }
  void nap(std::uint32_t naps) noexcept;
  Turn::Entry begin(const char* call, std::string_view of);
  void end(Turn::Entry entry) noexcept {
    if (entry == Turn::Entry::kNone || is_forked()) return;
    if (entry == Turn::Entry::kFirst) owner_.store(0, std::memory_order_relaxed);
    unlock();
  }
  [[noreturn]] void refuse_other(const char* call, std::string_view of);
  [[noreturn]] void refuse_inside(const char* call, std::string_view of) const;

  const Threads threads_;
  const std::uint32_t forks_;
  // Threads, by their pthread_t; 0 is no thread.
  std::atomic<std::uintptr_t> busy_{0};   // T1
  std::atomic<std::uintptr_t> owner_{0};  // T2
  std::atomic<const char*> call_{""};     // the owner's call
  Code code_ = Code::kOwn;                // the kind of code the owner runs
};

// Inline, because every call begins with it.
inline Turns::Turn::Entry Turns::begin(const char* call, std::string_view of) {
  if (is_forked()) return Turn::Entry::kNone;
  if (has_turn()) {
    if (code_ != Code::kOwn) refuse_inside(call, of);
    if (is_busy()) return Turn::Entry::kNone;
    lock();
    return Turn::Entry::kResumed;
  }
  lock();
  if (owner_.load(std::memory_order_relaxed) != 0) refuse_other(call, of);
  owner_.store(self(), std::memory_order_relaxed);
  call_.store(call, std::memory_order_relaxed);
  return Turn::Entry::kFirst;
}

using Turn = Turns::Turn;

}  // namespace dstorm
