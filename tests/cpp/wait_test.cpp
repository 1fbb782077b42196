#include "dstorm/wait.hpp"

#include <gtest/gtest.h>

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

  int moves = 0;  // so many polls bring something forward
  int polls = 0;
  int rests = 0;
};

class Waiting : public testing::Test {
 protected:
  Waiting() { waiter_.lend_a_hand(work_); }

  Doorbell bell_{};
  std::atomic<std::uint32_t> alarm_{0};
  Waiter waiter_{bell_, 0ns, alarm_, nullptr};
  CountedWork work_;
};

constexpr int kMany = 10'000;  // far more looks than a wait in vain takes before it sleeps

TEST_F(Waiting, StaysAwakeAsLongAsItsWorkMoves) {
  work_.moves = kMany;
  EXPECT_TRUE(waiter_.until([&] { return work_.polls == kMany; }, 60s));
  EXPECT_EQ(work_.rests, 0);
}

TEST_F(Waiting, SleepsWhereNothingMoves) {
  EXPECT_FALSE(waiter_.until([] { return false; }, 10ms));
  EXPECT_LT(work_.polls, kMany);
  EXPECT_GT(work_.rests, 0);
}

}  // namespace
