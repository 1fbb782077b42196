#include "learn/digamma.hpp"

#include <gtest/gtest.h>

namespace {

using learn::DigammaRise;

TEST(DigammaRise, AddsUpReciprocalsAndGoesOnByTheLogarithm) {
  for (const double x : {1e-5, 0.1, 1.0, 50.0}) {
    DigammaRise rise(x);
    double expected = 0;
    for (int n = 0; n < 20'000; ++n) {
      ASSERT_NEAR(rise(n), expected, 1e-12 * (1 + expected)) << n << " + " << x;
      expected += 1 / (n + x);
    }
  }
}

TEST(DigammaRise, IsSummedOverCounts) {
  const std::vector<std::int32_t> counts{0, 2, 0, 1};
  EXPECT_DOUBLE_EQ(learn::sum_of_rises(counts, 0.5), (1 / 0.5 + 1 / 1.5) + 1 / 0.5);
  EXPECT_EQ(learn::sum_of_rises({}, 0.5), 0);
}

}  // namespace
