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

TEST(DigammaRise, DoesNotCancelWhereXIsFarAboveTheCounts) {
  for (const double x : {1e4, 1e8, 1e12, 1e16, 1e20, 1e37}) {
    DigammaRise rise(x);
    for (const std::int64_t n : {1, 4096, 4097, 5000, 1'000'000}) {
      long double expected = 0;
      for (std::int64_t i = 0; i < n; ++i) expected += 1 / (static_cast<long double>(i) + x);
      ASSERT_NEAR(static_cast<double>(rise(n) / expected), 1, 1e-12) << n << " + " << x;
    }
  }
}

TEST(DigammaRise, IsSummedOverCounts) {
  const std::vector<std::int32_t> counts{0, 2, 0, 1};
  EXPECT_DOUBLE_EQ(learn::sum_of_rises<std::int32_t>(counts, 0.5), 1 / 0.5 + 1 / 1.5 + 1 / 0.5);
  const std::vector<std::int64_t> totals{std::int64_t{1} << 40};
  EXPECT_NEAR(learn::sum_of_rises<std::int64_t>(totals, 1e30), 0x1p40 / 1e30, 1e-30);
  EXPECT_EQ(learn::sum_of_rises<std::int32_t>({}, 0.5), 0);
}

}  // namespace
