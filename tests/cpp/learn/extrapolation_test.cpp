#include "learn/extrapolation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace learn {
namespace {

constexpr std::size_t kSteps = Extrapolation::kSteps;

// Iterates of w -> fixed + M (w - fixed), M with the ratios on its diagonal and `above` next to it.
void iterate(Extrapolation& to, const std::vector<double>& ratios, double above, double fixed) {
  std::vector<double> w(ratios.size(), 0);
  to.begin();
  for (std::size_t k = 0; k <= kSteps; ++k) {
    EXPECT_FALSE(to.is_full());
    std::ranges::copy(w, to.take(w.size()).begin());
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double next = i + 1 < w.size() ? above * (w[i + 1] - fixed) : 0;
      w[i] = fixed + ratios[i] * (w[i] - fixed) + next;
    }
  }
  EXPECT_TRUE(to.is_full());
}

double farthest(std::span<const double> values, double from) {
  double most = 0;
  for (const double each : values) most = std::max(most, std::abs(each - from));
  return most;
}

TEST(Extrapolation, FindsTheFixedPointOfALinearMapInFewDimensions) {
  Extrapolation extrapolation;
  iterate(extrapolation, {0.99, 0.9, 0.7, 0.4}, 0.3, 2);
  const std::span<const double> found = extrapolation.combine();
  ASSERT_EQ(found.size(), kSteps - 1);
  EXPECT_LT(farthest(found, 2), 0.02);  // the last iterate is 1.9 away
}

TEST(Extrapolation, IsCloserThanTheLastIterateInMoreDimensions) {
  Extrapolation extrapolation;
  std::vector<double> ratios;
  for (int i = 0; i < 40; ++i) ratios.push_back(0.95 * i / 40);
  iterate(extrapolation, ratios, 0, 1);
  const double last = std::pow(ratios.back(), kSteps);
  EXPECT_LT(farthest(extrapolation.combine(), 1), last);
}

TEST(Extrapolation, TakesStepsThatDependOnOneAnother) {
  Extrapolation extrapolation;
  iterate(extrapolation, {0.5, 0.5}, 0, 1);
  EXPECT_LT(farthest(extrapolation.combine(), 1), 1e-6);
}

TEST(Extrapolation, HasNothingToSayWithoutSteps) {
  Extrapolation extrapolation;
  iterate(extrapolation, {1, 1}, 0, 1);
  EXPECT_TRUE(extrapolation.combine().empty());
}

TEST(Extrapolation, BeginsAnew) {
  Extrapolation extrapolation;
  iterate(extrapolation, {0.9, 0.5, 0.2, 0.1, 0.8, 0.4}, 0.1, 5);
  iterate(extrapolation, {0.5, 0.25}, 0.1, -1);
  EXPECT_LT(farthest(extrapolation.combine(), -1), 1e-6);
}

}  // namespace
}  // namespace learn
