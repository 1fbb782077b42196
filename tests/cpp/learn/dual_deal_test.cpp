// Rows that are dealt out to the ranks anew in each sweep (DualDeal).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "learn/dual_ascent.hpp"
#include "learn/dual_each_loss.hpp"
#include "learn/dual_job.hpp"
#include "learn/dual_least_value.hpp"
#include "learn/dual_problem.hpp"

namespace learn {
namespace {

INSTANTIATE_TEST_SUITE_P(DualDeal, EachLoss, kEachLoss);

template <class T>
void expect_least(const DualProblem& problem, std::size_t ranks, bool is_sparse) {
  const double least = least_value(problem);
  DualJob<T> job(problem, Dealt{ranks}, is_sparse);
  const DualGap gap = job.solve(kClose / 2, kMostSweeps);
  const double found = problem.primal(job.weights(), job.intercept());
  EXPECT_LE(found, least * (1 + kClose)) << ranks << " ranks, sweeps " << job.sweeps;
  EXPECT_NEAR(gap.primal, found, 1e-6 * found) << ranks << " ranks";
  EXPECT_LE(gap.dual, least * (1 + 1e-7)) << ranks << " ranks";
  EXPECT_GE(gap.dual, least * (1 - kClose)) << ranks << " ranks";
}

// The alphas of all rows, of which each rank has a part.
template <class T>
std::vector<T> alphas_of(DualJob<T>& job, std::size_t rows) {
  std::vector<T> alphas(rows);
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    const std::size_t first = rows * rank / job.size();
    const std::size_t last = rows * (rank + 1) / job.size();
    job.rank(rank).copy_alphas(std::span(alphas).subspan(first, last - first));
  }
  return alphas;
}

TEST_P(EachLoss, ReachesTheLeastValueWithDealtRows) {
  DualProblem problem = random_problem(loss(), intercept(), 120, 8);
  problem.options.c = 0.02;
  for (const std::size_t ranks : {1U, 2U, 3U, 8U}) {
    expect_least<double>(problem, ranks, true);
    expect_least<double>(problem, ranks, false);
  }
  expect_least<float>(problem, 3, true);
  expect_least<float>(problem, 2, false);
}

TEST_P(EachLoss, ReachesTheLeastValueOfDealtRowsWithAProximalTerm) {
  DualProblem problem = random_problem(loss(), intercept(), 120, 8);
  problem.options.c = 0.02;
  problem.options.least_kappa = 5;
  expect_least<double>(problem, 3, true);
  expect_least<float>(problem, 3, false);
}

// C is so small that each row's first step leaves 0. So a row whose alpha is 0 was not visited. (An
// intercept is free to take over some of these steps.)
TEST_P(EachLoss, VisitsEachDealtRowOnceInASweep) {
  DualProblem problem = random_problem(loss(), intercept(), 199, 5);
  problem.options.c = 1e-6;
  problem.options.epsilon = 0;
  const auto rows = static_cast<std::int64_t>(problem.rows());
  for (const std::size_t ranks : {2U, 3U, 8U}) {
    DualJob<double> job(problem, Dealt{ranks}, true);
    job.settle();
    const SweptRows swept = job.sweep(5);
    EXPECT_EQ(swept.announced, rows) << ranks << " ranks";
    EXPECT_EQ(swept.visited, rows) << ranks << " ranks";
    if (intercept()) continue;
    const std::vector<double> alphas = alphas_of(job, problem.rows());
    for (std::size_t i = 0; i < problem.rows(); ++i) {
      EXPECT_EQ(alphas[i] != 0, problem.weights[i] > 0) << "row " << i << ", " << ranks << " ranks";
    }
  }
}

TEST_P(EachLoss, AnnouncesTheRowsOfEverySweep) {
  const DualProblem problem = random_problem(loss(), intercept(), 199, 5);
  for (const std::size_t ranks : {2U, 3U, 8U}) {
    DualJob<double> job(problem, Dealt{ranks}, false);
    job.settle();
    for (int sweep = 0; sweep < 40; ++sweep) {
      const SweptRows swept = job.sweep(4);
      EXPECT_EQ(swept.visited, swept.announced) << ranks << " ranks, sweep " << sweep;
    }
  }
}

TEST(DualDeal, VisitsFewRowsWhileMostAlphasRest) {
  DualProblem problem = random_problem(Loss::kHinge, false, 4000, 5);
  problem.options.c = 0.001;
  DualJob<double> job(problem, Dealt{3}, true);
  job.settle();
  SweptRows least{4000, 4000};
  for (int sweep = 0; sweep < 10; ++sweep) {
    const SweptRows swept = job.sweep(4);
    EXPECT_EQ(swept.visited, swept.announced) << sweep;
    if (swept.visited < least.visited) least = swept;
  }
  EXPECT_LT(least.visited, 2000);
  EXPECT_GT(least.visited, 0);
}

// The weights are the sum of alpha x, for each row's own alpha alone.
TEST_P(EachLoss, GivesEachRankItsPartOfTheAlphas) {
  DualProblem problem = random_problem(loss(), intercept(), 97, 8);
  problem.options.c = 0.02;
  for (const std::size_t ranks : {2U, 3U, 8U}) {
    DualJob<double> job(problem, Dealt{ranks}, true);
    job.settle();
    for (int sweep = 0; sweep < 3; ++sweep) job.sweep(4);
    const std::vector<double> weights = job.weights();
    const std::vector<double> alphas = alphas_of(job, problem.rows());
    for (std::size_t j = 0; j < weights.size(); ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < problem.rows(); ++i) sum += alphas[i] * problem.row(i)[j];
      EXPECT_NEAR(weights[j], sum, 1e-9 * (1 + std::abs(sum))) << "column " << j;
    }
  }
}

