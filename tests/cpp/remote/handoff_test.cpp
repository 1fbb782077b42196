// Which of two threads does the engine's work, and that none is forgotten (E2, E3).
#include "dstorm/remote/handoff.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <mutex>
#include <thread>

namespace dstorm::remote {
namespace {

using namespace std::chrono_literals;
using State = Handoff::State;
using Clock = std::chrono::steady_clock;

bool is_rung(const Handoff& handoff) {
  pollfd alarm{handoff.alarm().get(), POLLIN, 0};
  return poll(&alarm, 1, 0) == 1;
}

template <class Ready>
bool comes_true(Ready ready) {
  for (const auto end = Clock::now() + 20s; !ready(); std::this_thread::yield()) {
    if (Clock::now() > end) return false;
  }
  return true;
}

// The engine's thread is away in a thread of its own.
class Away {
 public:
  explicit Away(Handoff& handoff, std::chrono::nanoseconds limit = 60s)
      : thread_([this, &handoff, limit] {
          handoff.stay_away(false, limit);
          is_back_ = true;
        }) {}
  ~Away() { thread_.join(); }
  bool is_back() const { return is_back_; }

 private:
  std::atomic<bool> is_back_{false};
  std::thread thread_;
};

TEST(Handoff, WishWakesAThreadThatSleepsAndNoOther) {
  Handoff handoff;
  handoff.wake();
  EXPECT_EQ(handoff.state(), State::kWorking);
  EXPECT_FALSE(is_rung(handoff));
  EXPECT_FALSE(handoff.fall_asleep());  // it sees the wish
  handoff.wait_for_lock();
  handoff.begin_work();
  EXPECT_TRUE(handoff.fall_asleep());
  handoff.wake();
  EXPECT_EQ(handoff.state(), State::kWoken);
  EXPECT_TRUE(is_rung(handoff));
}

TEST(Handoff, HeldBackChangeKeepsTheThreadFromSleeping) {
  Handoff handoff;
  handoff.hold_back();
  EXPECT_FALSE(is_rung(handoff));
  EXPECT_FALSE(handoff.fall_asleep());
  handoff.wait_for_lock();
  EXPECT_TRUE(handoff.begin_work());
  EXPECT_TRUE(handoff.fall_asleep());
  handoff.hold_back();
  EXPECT_TRUE(is_rung(handoff));
}

TEST(Handoff, ThreadIsAwayWhileTheRankTakesTurns) {
  Handoff handoff;
  Away away(handoff);
  ASSERT_TRUE(comes_true([&] { return handoff.is_away(); }));
  // It looks for turns only when its nap is over, which is long as nothing is held back.
  EXPECT_EQ(handoff.state(), State::kAway);
  handoff.rest();
  EXPECT_TRUE(comes_true([&] { return away.is_back(); }));
  EXPECT_TRUE(is_rung(handoff));
}

TEST(Handoff, WishBringsTheThreadBack) {
  Handoff handoff;
  Away away(handoff);
  ASSERT_TRUE(comes_true([&] { return handoff.is_away(); }));
  handoff.wake();
  EXPECT_TRUE(comes_true([&] { return away.is_back(); }));
}

TEST(Handoff, WishOfBeforeKeepsTheThreadFromStayingAway) {
  Handoff handoff;
  handoff.want();
  const auto begin = Clock::now();
  handoff.stay_away(false, 60s);
  EXPECT_LT(Clock::now() - begin, 30s);
}

TEST(Handoff, ThreadComesBackWhenItsLimitIsOver) {
  Handoff handoff;
  const auto begin = Clock::now();
  handoff.stay_away(false, 2ms);
  EXPECT_GE(Clock::now() - begin, 2ms);
  EXPECT_FALSE(is_rung(handoff));
}

TEST(Handoff, HeldBackChangeBringsTheThreadBackSoon) {
  Handoff handoff;
  handoff.hold_back();
  handoff.stay_away(false, 60s);  // the rank takes no turn: it ends after kHeldBack
  EXPECT_EQ(handoff.state(), State::kAwayBriefly);
  EXPECT_FALSE(is_rung(handoff));
  handoff.hold_back();  // it looks again by itself
  EXPECT_FALSE(is_rung(handoff));
}

TEST(Handoff, HoldingBackBringsAThreadBackThatIsAwayForLong) {
  Handoff handoff;
  Away away(handoff);
  ASSERT_TRUE(comes_true([&] { return handoff.state() == State::kAway; }));
  handoff.hold_back();
  EXPECT_TRUE(comes_true([&] { return away.is_back(); }));
}

TEST(Handoff, BlockedConnectionBringsAThreadBackThatIsAwayForLong) {
  Handoff handoff;
  Away away(handoff);
  ASSERT_TRUE(comes_true([&] { return handoff.state() == State::kAway; }));
  handoff.end_send(false);
  EXPECT_FALSE(is_rung(handoff));
  handoff.set_blocked(true);
  handoff.end_send(false);
  EXPECT_TRUE(comes_true([&] { return away.is_back(); }));
}

TEST(Handoff, RankSendsWhatItHasNotedBeforeItSleeps) {
  Handoff handoff;
  EXPECT_FALSE(handoff.has_to_send());
  handoff.note();
  EXPECT_TRUE(handoff.has_to_send());
  EXPECT_FALSE(handoff.has_to_send());
  handoff.end_send(true);  // some of it may lie in a socket
  EXPECT_TRUE(handoff.has_to_send());
  EXPECT_TRUE(handoff.take_unsent());
  EXPECT_FALSE(handoff.has_to_send());
}

// A rank that makes changes, and an engine's thread without any time limit: a change that both
// forget is never done.
class BothThreads : public testing::Test {
 protected:
  void SetUp() override {
    thread_ = std::thread([this] { run(); });
  }
  void TearDown() override {
    stop_ = true;
    handoff_.ring();
    thread_.join();
  }

