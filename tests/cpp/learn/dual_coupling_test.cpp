#include "learn/dual_coupling.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace learn {
namespace {

// As after exchanges in which the ranks' changes were orthogonal.
DualCoupling fallen(int ranks) {
  DualCoupling coupling;
  coupling.set_ranks(ranks);
  for (int exchange = 0; exchange < 200; ++exchange) coupling.note(1, 1);
  return coupling;
}

TEST(DualCoupling, StartsAtTheNumberOfRanks) {
  DualCoupling coupling;
  EXPECT_EQ(coupling.sigma(), 1);
  for (const int ranks : {1, 2, 8}) {
    coupling.set_ranks(ranks);
    EXPECT_EQ(coupling.sigma(), ranks);
  }
  coupling = fallen(8);
  coupling.set_ranks(7);
  EXPECT_EQ(coupling.sigma(), 7);
}

TEST(DualCoupling, FallsSlowlyToNearTheRatio) {
  DualCoupling coupling;
  coupling.set_ranks(8);
  double before = coupling.sigma();
  for (int exchange = 0; exchange < 10; ++exchange) {
    coupling.note(1, 1);
    EXPECT_LT(coupling.sigma(), before);
    EXPECT_GT(coupling.sigma(), 0.8 * before);
    before = coupling.sigma();
  }
  for (int exchange = 0; exchange < 200; ++exchange) coupling.note(3, 1);
  EXPECT_GE(coupling.sigma(), 3);
  EXPECT_LE(coupling.sigma(), 3.6);
}

TEST(DualCoupling, RisesAtOnceAboveTheRatio) {
  DualCoupling coupling = fallen(8);
  EXPECT_LE(coupling.sigma(), 1.2);
  coupling.note(10, 2);
  EXPECT_GE(coupling.sigma(), 5);
  EXPECT_LE(coupling.sigma(), 6);
}

TEST(DualCoupling, IsNeverBelowTheRatioOfTheLastExchange) {
  for (const double ratio : {0.5, 1.0, 1.7, 3.9, 4.0}) {
    DualCoupling coupling;
    coupling.set_ranks(4);
    for (int exchange = 0; exchange < 100; ++exchange) {
      coupling.note(0, 1);
      coupling.note(ratio, 1);
      EXPECT_GE(coupling.sigma(), ratio) << exchange;
    }
  }
}

TEST(DualCoupling, StaysBetween1AndTheNumberOfRanks) {
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  constexpr double kHuge = std::numeric_limits<double>::max();
  for (const int ranks : {1, 2, 5}) {
    DualCoupling coupling;
    coupling.set_ranks(ranks);
    for (const double square_of_sum : {0.0, 1e-9, 5.0, 1e300, kHuge}) {
      for (const double sum_of_squares : {1.0, kTiny, 1e300, kHuge}) {
        for (int exchange = 0; exchange < 50; ++exchange) {
          coupling.note(square_of_sum, sum_of_squares);
          EXPECT_GE(coupling.sigma(), 1);
          EXPECT_LE(coupling.sigma(), ranks);
        }
      }
    }
  }
}

TEST(DualCoupling, IgnoresAnExchangeWithoutAnyChange) {
  DualCoupling coupling;
  coupling.set_ranks(6);
  coupling.note(0, 0);
  EXPECT_EQ(coupling.sigma(), 6);
  coupling.note(2, 1);
  const double sigma = coupling.sigma();
  coupling.note(0, 0);
  EXPECT_EQ(coupling.sigma(), sigma);
}

TEST(DualCoupling, TakesTheMostWhereTheChangesAreTooLargeToSquare) {
  DualCoupling coupling;
  coupling.set_ranks(6);
  for (int exchange = 0; exchange < 50; ++exchange) coupling.note(1, 1);
  ASSERT_LT(coupling.sigma(), 2);
  const double huge = std::numeric_limits<double>::infinity();
  coupling.note(1, huge);
  EXPECT_EQ(coupling.sigma(), 6);
  coupling.note(std::numeric_limits<double>::quiet_NaN(), 1);
  EXPECT_EQ(coupling.sigma(), 6);
}

}  // namespace
}  // namespace learn
