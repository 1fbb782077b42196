// What ranks agree on when a table moves (P10).
#include "vol/ps/edition.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "dstorm/errors.hpp"

namespace vol::ps {
namespace {

using All = std::vector<std::optional<Brought>>;

// Ranks 0 to 2 bring range 0, with them as its first, second and third holder; rank 3 joins.
All three_holders() {
  All all(4);
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    Brought brought;
    brought.clock = 7U + rank;
    brought.pushes = {1, 2, 3, rank};
    brought.ranges = {{0, rank, 0, 99}};
    all[rank] = brought;
  }
  return all;
}

TEST(Edition, TheLatestPrimaryHandsItsRowsToThoseThatLackThem) {
  All all = three_holders();
  all[2]->ranges[0].check = 98;
  const Edition edition(all, 1);
  EXPECT_EQ(edition.ranges[0].sender, 0);
  EXPECT_EQ(edition.ranges[0].having, (std::vector{0, 1}));
  EXPECT_TRUE(edition.lost_with.empty());
}

TEST(Edition, RowsOfAServerThatOthersKnowToBeDeadDoNotCount) {
  All all = three_holders();
  all[1]->dead = {0};
  EXPECT_EQ(Edition(all, 1).ranges[0].sender, 1);
}

TEST(Edition, RowsOfAServerThatALaterPrimaryHasReplacedDoNotCount) {
  All all = three_holders();
  all[2]->ranges[0].source = 1;
  EXPECT_EQ(Edition(all, 1).ranges[0].sender, 1);
}

TEST(Edition, ACopyOfAnotherPrimaryIsMadeAnewThoughItHasTheSamePushes) {
  All all = three_holders();
  all[0].reset();  // the first primary is dead; the second has had its pushes in another order
  all[1]->ranges[0].source = 1;
  const Edition edition(all, 1);
  EXPECT_EQ(edition.ranges[0].sender, 1);
  EXPECT_EQ(edition.ranges[0].having, std::vector{1});
}

TEST(Edition, RowsThatNobodyBringsAreLostWithTheDead) {
  All all = three_holders();
  for (auto& brought : all) {
    if (brought) brought->ranges.clear();
  }
  all[0]->ranks = {0, 1, 2, 3};  // rank 3 has been started again
  all[1]->dead = {1};
  all[2]->lost_with = {2};
  const Edition edition(all, 1);
  EXPECT_EQ(edition.ranges[0].sender, -1);
  EXPECT_EQ(edition.lost_with, (std::vector{1, 2, 3}));
}

TEST(Edition, ARankThatJoinsHasTheLowestClockAndNumbersAboveThoseOfItsEarlierLife) {
  const Edition edition(three_holders(), 1);
  EXPECT_EQ(edition.clocks, (std::vector<std::uint64_t>{7, 8, 9, 7}));
  EXPECT_EQ(edition.pushes, (std::vector<std::uint64_t>{1, 2, 3, 2}));
}

TEST(Edition, ARankThatJoinsHasAClockOfWhichNoServerHasAppliedPushes) {
  All all = three_holders();
  all[0]->has_closed = 1;
  EXPECT_EQ(Edition(all, 1).clocks[3], 8);
  all[1]->has_closed = all[2]->has_closed = 1;
  EXPECT_EQ(Edition(all, 1).clocks[3], 10);
  EXPECT_EQ(Edition(All(2), 1).clocks, (std::vector<std::uint64_t>{0, 0}));
}

TEST(Edition, BroughtDataAreReadAsTheyWereWritten) {
  Brought brought = *three_holders()[1];
  brought.has_closed = 1;
  brought.ranks = {1, 2};
  brought.dead = {2};
  brought.lost_with = {5, 6};
  std::vector<std::byte> bytes = brought.pack();
  const Brought read = Brought::unpack(bytes);
  EXPECT_EQ(read.clock, brought.clock);
  EXPECT_EQ(read.has_closed, 1);
  EXPECT_EQ(read.pushes, brought.pushes);
  EXPECT_EQ(read.ranks, brought.ranks);
  EXPECT_EQ(read.dead, brought.dead);
  EXPECT_EQ(read.lost_with, brought.lost_with);
  ASSERT_EQ(read.ranges.size(), 1);
  EXPECT_EQ(read.ranges[0].check, 99);
  for (const std::size_t size : {bytes.size() - 1, std::size_t{17}, std::size_t{0}}) {
    bytes.resize(size);
    EXPECT_THROW(Brought::unpack(bytes), dstorm::Error);
  }
}

}  // namespace
}  // namespace vol::ps
