#include "learn/dual_step.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "learn/linear_loss.hpp"

namespace learn {
namespace {

constexpr double kEpsilon = 0.3;

// The dual in one alpha, without what does not depend on it.
double value_at(Loss loss, const DualPoint& at, double alpha) {
  const double change = alpha - at.alpha;
  return dual_at(loss, kEpsilon, alpha, at.target, at.cost) - at.p * change -
         at.norm * change * change / 2;
}

// Points over scales of cost, norm and decision value, with alphas that the loss allows.
std::vector<DualPoint> points(Loss loss) {
  std::vector<DualPoint> all;
  for (const double cost : {1e-3, 1.0, 1e4}) {
    for (const double norm : {0.0, 1e-3, 1.0, 1e4}) {
      for (const double target : {-1.0, 1.0}) {
        for (const double p : {-40.0, -1.3, -0.2, 0.0, 0.7, 1.0, 3.0}) {
          for (const double part : {-1.0, -0.4, 0.0, 0.7, 1.0}) {
            all.push_back({allowed(loss, part * cost, target, cost), target, cost, norm, p});
          }
        }
      }
    }
  }
  return all;
}

template <Loss kLoss>
void expect_best() {
  for (const DualPoint& at : points(kLoss)) {
    const double best = DualStep<kLoss>::best(at, kEpsilon);
    const double value = value_at(kLoss, at, best);
    const double unit = at.cost / (1 + at.norm * at.cost);
    for (const double by : {-1e-2, -1e-4, 1e-4, 1e-2}) {
      const double other = allowed(kLoss, best + by * unit, at.target, at.cost);
      EXPECT_GE(value + 1e-9 * std::abs(value) + 1e-15 * at.cost, value_at(kLoss, at, other))
          << "cost " << at.cost << ", norm " << at.norm << ", target " << at.target << ", p "
          << at.p << ", alpha " << at.alpha << ", best " << best;
    }
  }
}

TEST(DualStep, IsTheBestOfTheHinge) { expect_best<Loss::kHinge>(); }
TEST(DualStep, IsTheBestOfTheSquaredHinge) { expect_best<Loss::kSquaredHinge>(); }
TEST(DualStep, IsTheBestOfTheSquaredLoss) { expect_best<Loss::kSquared>(); }
TEST(DualStep, IsTheBestOfTheInsensitiveLoss) { expect_best<Loss::kEpsilonInsensitive>(); }
TEST(DualStep, IsTheBestOfTheSquaredInsensitiveLoss) {
  expect_best<Loss::kSquaredEpsilonInsensitive>();
}

TEST(DualStep, NeverLowersTheDualOfTheLogLoss) {
  for (const DualPoint& at : points(Loss::kLog)) {
    const double to = DualStep<Loss::kLog>::best(at, 0);
    EXPECT_GE(at.target * to, 0);
    EXPECT_LE(at.target * to, at.cost);
    const double from = value_at(Loss::kLog, at, at.alpha);
    EXPECT_GE(value_at(Loss::kLog, at, to), from - 1e-12 * std::abs(from) - 1e-15 * at.cost)
        << "cost " << at.cost << ", norm " << at.norm << ", p " << at.p << ", alpha " << at.alpha;
  }
}

TEST(DualStep, SolvesTheLogLossForAnySteepness) {
  for (const double steep : {1e-3, 1.0, 10.0, 1e4, 1e9}) {
    for (const double margin : {-1e6, -3.0, 0.0, 2.0, 1e6}) {
      for (const double from : {0.0, 1e-9, 0.5, 1.0}) {
        const double share = solve_log(margin, from, steep);
        const double at = margin + steep * (share - from);
        EXPECT_GE(share, 0);
        EXPECT_LE(share, 1);
        // Rounding of the share moves the margin by `steep` times as much.
        EXPECT_NEAR(share, sigmoid(-at), 1e-9 + 1e-12 * steep * share)
            << "steep " << steep << ", margin " << margin << ", from " << from;
      }
    }
  }
}

// The row's part of P - D: c loss(p) + c conjugate(-alpha / c) + alpha p.
double share_of_gap(Loss loss, const DualPoint& at) {
  return at.cost * loss_at(loss, kEpsilon, at.target, at.p).loss -
         dual_at(loss, kEpsilon, at.alpha, at.target, at.cost) + at.alpha * at.p;
}

template <Loss kLoss>
void expect_gap() {
  for (DualPoint at : points(kLoss)) {
    const double unit = at.cost * (1 + at.p * at.p);  // no term is larger, but for a factor
    const double gap = DualStep<kLoss>::gap(at, kEpsilon);
    EXPECT_NEAR(gap, share_of_gap(kLoss, at), 1e-13 * unit)
        << "cost " << at.cost << ", target " << at.target << ", p " << at.p << ", alpha "
        << at.alpha;
    EXPECT_GE(gap, -1e-13 * unit);
    at.alpha = -at.cost * loss_at(kLoss, kEpsilon, at.target, at.p).slope;
    EXPECT_NEAR(DualStep<kLoss>::gap(at, kEpsilon), 0, 1e-13 * unit)
        << "cost " << at.cost << ", target " << at.target << ", p " << at.p;
  }
}

TEST(DualStep, GivesTheGapOfTheHinge) { expect_gap<Loss::kHinge>(); }
TEST(DualStep, GivesTheGapOfTheSquaredHinge) { expect_gap<Loss::kSquaredHinge>(); }
TEST(DualStep, GivesTheGapOfTheSquaredLoss) { expect_gap<Loss::kSquared>(); }
TEST(DualStep, GivesTheGapOfTheInsensitiveLoss) { expect_gap<Loss::kEpsilonInsensitive>(); }
TEST(DualStep, GivesTheGapOfTheSquaredInsensitiveLoss) {
  expect_gap<Loss::kSquaredEpsilonInsensitive>();
}

TEST(DualStep, GivesAboutTheGapOfTheLogLoss) {
  for (const double cost : {1e-3, 1.0, 1e4}) {
    for (const double target : {-1.0, 1.0}) {
      for (const double p : {-8.0, -1.3, 0.0, 0.7, 8.0}) {
        const double best = sigmoid(-target * p);
        for (const double off : {-0.9, -0.5, -0.1, -1e-3, 1e-3, 0.1, 0.5, 0.9}) {
          const double share = best + off * std::min(best, 1 - best);
          const DualPoint at{target * cost * share, target, cost, 1, p};
          const double gap = DualStep<Loss::kLog>::gap(at, 0);
          const double exact = share_of_gap(Loss::kLog, at);
          const double rounding = 1e-14 * cost;
          EXPECT_LE(gap, 3 * exact + rounding) << "target " << target << ", p " << p << ", " << off;
          EXPECT_GE(gap, exact / 3 - rounding) << "target " << target << ", p " << p << ", " << off;
        }
        const DualPoint at{target * cost * best, target, cost, 1, p};
        EXPECT_NEAR(DualStep<Loss::kLog>::gap(at, 0), 0, 1e-14 * cost);
      }
    }
  }
}

TEST(DualStep, GivesAGapOfTheLogLossThatRowsFarOffCanHave) {
  for (const double p : {-1.0, -20.0, -37.0, -1e3, 20.0}) {
    const DualPoint at{0, 1, 2.0, 1, p};
    const double exact = share_of_gap(Loss::kLog, at);
    const double gap = DualStep<Loss::kLog>::gap(at, 0);
    EXPECT_LE(gap, 3 * exact) << p;
    EXPECT_GE(gap, exact / 3) << p;
  }
}

TEST(DualStep, GivesNoNegativeGapOfTheLogLoss) {
  for (const DualPoint& at : points(Loss::kLog)) {
    EXPECT_GE(DualStep<Loss::kLog>::gap(at, 0), 0) << "p " << at.p << ", alpha " << at.alpha;
  }
}

TEST(DualStep, RestsAtABoundFarFromTheKink) {
  using Hinge = DualStep<Loss::kHinge>;
  EXPECT_TRUE(Hinge::rests({0, 1, 2, 1, 1.5}, 0, 0, 0.1));
  EXPECT_FALSE(Hinge::rests({0, 1, 2, 1, 1.05}, 0, 0, 0.1));
  EXPECT_TRUE(Hinge::rests({-2, -1, 2, 1, -0.5}, -2, 0, 0.1));
  EXPECT_FALSE(Hinge::rests({-1, -1, 2, 1, -0.5}, -1, 0, 0.1));
  using Insensitive = DualStep<Loss::kEpsilonInsensitive>;
  EXPECT_TRUE(Insensitive::rests({0, 3, 2, 1, 3.1}, 0, 0.3, 0.1));
  EXPECT_FALSE(Insensitive::rests({0, 3, 2, 1, 3.25}, 0, 0.3, 0.1));
  EXPECT_TRUE(Insensitive::rests({2, 3, 2, 1, 2}, 2, 0.3, 0.1));
  EXPECT_FALSE(Insensitive::rests({2, 3, 2, 1, 4}, 2, 0.3, 0.1));
}

TEST(DualStep, GivesTheDualThatMeetsTheLoss) {
  // c loss(p) + c conjugate(-alpha / c) = -alpha p where alpha = -c loss'(p), so that the dual's
  // part is the loss's plus alpha p.
  for (const Loss loss : {Loss::kLog, Loss::kSquaredHinge, Loss::kSquared,
                          Loss::kSquaredEpsilonInsensitive, Loss::kHinge}) {
    for (const double p : {-2.0, 0.4, 0.9, 3.0}) {
      const double cost = 1.7;
      const LossPoint at = loss_at(loss, kEpsilon, 1, p);
      const double alpha = -cost * at.slope;
      EXPECT_NEAR(dual_at(loss, kEpsilon, alpha, 1, cost), cost * at.loss + alpha * p, 1e-12);
    }
  }
}

}  // namespace
}  // namespace learn
