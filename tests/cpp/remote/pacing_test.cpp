// When a rank may hold updates and cursors back.
#include "dstorm/remote/pacing.hpp"

#include <gtest/gtest.h>

namespace dstorm::remote {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kSegment = 7;
constexpr int kDepth = 64;

host::SegmentShape shape_of(Policy policy, int depth = kDepth) {
  return {MailboxShape(2, depth, 4096), policy, 0, 0, 0, 0};
}

// A rank that scatters every 10 us.
class PacingTest : public testing::Test {
 protected:
  bool scatter(std::size_t bytes = 100, Policy policy = Policy::kQueue,
               std::uint32_t segment = kSegment, int depth = kDepth) {
    now_ += 10us;
    return pacing_.may_hold_back(segment, shape_of(policy, depth), bytes, now_);
  }
  void begin_burst() {
    for (int i = 1; i < Pacing::kBurst; ++i) ASSERT_FALSE(scatter()) << i;
    ASSERT_TRUE(scatter());
  }
  void answer(int times) {
    for (int i = 0; i < times; ++i) {
      pacing_.note_arrival();
      scatter();
    }
  }

  Pacing pacing_;
  Clock::time_point now_ = Clock::time_point{} + 1s;

  PacingTest() { pacing_.note_sent(now_); }
};

TEST_F(PacingTest, FirstScattersOfABurstAreSentAtOnce) { begin_burst(); }

TEST_F(PacingTest, PauseEndsABurst) {
  begin_burst();
  now_ += Pacing::kSoon;
  EXPECT_FALSE(scatter());
}

TEST_F(PacingTest, WaitIsNoPause) {
  begin_burst();
  now_ += 1s;
  pacing_.note_wait(now_);
  EXPECT_TRUE(scatter());
}

TEST_F(PacingTest, ArrivalEndsABurst) {
  begin_burst();
  pacing_.note_arrival();
  EXPECT_FALSE(scatter());
}

TEST_F(PacingTest, UpdateThatANewerOneMayReplaceIsSentAtOnce) {
  for (int i = 0; i < 3 * Pacing::kBurst; ++i) EXPECT_FALSE(scatter(100, Policy::kLatest));
}

TEST_F(PacingTest, UpdateOfAnotherSegmentIsSentAtOnce) {
  begin_burst();
  EXPECT_FALSE(scatter(100, Policy::kQueue, kSegment + 1));
}

TEST_F(PacingTest, BytesHeldBackAreLimited) {
  begin_burst();
  EXPECT_FALSE(scatter(Pacing::kHeldBytes));
  pacing_.note_sent(now_);
  EXPECT_TRUE(scatter());
}

TEST_F(PacingTest, HalfOfTheSlotsAreHeldBackAtMost) {
  constexpr int kFew = 8;
  for (int i = 1; i < Pacing::kBurst; ++i) ASSERT_FALSE(scatter());
  for (int i = 0; i < kFew / 2; ++i) {
    EXPECT_TRUE(scatter(100, Policy::kQueue, kSegment, kFew)) << i;
  }
  EXPECT_FALSE(scatter(100, Policy::kQueue, kSegment, kFew));
}

TEST_F(PacingTest, CursorsWaitForTheNextAnswerOnce) {
  EXPECT_FALSE(pacing_.may_put_off_cursors());
  answer(Pacing::kBurst);
  EXPECT_TRUE(pacing_.may_put_off_cursors());
  EXPECT_FALSE(pacing_.may_put_off_cursors());
  answer(1);
  EXPECT_TRUE(pacing_.may_put_off_cursors());
}

TEST_F(PacingTest, CursorsDoNotWaitAfterAScatterThatAnswersNothing) {
  answer(Pacing::kBurst);
  scatter();
  EXPECT_FALSE(pacing_.may_put_off_cursors());
}

}  // namespace
}  // namespace dstorm::remote
