#include "dstorm/host/wait.hpp"

#include <gtest/gtest.h>

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

}  // namespace