TEST_P(EachLoss, ContinuesFromTheAlphasOfAllDealtRows) {
  DualProblem problem = random_problem(loss(), intercept(), 97, 8);
  problem.options.c = 0.02;
  DualJob<double> job(problem, Dealt{3}, true);
  const DualGap reached = job.solve(kClose, kMostSweeps);
  const std::vector<double> alphas = alphas_of(job, problem.rows());
  for (const std::size_t ranks : {1U, 2U, 3U, 8U}) {
    DualJob<double> warm(problem, Dealt{ranks}, false, {alphas, job.intercept()});
    warm.settle();
    const DualGap gap = warm.gap();
    // The alphas to start with are scaled until they sum to 0, which moves w.
    EXPECT_NEAR(gap.primal, reached.primal, kClose * reached.primal) << ranks << " ranks";
    EXPECT_NEAR(gap.dual, reached.dual, 1e-9 * reached.primal) << ranks << " ranks";
  }
}

TEST_P(EachLoss, GoesOnWithTheDealtRowsOfTheRanksThatAreLeft) {
  DualProblem problem = random_problem(loss(), intercept(), 120, 8);
  problem.options.c = 0.02;
  DualJob<double> job(problem, Dealt{3}, true);
  job.settle();
  for (int sweep = 0; sweep < 5; ++sweep) job.sweep(16);
  job.lose_last();
  job.solve(kClose / 2, kMostSweeps);
  for (std::size_t lost = 80; lost < problem.rows(); ++lost) problem.weights[lost] = 0;
  EXPECT_LE(problem.primal(job.weights(), job.intercept()), least_value(problem) * (1 + kClose));
}

TEST_P(EachLoss, SolvesWithMoreRanksThanDealtRows) {
  DualProblem problem = random_problem(loss(), intercept(), 5, 3);
  problem.weights.assign(problem.rows(), 1);
  if (is_of_labels(loss())) problem.targets = {1, -1, 1, 1, -1};
  expect_least<double>(problem, 8, true);
  expect_least<float>(problem, 8, false);
}

TEST(DualDeal, SolvesWithoutRows) {
  DualJob<double> job(random_problem(Loss::kHinge, true, 0, 3), Dealt{2}, true);
  const DualGap gap = job.solve(kClose, 4);
  EXPECT_EQ(gap.primal, 0);
  EXPECT_EQ(gap.dual, 0);
}

// Rows at random, the same number for each rank.
std::vector<std::vector<std::size_t>> random_shards(const DualProblem& problem, std::size_t ranks) {
  std::vector<std::size_t> rows = all_rows(problem);
  std::mt19937 random(1);
  std::shuffle(rows.begin(), rows.end(), random);
  std::vector<std::vector<std::size_t>> shards(ranks);
  for (std::size_t i = 0; i < rows.size(); ++i) shards[i % ranks].push_back(rows[i]);
  return shards;
}

// All rows have a part in the first column. Between two exchanges, each rank makes good there what
// its own rows get wrong, and the others make it good too. There are few exchanges, so that a rank
// takes as many steps between two as it does with many rows.
TEST(DualDeal, NeedsFewSweepsWhereAllRowsShareAColumn) {
  DualProblem problem = random_problem(Loss::kLog, false, 1000, 10);
  for (std::size_t i = 0; i < problem.rows(); ++i) problem.values[10 * i] = 2;
  const auto sweeps_of = [&](auto division) {
    constexpr int kPieces = 4;
    DualJob<double> job(problem, division, true);
    job.settle();
    for (int sweeps = 1;; ++sweeps) {
      job.sweep(kPieces);
      const DualGap gap = job.gap();
      if (gap.primal - gap.dual <= kClose * gap.primal || sweeps == 1000) return sweeps;
    }
  };
  for (const double c : {1.0, 3.0}) {
    problem.options.c = c;
    const int alone = sweeps_of(Dealt{1});
    for (const std::size_t ranks : {2U, 3U}) {
      const int dealt = sweeps_of(Dealt{ranks});
      const int own = sweeps_of(random_shards(problem, ranks));
      EXPECT_LE(dealt, 1.5 * alone) << "C " << c << ", " << ranks << " ranks";
      EXPECT_GT(own, 1.5 * dealt) << "C " << c << ", " << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace learn
