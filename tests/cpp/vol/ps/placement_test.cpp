#include "vol/ps/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace vol::ps {
namespace {

constexpr std::int64_t kRows = 16 * 60;
constexpr std::size_t kRanges = 60;

std::vector<int> owners() {
  std::vector<int> all(kRanges);
  for (std::size_t range = 0; range < kRanges; ++range) all[range] = static_cast<int>(range / 20);
  return all;
}

bool all(int /*server*/) { return true; }

TEST(Placement, OwnersComeFirst) {
  const Placement placement(kRows, {0, 1, 2}, 1, 3, owners());
  ASSERT_EQ(placement.ranges(), kRanges);
  for (std::size_t range = 0; range < kRanges; ++range) {
    EXPECT_EQ(placement.primary(range, all), owners()[range]);
    EXPECT_EQ(placement.holders(range, all).size(), 2U);
  }
}

// The ranges of a server that is gone, and no others, go where their hashes say, and come back.
TEST(Placement, OnlyRangesOfAnOwnerThatIsNotThereMove) {
  const Placement whole(kRows, {0, 1, 2}, 1, 3, owners());
  const Placement without(kRows, {0, 2}, 1, 3, owners());
  std::vector<int> taken(3);
  for (std::size_t range = 0; range < kRanges; ++range) {
    const int primary = without.primary(range, all);
    if (owners()[range] != 1) {
      EXPECT_EQ(primary, whole.primary(range, all));
    } else {
      EXPECT_EQ(primary, whole.primary(range, [](int server) { return server != 1; }));
      ++taken[static_cast<std::size_t>(primary)];
    }
  }
  EXPECT_GT(taken[0], 0);
  EXPECT_GT(taken[2], 0);
}

// Each range has the same order of the others as without owners.
TEST(Placement, TheOthersKeepTheirOrder) {
  const Placement placement(kRows, {0, 1, 2, 3, 4}, 1, 5, owners());
  const Placement hashed(kRows, {0, 1, 2, 3, 4}, 1, 5);
  ASSERT_EQ(hashed.ranges(), kRanges);
  for (std::size_t range = 0; range < kRanges; ++range) {
    std::vector<int> expected;
    std::vector<int> found;
    for (int place = 0; place < 5; ++place) {
      if (const int s = hashed.server(range, place); s != owners()[range]) expected.push_back(s);
      if (place > 0) found.push_back(placement.server(range, place));
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(Placement, ThereAreAsManyRangesAsOwners) {
  for (const std::int64_t range_rows : {16, 64, 4096}) {
    for (const std::size_t ranges : {1U, 2U, 3U, 7U, 1000U}) {
      const std::vector<int> of(ranges, 0);
      const auto rows = range_rows * static_cast<std::int64_t>(ranges);
      const Placement placement(rows, {0, 1}, 0, 2, of);
      EXPECT_EQ(placement.ranges(), ranges);
      EXPECT_TRUE(ranges == 1 || placement.end_row(0) == range_rows);
      EXPECT_EQ(placement.end_row(ranges - 1), rows);
    }
  }
}

}  // namespace
}  // namespace vol::ps
