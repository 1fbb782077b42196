// The ranks that the next epoch leaves out, compared with a plain algorithm.
#include "dstorm/membership/accusations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "sanitizers.hpp"

namespace dstorm {
namespace {

using Accused = std::vector<std::vector<int>>;  // by accuser

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Accusations accusations_of(const Accused& accused) {
  Accusations accusations(static_cast<int>(accused.size()));
  for (std::size_t r = 0; r < accused.size(); ++r) accusations.set(static_cast<int>(r), accused[r]);
  return accusations;
}

// Removes the rank that is in the most pairs, the highest of several, until there is no pair.
std::vector<int> plainly(std::vector<int> members, const Accused& accused) {
  std::set<std::pair<int, int>> pairs;
  for (std::size_t a = 0; a < accused.size(); ++a) {
    for (int r : accused[a]) pairs.insert(std::minmax(static_cast<int>(a), r));
  }
  const auto is_in = [&](int r) { return std::binary_search(members.begin(), members.end(), r); };
  for (;;) {
    int worst = -1;
    std::ptrdiff_t most = 1;
    for (int r : members) {
      const auto count = std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) {
        return (pair.first == r && is_in(pair.second)) || (pair.second == r && is_in(pair.first));
      });
      if (count >= most) {
        worst = r;
        most = count;
      }
    }
    if (worst < 0) return members;
    std::erase(members, worst);
  }
}

TEST(Accusations, LeaveTheSameRanksAsThePlainWay) {
  std::mt19937 random(1);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  for (int round = 0; round < (kSanitized ? 40 : 200); ++round) {
    const int ranks = draw(1, 90);  // up to two words a row
    std::vector<int> members = first_ranks(ranks);
    std::erase_if(members, [&](int) { return draw(0, 4) == 0; });
    const int percent = draw(0, 1) == 0 ? draw(0, 100) : draw(0, 4);
    const int half = draw(0, 2) == 0 ? draw(0, ranks) : -1;  // accusations between two parts alone
    Accused accused(static_cast<std::size_t>(ranks));
    for (int a = 0; a < ranks; ++a) {
      for (int r = 0; r < ranks + 3; ++r) {  // also of ranks beyond the members, and of oneself
        if (half >= 0 && (a < half) == (r < half)) continue;
        if (draw(0, 99) < percent) accused[static_cast<std::size_t>(a)].push_back(r);
      }
    }
    ASSERT_EQ(accusations_of(accused).at_peace(members), plainly(members, accused))
        << "round " << round;
  }
}

TEST(Accusations, NewOnesReplaceWhatTheAccuserSaidBefore) {
  Accusations accusations(4);
  EXPECT_FALSE(accusations.any());
  accusations.set(0, std::vector{1, 2});
  accusations.set(0, std::vector{3});
  EXPECT_TRUE(accusations.any());
  EXPECT_EQ(accusations.at_peace(first_ranks(4)), (std::vector{0, 1, 2}));
  accusations.set(0, {});
  EXPECT_FALSE(accusations.any());
  EXPECT_EQ(accusations.at_peace(first_ranks(4)), first_ranks(4));
}

// The plain algorithm takes minutes for each of these, the tested one less than a millisecond.
TEST(Accusations, OfALargeJobAreSettledInATimeThatGrowsWithTheirNumberOnly) {
  constexpr int kRanks = 1024;
  const std::pair<std::function<bool(int, int)>, int> cases[] = {
      {[](int a, int r) { return a < 896 && r >= 896; }, 896},
      {[](int a, int r) { return a < 512 && r >= 512; }, 512},
      {[](int a, int r) { return (a < 512) != (r < 512); }, 512},
      {[](int a, int r) { return a != r; }, 1}};
  for (const auto& [accuses, staying] : cases) {
    Accused accused(kRanks);
    for (int a = 0; a < kRanks; ++a) {
      for (int r = 0; r < kRanks; ++r) {
        if (accuses(a, r)) accused[static_cast<std::size_t>(a)].push_back(r);
      }
    }
    const Accusations accusations = accusations_of(accused);
    timespec before{};
    timespec after{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    EXPECT_EQ(accusations.at_peace(first_ranks(kRanks)), first_ranks(staying));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    const double seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                           static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
    EXPECT_LT(seconds, 0.2) << "of processor time";
  }
}

}  // namespace
}  // namespace dstorm
