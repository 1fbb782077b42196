#include "learn/dual_ascent.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dstorm/errors.hpp"
#include "learn/dual_each_loss.hpp"
#include "learn/dual_job.hpp"
#include "learn/dual_least_value.hpp"
#include "learn/dual_problem.hpp"
#include "learn/dual_step.hpp"

namespace learn {
namespace {

// The result of a job of one rank: its objective, by the test's own arithmetic, and its bounds.
template <class T>
void expect_least(const DualProblem& problem, bool is_sparse, double least) {
  DualJob<T> job(problem, {all_rows(problem)}, is_sparse);
  const DualGap gap = job.solve(kClose / 2, kMostSweeps);
  const double found = problem.primal(job.weights(), job.intercept());
  EXPECT_LE(found, least * (1 + kClose)) << "sparse " << is_sparse << ", sweeps " << job.sweeps;
  EXPECT_NEAR(gap.primal, found, 1e-6 * found);
  EXPECT_GE(gap.primal, least * (1 - 1e-7));
  EXPECT_LE(gap.dual, least * (1 + 1e-7));
  EXPECT_GE(gap.dual, least * (1 - kClose));
}

INSTANTIATE_TEST_SUITE_P(DualAscent, EachLoss, kEachLoss);

TEST_P(EachLoss, ReachesTheLeastValueOfPlainRows) {
  for (const double c : {1e-3, 0.05}) {
    DualProblem problem = random_problem(loss(), intercept());
    problem.options.c = c;
    const double least = least_value(problem);
    expect_least<double>(problem, true, least);
    expect_least<double>(problem, false, least);
    expect_least<float>(problem, true, least);
    expect_least<float>(problem, false, least);
  }
}

TEST_P(EachLoss, ReachesTheLeastValueWithAnyNumberOfUnlikeRanks) {
  DualProblem problem = random_problem(loss(), intercept(), 120, 8);
  problem.options.c = 0.02;
  const double least = least_value(problem);
  for (std::size_t ranks = 1; ranks <= 8; ++ranks) {
    DualJob<double> job(problem, unlike_shards(problem, ranks), ranks % 2 == 0);
    const DualGap gap = job.solve(kClose / 2, kMostSweeps);
    const double found = problem.primal(job.weights(), job.intercept());
    EXPECT_LE(found, least * (1 + kClose)) << ranks << " ranks, sweeps " << job.sweeps;
    EXPECT_GE(gap.dual, least * (1 - kClose)) << ranks << " ranks";
    EXPECT_LE(gap.dual, least * (1 + 1e-7)) << ranks << " ranks";
  }
}

TEST_P(EachLoss, ReachesTheLeastValueInFloatWithThreeRanks) {
  DualProblem problem = random_problem(loss(), intercept(), 120, 8);
  problem.options.c = 0.02;
  DualJob<float> job(problem, unlike_shards(problem, 3), true);
  job.solve(kClose / 2, kMostSweeps);
  EXPECT_LE(problem.primal(job.weights(), job.intercept()), least_value(problem) * (1 + kClose));
}

TEST_P(EachLoss, BoundsTheLeastValueAfterEverySweep) {
  const DualProblem problem = random_problem(loss(), intercept());
  const double least = least_value(problem);
  DualJob<double> job(problem, unlike_shards(problem, 2), true);
  job.settle();
  for (int sweep = 0; sweep < 30; ++sweep) {
    job.sweep(4);
    const DualGap gap = job.gap();
    EXPECT_LE(gap.dual, least * (1 + 1e-7)) << sweep;
    EXPECT_GE(gap.primal, least * (1 - 1e-7)) << sweep;
  }
}

TEST_P(EachLoss, AMeasurementChangesNothingForOneRankAlone) {
  const DualProblem problem = random_problem(loss(), intercept());
  const Shard<double> shard(problem, all_rows(problem));
  DualAscent<double> ascent(problem.options, shard.csr(), shard.targets());
  DualGap gap;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    ascent.begin_sweep();
    ascent.sweep(0, 1);
    const double before = ascent.intercept();
    gap = measure(ascent);
    ASSERT_NEAR(ascent.intercept(), before, 1e-9 * (1 + std::abs(before))) << sweep;
    if (gap.primal - gap.dual <= kClose * gap.primal) break;
  }
  EXPECT_LE(gap.primal - gap.dual, kClose * gap.primal);
}

TEST_P(EachLoss, FindsTheSameWhereColumnsAreConstantOrTwice) {
  DualProblem problem = random_problem(loss(), intercept());
  problem.options.c = 0.01;
  for (std::size_t i = 0; i < problem.rows(); ++i) {
    const std::size_t first = i * static_cast<std::size_t>(problem.features);
    problem.values[first] = 2;
    problem.values[first + 2] = problem.values[first + 1];
  }
  expect_least<double>(problem, true, least_value(problem));
  expect_least<float>(problem, false, least_value(problem));
}

TEST_P(EachLoss, HandlesRowsOfZerosAndWeightsOfZero) {
  DualProblem problem = random_problem(loss(), intercept());
  problem.options.c = 0.01;
  for (std::size_t i = 0; i < problem.rows(); i += 3) {
    const std::size_t first = i * static_cast<std::size_t>(problem.features);
    std::fill_n(&problem.values[first], problem.features, 0.0);
    problem.weights[i + 1] = 0;
  }
  expect_least<double>(problem, true, least_value(problem));
  expect_least<float>(problem, false, least_value(problem));
}

// With steps for the penalty alone these take hundreds of thousands of sweeps.
TEST_P(EachLoss, ReachesTheLeastValueOfSteepLossesInFewSweeps) {
  if (!is_smooth(loss())) return;
  for (const double c : {10.0, 1000.0}) {
    DualProblem problem = random_problem(loss(), intercept(), 200, 10);
    problem.options.c = c;
    const double least = least_value(problem);
    for (const std::size_t ranks : {1U, 3U, 8U}) {
      DualJob<double> job(problem, unlike_shards(problem, ranks), true);
      job.solve(kClose / 2, 300);
      EXPECT_LE(problem.primal(job.weights(), job.intercept()), least * (1 + kClose))
          << "C " << c << ", " << ranks << " ranks";
    }
  }
}

TEST_P(EachLoss, ReachesTheLeastValueWithAProximalTerm) {
  DualProblem problem = random_problem(loss(), intercept(), 120, 8);
  problem.options.c = 0.02;
  problem.options.least_kappa = 5;
  const double least = least_value(problem);
  for (const std::size_t ranks : {1U, 3U}) {
    DualJob<float> job(problem, unlike_shards(problem, ranks), false);
    job.solve(kClose / 2, kMostSweeps);
    EXPECT_LE(problem.primal(job.weights(), job.intercept()), least * (1 + kClose)) << ranks;
  }
}

TEST_P(EachLoss, StaysFiniteForAnyC) {
  for (const double c : {1e-8, 1e-4, 1e4, 1e8}) {
    DualProblem problem = random_problem(loss(), intercept());
    problem.options.c = c;
    DualJob<float> job(problem, unlike_shards(problem, 2), true);
    const DualGap gap = job.solve(kClose, 100);
    EXPECT_TRUE(std::isfinite(gap.primal)) << c;
    EXPECT_TRUE(std::isfinite(gap.dual)) << c;
    if (c > 1) continue;
    EXPECT_LE(gap.primal - gap.dual, 1e-4 * gap.primal) << c;
  }
}

TEST_P(EachLoss, IsTheSameInOnePieceAndInMany) {
  const DualProblem problem = random_problem(loss(), intercept());
  const Shard<double> shard(problem, all_rows(problem));
  DualAscent<double> one(problem.options, shard.csr(), shard.targets());
  DualAscent<double> many(problem.options, shard.csr(), shard.targets());
  for (int sweep = 0; sweep < 20; ++sweep) {
    one.begin_sweep();
    const std::int64_t rows = one.sweep(0, 1);
    many.begin_sweep();
    std::int64_t of_pieces = 0;
    for (int piece = 0; piece < 7; ++piece) of_pieces += many.sweep(piece, 7);
    EXPECT_EQ(of_pieces, rows);
  }
  EXPECT_EQ(one.intercept(), many.intercept());
  EXPECT_TRUE(std::equal(one.weights().begin(), one.weights().end(), many.weights().begin()));
}

// Over 800 kB of rows, which are several pieces. The ascents' short sweeps do not begin together,
// since fewer rows of a large C rest.
TEST_P(EachLoss, IsTheSameAloneAndTogether) {
  DualProblem problem = random_problem(loss(), intercept(), 2500, 40);
  const Shard<double> shard(problem, all_rows(problem));
  std::vector<DualAscent<double>> alone;
  std::vector<DualAscent<double>> together;
  for (const double c : {0.001, 0.1, 10.0}) {
    problem.options.c = c;
    problem.options.together = 3;
    alone.emplace_back(problem.options, shard.dense(), shard.targets());
    together.emplace_back(problem.options, shard.dense(), shard.targets());
  }
  for (int sweep = 0; sweep < 20; ++sweep) {
    std::vector<DualAscent<double>*> all;
    for (std::size_t k = 0; k < alone.size(); ++k) {
      alone[k].begin_sweep();
      alone[k].sweep(0, 1);
      together[k].begin_sweep();
      all.push_back(&together[k]);
    }
    DualAscent<double>::sweep_together(all);
  }
  for (std::size_t k = 0; k < alone.size(); ++k) {
    EXPECT_EQ(alone[k].intercept(), together[k].intercept()) << k;
    EXPECT_TRUE(std::ranges::equal(alone[k].weights(), together[k].weights())) << k;
  }
}

// An estimate is of the middle of a sweep. So it is above the gap at the end, by as much as the gap
// falls in half a sweep. The gap of hinges does not fall in every sweep, and short sweeps see only
// the rows that do not rest.
void expect_estimates(const DualProblem& problem, std::size_t ranks) {
  constexpr int kMost = 200;
  const double least = is_smooth(problem.options.loss) ? 0.4 : 0.01;
  DualJob<double> job(problem, Dealt{ranks}, true);
  job.settle();
  DualGap gap;
  double logs = 0;
  int sweeps = 0;
  do {
    job.sweep(16);
    const double estimate = job.estimate();
    gap = job.gap();
    const double ratio = estimate / (gap.primal - gap.dual);
    EXPECT_GE(ratio, least) << "sweep " << sweeps;
    EXPECT_LE(ratio, 100) << "sweep " << sweeps;
    logs += std::log(ratio);
    ++sweeps;
  } while (gap.primal - gap.dual > 1e-7 * gap.primal && sweeps < kMost);
  EXPECT_LT(sweeps, kMost);
  EXPECT_GE(std::exp(logs / sweeps), 1);
  EXPECT_LE(std::exp(logs / sweeps), 40);

  for (int sweep = 0; sweep < 300; ++sweep) job.sweep(16);
  EXPECT_LE(job.estimate(), 1e-10 * gap.primal);
}

// Without an intercept: to measure a gap with one, alphas are scaled, also of rows that rest. Short
// sweeps do not see these.
TEST_P(EachLoss, EstimatesTheGap) {
  if (intercept()) return;
  DualProblem problem = random_problem(loss(), false, 400);
  problem.options.c = 0.02;
  for (const double kappa : {0.0, 5.0}) {
    problem.options.least_kappa = kappa;
    for (const std::size_t ranks : {1U, 3U}) {
      SCOPED_TRACE("kappa " + std::to_string(kappa) + ", ranks " + std::to_string(ranks));
      expect_estimates(problem, ranks);
    }
  }
}

TEST_P(EachLoss, ContinuesFromTheAlphasOfAnEarlierTraining) {
  DualProblem problem = random_problem(loss(), intercept());
  problem.options.c = 0.01;
  const Shard<double> shard(problem, all_rows(problem));
  DualJob<double> job(problem, {all_rows(problem)}, true);
  const DualGap reached = job.solve(kClose, kMostSweeps);
  std::vector<double> alphas(problem.rows());
  job.rank(0).copy_alphas(alphas);
  DualAscent<double> warm(problem.options, shard.csr(), shard.targets(),
                          {alphas, job.rank(0).intercept()});
  const DualGap gap = measure(warm);
  EXPECT_LE(gap.primal - gap.dual, 1.5 * (reached.primal - reached.dual) + 1e-9 * gap.primal);
}

TEST_P(EachLoss, GoesOnWithTheRowsOfTheRanksThatAreLeft) {
  DualProblem problem = random_problem(loss(), intercept());
  problem.options.c = 0.01;
  auto shards = unlike_shards(problem, 3);
  std::rotate(shards.begin(), shards.end() - 1, shards.end());  // the second part dies
  DualJob<double> job(problem, shards, true);
  job.settle();
  for (int sweep = 0; sweep < 5; ++sweep) job.sweep(16);
  job.lose_last();
  job.solve(kClose / 2, kMostSweeps);
  for (const std::size_t lost : shards.back()) problem.weights[lost] = 0;
  EXPECT_LE(problem.primal(job.weights(), job.intercept()), least_value(problem) * (1 + kClose));
}

TEST_P(EachLoss, SolvesWithRanksThatHaveNoRows) {
  DualProblem problem = random_problem(loss(), intercept());
  problem.options.c = 0.01;
  DualJob<double> job(problem, {{}, all_rows(problem), {}}, true);
  job.solve(kClose / 2, kMostSweeps);
  EXPECT_LE(problem.primal(job.weights(), job.intercept()), least_value(problem) * (1 + kClose));

  DualJob<double> empty(problem, {{}, {}}, false);
  const DualGap gap = empty.solve(kClose, 4);
  EXPECT_EQ(gap.primal, 0);
  EXPECT_EQ(gap.dual, 0);
}

TEST(DualAscent, SeparatesWhatCanBeSeparated) {
  for (const Loss loss : {Loss::kLog, Loss::kHinge, Loss::kSquaredHinge}) {
    DualProblem problem = random_problem(loss, true, 60, 5);
    for (std::size_t i = 0; i < problem.rows(); ++i) {
      problem.targets[i] = problem.row(i)[0] - problem.row(i)[1] + 0.1 > 0 ? 1 : -1;
    }
    problem.options.c = 1;
    expect_least<double>(problem, true, least_value(problem));
  }
}

TEST(DualAscent, LeavesWeightsAtZeroIfAllLabelsAreTheSame) {
  for (const Loss loss : {Loss::kHinge, Loss::kSquaredHinge}) {
    DualProblem problem = random_problem(loss, true);
    problem.targets.assign(problem.rows(), -1);
    DualJob<double> job(problem, unlike_shards(problem, 2), true);
    const DualGap gap = job.solve(0, 200);
    EXPECT_NEAR(gap.primal, 0, 1e-9);
    EXPECT_NEAR(problem.primal(job.weights(), job.intercept()), 0, 1e-9);
  }
}

TEST(DualAscent, RefusesTheLogLossWithAnInterceptAndOneLabel) {
  DualProblem problem = random_problem(Loss::kLog, true);
  problem.targets.assign(problem.rows(), -1);
  EXPECT_THROW(DualJob<double>(problem, {all_rows(problem)}, true), dstorm::ConfigError);
  DualJob<double> job(problem, unlike_shards(problem, 2), true);
  EXPECT_THROW(job.solve(kClose, 8), dstorm::ConfigError);
}

TEST(DualAscent, VisitsFewRowsWhileMostAlphasRest) {
  DualProblem problem = random_problem(Loss::kHinge, false, 4000, 5);
  const Shard<double> shard(problem, all_rows(problem));
  problem.options.c = 0.001;
  DualAscent<double> ascent(problem.options, shard.csr(), shard.targets());
  std::int64_t least = shard.csr().rows();
  for (int sweep = 0; sweep < 10; ++sweep) {
    ascent.begin_sweep();
    least = std::min(least, ascent.sweep(0, 1));
  }
  EXPECT_LT(least, shard.csr().rows() / 2);
}

TEST(DualAscent, DependsOnItsSeedAlone) {
  DualProblem problem = random_problem(Loss::kLog, false);
  const auto weights = [&](std::uint64_t seed) {
    problem.options.seed = seed;
    const Shard<double> shard(problem, all_rows(problem));
    DualAscent<double> ascent(problem.options, shard.csr(), shard.targets());
    ascent.begin_sweep();
    ascent.sweep(0, 1);
    return std::vector<double>(ascent.weights().begin(), ascent.weights().end());
  };
  EXPECT_EQ(weights(5), weights(5));
  EXPECT_NE(weights(5), weights(6));
}

}  // namespace
}  // namespace learn
