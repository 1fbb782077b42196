#include "dstorm/host/wait.hpp"

#include <gtest/gtest.h>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <limits>

namespace {

using dstorm::Doorbell;
using dstorm::Waiter;
using dstorm::Work;
using namespace std::chrono_literals;

class CountedWork final : public Work {
 public:
  bool poll() noexcept override {
    ++polls;
    return polls <= moves;
  }
  void rest() noexcept override { ++rests; }

  int moves = 0;  // this many polls make progress
  int polls = 0;
  int rests = 0;
};

class Waiting : public testing::Test {
 protected:
  Waiting() { waiter_.lend_a_hand(work_); }

  Doorbell bell_{};
  std::atomic<std::uint32_t> alarm_{0};
  Waiter waiter_{bell_, 1ms, alarm_, nullptr};
  CountedWork work_;
};

TEST_F(Waiting, StaysAwakeAsLongAsItsWorkMoves) {
  constexpr int kMany = 1000;  // of which a rank that slept in between would make some 64 a nap
  work_.moves = kMany;
  EXPECT_TRUE(waiter_.until([&] { return work_.polls == kMany; }, 60s));
  EXPECT_LT(work_.rests, 5);  // it looks for changes now and then
}

TEST_F(Waiting, SleepsWhereNothingMoves) {
  EXPECT_FALSE(waiter_.until([] { return false; }, 20ms));
  EXPECT_GT(work_.rests, 0);
}

TEST_F(Waiting, LooksAtItsDeadlineThoughItsWorkMoves) {
  work_.moves = std::numeric_limits<int>::max();
  EXPECT_FALSE(waiter_.until([] { return false; }, 20ms));
}

TEST_F(Waiting, SpinsNoLongerThanItsLimit) {
  Waiter spinning(bell_, 60s, alarm_, nullptr);
  for (const auto limit : {0ms, 1ms}) {
    const auto began = dstorm::Clock::now();
    EXPECT_FALSE(spinning.until([] { return false; }, limit));
    EXPECT_LT(dstorm::Clock::now() - began, 30s);
  }
}

// A process that computes on the core on which the test runs from here on.
class BusyCore {
 public:
  BusyCore() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const pid_t test = getpid();
    process_ = fork();
    if (process_ != 0) return;
    while (getppid() == test) {
    }
    _exit(0);
  }
  ~BusyCore() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    sched_setaffinity(0, sizeof before_, &before_);
  }
  BusyCore(const BusyCore&) = delete;
  BusyCore& operator=(const BusyCore&) = delete;

 private:
  cpu_set_t before_;
  pid_t process_ = 0;
};

TEST_F(Waiting, SleepsAtOnceWhereYieldsGiveTheCoreToAProgramThatComputes) {
  Waiter waiter(bell_, 300us, alarm_, nullptr);
  waiter.lend_a_hand(work_);
  const auto looks = [&] {
    const int before = work_.polls;
    EXPECT_FALSE(waiter.until([] { return false; }, 2ms));
    return work_.polls - before;
  };
  EXPECT_GT(looks(), 0);
  const BusyCore busy;
  const auto began = dstorm::Clock::now();
  while (looks() > 0) ASSERT_LT(dstorm::Clock::now() - began, 30s);
}

}  // namespace