  void run() {
    bool in_burst = false;
    while (!stop_) {
      const bool is_rank_active = handoff_.is_rank_active(in_burst);
      if (is_rank_active) handoff_.stay_away(in_burst, 60s);
      const bool is_idle = handoff_.fall_asleep();
      pollfd alarm{handoff_.alarm().get(), POLLIN, 0};
      poll(&alarm, 1, is_idle && !is_rank_active && !stop_ ? -1 : 0);
      handoff_.wait_for_lock();
      const std::lock_guard lock(mutex_);
      in_burst = handoff_.begin_work();
      handoff_.hush();
      done_ = made_.load();
    }
  }
  // As Engine::drive().
  void drive() {
    handoff_.want();
    while (handoff_.is_wanted()) {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock || handoff_.state() == State::kQueued) return;
      if (!handoff_.take_wanted()) continue;
      handoff_.take_held_back();
      done_ = made_.load();
      handoff_.end_send(false);
    }
  }
  bool is_done() {
    return comes_true([&] { return done_ == made_; });
  }

  Handoff handoff_;
  std::mutex mutex_;
  std::atomic<std::uint64_t> made_{0}, done_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

constexpr int kChanges = 50'000;

TEST_F(BothThreads, ForgetNoChangeThatIsWanted) {
  for (int i = 0; i < kChanges; ++i) {
    ++made_;
    handoff_.wake();
    ASSERT_TRUE(is_done()) << i;
  }
}

TEST_F(BothThreads, ForgetNoChangeThatTheRankTriesToSendItself) {
  for (int i = 0; i < 20 * kChanges; ++i) {
    ++made_;
    if (i % 5 == 0) handoff_.wake();
    drive();
    if (i % 3 == 0) handoff_.note_poll();
    if (i % 16 == 0) {
      ASSERT_TRUE(is_done()) << i;
    }
  }
}

TEST_F(BothThreads, ForgetNothingThatIsHeldBack) {
  for (int i = 0; i < kChanges; ++i) {
    ++made_;
    handoff_.hold_back();
    if (i % 4 == 0) {
      ASSERT_TRUE(is_done()) << i;
    }
    if (i % 7 == 0) handoff_.note_poll();
    if (i % 5 == 0) drive();
  }
  ASSERT_TRUE(is_done());
}

}  // namespace
}  // namespace dstorm::remote
