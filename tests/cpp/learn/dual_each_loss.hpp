// Tests over each loss of dual ascent, with and without an intercept.
#pragma once

#include <gtest/gtest.h>

#include <tuple>

#include "learn/dual_problem.hpp"

namespace learn {

inline constexpr int kMostSweeps = 20000;
inline constexpr double kClose = 1e-6;  // of the least value

class EachLoss : public testing::TestWithParam<std::tuple<Loss, bool>> {
 protected:
  Loss loss() const { return std::get<0>(GetParam()); }
  bool intercept() const { return std::get<1>(GetParam()); }
};

inline const auto kEachLoss = testing::Combine(testing::ValuesIn(kDualLosses), testing::Bool());

}  // namespace learn
