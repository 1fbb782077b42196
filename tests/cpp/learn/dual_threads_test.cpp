// Ranks of dual ascent that run at the same time. ThreadSanitizer sees here whether two touch a row
// or a list.
#include <gtest/gtest.h>

#include "learn/dual_ascent.hpp"
#include "learn/dual_each_loss.hpp"
#include "learn/dual_job.hpp"
#include "learn/dual_least_value.hpp"
#include "learn/dual_problem.hpp"
#include "learn/dual_team.hpp"

namespace learn {
namespace {

INSTANTIATE_TEST_SUITE_P(DualThreads, EachLoss, kEachLoss);

TEST_P(EachLoss, ReachesTheLeastValueWithDealtRowsInThreads) {
  DualProblem problem = random_problem(loss(), intercept(), 300, 8);
  problem.options.c = 0.02;
  const double least = least_value(problem);
  for (const int pieces : {3, 16}) {
    DualJob<double> job(problem, Dealt{3}, pieces == 3);
    DualTeam<double>(job).solve(kClose / 2, 2000, pieces);
    EXPECT_LE(problem.primal(job.weights(), job.intercept()), least * (1 + kClose)) << pieces;
  }
}

}  // namespace
}  // namespace learn
