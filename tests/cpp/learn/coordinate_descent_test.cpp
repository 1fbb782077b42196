#include "learn/coordinate_descent.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dstorm/errors.hpp"

namespace learn {
namespace {

constexpr std::size_t kRows = 60;
constexpr std::size_t kColumns = 150;  // more than two blocks for each of two ranks

// Correlated columns with means, one constant, one of zeros and one twice; a third of the values is
// 0. Stored by columns.
struct Columns {
  std::vector<double> values = std::vector<double>(kRows * kColumns);
  std::vector<double> y = std::vector<double>(kRows);
  double at(std::size_t i, std::size_t j) const { return values[j * kRows + i]; }

  Columns() {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (std::size_t j = 0; j < kColumns; ++j) {
      for (std::size_t i = 0; i < kRows; ++i) {
        double& value = values[j * kRows + i];
        value = normal(random) + (j == 0 ? 0 : 0.8 * at(i, j - 1));
        if (random() % 3 == 0) value = 0;
      }
    }
    for (std::size_t i = 0; i < kRows; ++i) {
      values[3 * kRows + i] = 2.5;
      values[4 * kRows + i] = 0;
      values[6 * kRows + i] = at(i, 5);
      y[i] = 7 + normal(random);
      for (std::size_t j = 0; j < kColumns; j += 15) y[i] += at(i, j) * (j % 2 == 0 ? 1 : -2);
    }
  }

  double objective(const DescentOptions& options, const std::vector<double>& w) const {
    std::vector<double> r = y;
    double penalty = 0;
    for (std::size_t j = 0; j < kColumns; ++j) {
      for (std::size_t i = 0; i < kRows; ++i) r[i] -= at(i, j) * w[j];
      penalty += options.l1_ratio * std::abs(w[j]) + (1 - options.l1_ratio) * w[j] * w[j] / 2;
    }
    const double mean = options.intercept ? std::accumulate(r.begin(), r.end(), 0.0) / kRows : 0.0;
    double sum = 0;
    for (const double each : r) sum += (each - mean) * (each - mean);
    return sum / (2.0 * kRows) + options.alpha * penalty;
  }
};

// The same columns as a kernel reads them.
template <class T>
struct Stored {
  std::vector<T> values;
  std::vector<T> y;
  std::vector<T> present;
  std::vector<std::int32_t> rows;
  std::vector<std::int64_t> starts{0};

  explicit Stored(const Columns& from)
      : values(from.values.begin(), from.values.end()), y(from.y.begin(), from.y.end()) {
    for (std::size_t at = 0; at < values.size(); ++at) {
      if (values[at] != 0) {
        present.push_back(values[at]);
        rows.push_back(static_cast<std::int32_t>(at % kRows));
      }
      if (at % kRows == kRows - 1) starts.push_back(std::ssize(present));
    }
  }
  CoordinateDescent<T> descent(const DescentOptions& options, bool is_sparse,
                               std::span<const T> start = {}) const {
    if (is_sparse) {
      const Csr<T> matrix{starts, rows, present, kRows};
      return CoordinateDescent<T>(options, matrix, y, start);
    }
    return CoordinateDescent<T>(options, Dense<T>{values, kRows}, y, start);
  }
};

// Ranks that solve one problem, in one thread.
template <class T>
struct Team {
  std::vector<CoordinateDescent<T>> ranks;
  std::vector<DescentGap> gaps;
  std::vector<double> lengths;

  Team(const Stored<T>& stored, DescentOptions options, bool is_sparse,
       std::span<const T> start = {}) {
    for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
      ranks.push_back(stored.descent(options, is_sparse, start));
    }
    if (!start.empty()) {
      const std::vector<T> sum = sum_of([](auto& rank, auto& out) { rank.contribute(out); });
      for (auto& rank : ranks) rank.settle(sum);
    }
  }
  template <class Write>
  std::vector<T> sum_of(Write write) {
    std::vector<T> sum(kRows + CoordinateDescent<T>::kSums);
    for (auto& rank : ranks) {
      std::vector<T> own(sum.size());
      write(rank, own);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
    return sum;
  }
  DescentGap look() {
    DescentLook all;
    for (auto& rank : ranks) {
      const DescentLook own = rank.look();
      all.most = std::max(all.most, own.most);
      all.excess += own.excess;
      all.size += own.size;
      all.square += own.square;
    }
    for (auto& rank : ranks) gaps.push_back(rank.choose(all));
    return gaps.back();
  }
  void sweep() {
    for (int exchange = 0; exchange < (ranks.size() == 1 ? 1 : 20); ++exchange) {
      for (auto& rank : ranks) rank.sweep(0.1, 20);
      if (ranks.size() == 1) return;
      const std::vector<T> sum = sum_of([](auto& rank, auto& out) { rank.take_change(out); });
      for (auto& rank : ranks) lengths.push_back(rank.add_changes(sum));
    }
  }
  DescentGap solve(double tol, int most = 3000) {
    DescentGap gap = look();
    for (int round = 0; gap.primal - gap.dual > tol * gap.primal && round < most; ++round) {
      sweep();
      gap = look();
    }
    return gap;
  }
  std::vector<double> weights() const {
    std::vector<double> sum(kColumns);
    for (const auto& rank : ranks) {
      for (std::size_t j = 0; j < kColumns; ++j) sum[j] += static_cast<double>(rank.weights()[j]);
    }
    return sum;
  }
};

// The least value by the conditions of optimality, checked in the test's own arithmetic.
void expect_optimal(const Columns& columns, const DescentOptions& options,
                    const std::vector<double>& w) {
  std::vector<double> r = columns.y;
  for (std::size_t j = 0; j < kColumns; ++j) {
    for (std::size_t i = 0; i < kRows; ++i) r[i] -= columns.at(i, j) * w[j];
  }
  const double mean = options.intercept ? std::accumulate(r.begin(), r.end(), 0.0) / kRows : 0.0;
  for (std::size_t j = 0; j < kColumns; ++j) {
    double slope = 0;
    for (std::size_t i = 0; i < kRows; ++i) slope += columns.at(i, j) * (r[i] - mean) / kRows;
    slope -= options.alpha * (1 - options.l1_ratio) * w[j];
    const double limit = options.alpha * options.l1_ratio;
    if (w[j] == 0) {
      EXPECT_LE(options.positive ? slope : std::abs(slope), limit + 1e-5) << j;
    } else {
      EXPECT_NEAR(slope, w[j] > 0 ? limit : -limit, 1e-5) << j;
      EXPECT_TRUE(w[j] > 0 || !options.positive) << j;
    }
  }
}

TEST(CoordinateDescent, MeetsTheConditionsOfOptimalityOnAnyNumberOfRanks) {
  const Columns columns;
  const Stored<double> stored(columns);
  for (const double ratio : {1.0, 0.5, 0.0}) {
    for (const auto& [intercept, positive] :
         std::vector<std::pair<bool, bool>>{{true, false}, {false, false}, {true, true}}) {
      for (const int ranks : {1, 2, 4}) {
        for (const bool is_sparse : {true, false}) {
          DescentOptions options;
          options.positive = positive;
          options.alpha = 0.1;
          options.l1_ratio = ratio;
          options.intercept = intercept;
          options.ranks = ranks;
          Team<double> team(stored, options, is_sparse);
          const DescentGap gap = team.solve(1e-11);
          EXPECT_LE(gap.primal - gap.dual, 1e-11 * gap.primal);
          EXPECT_NEAR(gap.primal, columns.objective(options, team.weights()), 1e-9 * gap.primal);
          expect_optimal(columns, options, team.weights());
          for (const double length : team.lengths) {
            EXPECT_GE(length, 1.0 / ranks);
            EXPECT_LE(length, 1);
          }
        }
      }
    }
  }
}

TEST(CoordinateDescent, BoundsTheLeastValueAtEveryLookAndNeverRises) {
  const Columns columns;
  const Stored<double> stored(columns);
  for (const double ratio : {1.0, 0.3}) {
    for (const int ranks : {1, 3}) {
      DescentOptions options;
      options.alpha = 0.05;
      options.l1_ratio = ratio;
      options.ranks = ranks;
      Team<double> team(stored, options, true);
      const DescentGap least = team.solve(1e-12);
      for (std::size_t k = 0; k < team.gaps.size(); ++k) {
        EXPECT_LE(team.gaps[k].dual, least.primal * (1 + 1e-12)) << k;
        if (k > 0) {
          EXPECT_LE(team.gaps[k].primal, team.gaps[k - 1].primal * (1 + 1e-12)) << k;
        }
      }
    }
  }
}

TEST(CoordinateDescent, TheDynamicScheduleTakesFewerStepsThanTheRandomOne) {
  const Columns columns;
  const Stored<double> stored(columns);
  DescentOptions options;
  options.alpha = 0.3;
  Team<double> dynamic(stored, options, false);
  const DescentGap gap = dynamic.solve(1e-7);
  options.dynamic = false;
  Team<double> random(stored, options, false);
  EXPECT_NEAR(random.solve(1e-7).primal, gap.primal, 1e-6 * gap.primal);
  EXPECT_LT(dynamic.ranks[0].updates(), random.ranks[0].updates());
}

// Sweeps over all columns, in order, that end where those of the kernel do: without extrapolation.
std::int64_t plain_steps(const Columns& columns, const DescentOptions& options, double objective) {
  std::vector<double> w(kColumns);
  std::vector<double> r = columns.y;
  std::int64_t steps = 0;
  while (columns.objective(options, w) > objective) {
    for (std::size_t j = 0; j < kColumns; ++j, ++steps) {
      double square = 0;
      double product = 0;
      for (std::size_t i = 0; i < kRows; ++i) {
        square += columns.at(i, j) * columns.at(i, j);
        product += columns.at(i, j) * r[i];
      }
      const double aim = w[j] * square + product;
      const double limit = kRows * options.alpha;
      const double shrunk = std::max(0.0, std::abs(aim) - limit) / std::max(square, 1e-300);
      const double moved = std::copysign(shrunk, aim) - w[j];
      for (std::size_t i = 0; i < kRows; ++i) r[i] -= moved * columns.at(i, j);
      w[j] += moved;
    }
  }
  return steps;
}

TEST(CoordinateDescent, ExtrapolatesWhereColumnsAreCorrelated) {
  Columns columns;
  for (std::size_t j = 1; j < kColumns; ++j) {
    for (std::size_t i = 0; i < kRows; ++i) {
      double& value = columns.values[j * kRows + i];
      value = 0.95 * columns.at(i, j - 1) + 0.3 * value;
    }
  }
  const Stored<double> stored(columns);
  DescentOptions options;
  options.alpha = 0.02;
  options.intercept = false;
  Team<double> team(stored, options, false);
  const double least = team.solve(1e-9).primal;
  EXPECT_LT(10 * team.ranks[0].updates(), plain_steps(columns, options, least * (1 + 1e-9)));
}

TEST(CoordinateDescent, LooksAtFewColumnsOnceLittleMoves) {
  const Columns columns;
  const Stored<double> stored(columns);
  DescentOptions options;
  options.alpha = 0.3;
  for (const int ranks : {1, 2}) {
    options.ranks = ranks;
    Team<double> team(stored, options, false);
    team.solve(1e-10);
    std::int64_t looked = 0;
    for (const auto& rank : team.ranks) looked += rank.looked();
    EXPECT_LT(looked, std::ssize(team.gaps) * static_cast<std::int64_t>(kColumns) / 2);
  }
}

TEST(CoordinateDescent, ScreensColumnsThatHaveNoWeight) {
  const Columns columns;
  const Stored<double> stored(columns);
  DescentOptions options;
  options.alpha = 0.5;
  Team<double> team(stored, options, false);
  team.solve(1e-9);
  const auto kept = static_cast<std::size_t>(team.ranks[0].unscreened());
  const std::vector<double> w = team.weights();
  EXPECT_LT(kept, kColumns / 2);
  EXPECT_GE(kept, kColumns - static_cast<std::size_t>(std::count(w.begin(), w.end(), 0.0)));
}

TEST(CoordinateDescent, GivesConstantColumnsNoWeight) {
  const Stored<double> stored{Columns{}};
  const std::vector<double> start(kColumns, 1.0);
  DescentOptions options;
  options.alpha = 1e-3;
  Team<double> team(stored, options, false, start);
  team.solve(1e-6);
  EXPECT_EQ(team.weights()[3], 0);
  EXPECT_EQ(team.weights()[4], 0);
  options.intercept = false;
  Team<double> without(stored, options, false, start);
  without.solve(1e-6);
  EXPECT_NE(without.weights()[3], 0);
  EXPECT_EQ(without.weights()[4], 0);
}

TEST(CoordinateDescent, StepsSeeTheMeansOfColumns) {
  Columns columns;
  for (double& value : columns.values) value += 10;
  for (std::size_t i = 0; i < kRows; ++i) columns.values[3 * kRows + i] = 0.7;  // its mean is not
  const Stored<double> stored(columns);
  for (const double ratio : {1.0, 0.0}) {
    DescentOptions options;
    options.alpha = 0.1;
    options.l1_ratio = ratio;
    for (const bool is_sparse : {true, false}) {
      Team<double> team(stored, options, is_sparse);
      const double before = team.look().primal;
      team.ranks[0].sweep(0, 1);
      const double after = team.look().primal;
      EXPECT_LT(after, before / 2);
      EXPECT_NEAR(after, columns.objective(options, team.weights()), 1e-9 * after);
      team.solve(1e-9);
      EXPECT_EQ(team.weights()[3], 0);
    }
  }
}

TEST(CoordinateDescent, GoesOnFromWeights) {
  const Stored<double> stored{Columns{}};
  DescentOptions options;
  options.alpha = 0.1;
  options.ranks = 2;
  Team<double> first(stored, options, true);
  const DescentGap gap = first.solve(1e-10);
  const std::vector<double> found = first.weights();
  Team<double> again(stored, options, true, found);
  const DescentGap at_once = again.look();
  EXPECT_NEAR(at_once.primal, gap.primal, 1e-12 * gap.primal);
  EXPECT_LE(at_once.primal - at_once.dual, 1e-9 * gap.primal);
}

TEST(CoordinateDescent, GetsFarInFloat) {
  const Columns columns;
  DescentOptions options;
  options.alpha = 0.1;
  options.ranks = 2;
  const Stored<float> stored(columns);
  Team<float> team(stored, options, true);
  EXPECT_LE(team.solve(1e-4, 200).dual * (1 - 1e-4), columns.objective(options, team.weights()));
  const DescentGap gap = team.gaps.back();
  EXPECT_LE(gap.primal - gap.dual, 1e-4 * gap.primal);
}

TEST(CoordinateDescent, RefusesWhatItCannotSolve) {
  Stored<double> stored{Columns{}};
  const auto message = [&](DescentOptions options, std::vector<double> start = {}) -> std::string {
    try {
      stored.descent(options, false, start);
    } catch (const dstorm::ConfigError& error) {
      return error.what();
    }
    return "";
  };
  DescentOptions options;
  options.alpha = 0;
  EXPECT_NE(message(options).find("alpha is 0; it must be above 0"), std::string::npos);
  options.alpha = 1e308;
  EXPECT_NE(message(options).find("alpha times the rows is inf; it must be finite; lower alpha"),
            std::string::npos);
  options = {};
  options.l1_ratio = 1.5;
  EXPECT_NE(message(options).find("l1_ratio is 1.5; it must be from 0 to 1"), std::string::npos);
  options = {};
  options.rank = 1;
  EXPECT_NE(message(options).find("the rank is 1"), std::string::npos);
  EXPECT_NE(message({}, {1.0}).find("the start has 1 values; it needs 150"), std::string::npos);
  std::vector<double> start(kColumns);
  start[7] = std::numeric_limits<double>::infinity();
  EXPECT_NE(message({}, start).find("the start of column 7 is inf"), std::string::npos);
  stored.y[2] = 1e200;
  EXPECT_NE(message({}).find("|y|^2 of the targets is inf; it must be finite; scale the targets"),
            std::string::npos);
  stored.y[2] = 0;
  stored.values[9 * kRows] = 1e200;
  EXPECT_NE(message({}).find("|x|^2 of column 9 is inf; it must be finite"), std::string::npos);
  stored.y[2] = std::nan("");
  EXPECT_NE(message({}).find("the target of row 2 is nan; it must be finite"), std::string::npos);
  stored.y[2] = 0;
  stored.y.pop_back();
  EXPECT_NE(message({}).find("targets has 59 values; it needs 60"), std::string::npos);
}

TEST(CoordinateDescent, ChecksItsOwnColumns) {
  Stored<double> stored{Columns{}};
  stored.rows[static_cast<std::size_t>(stored.starts[40])] = kRows;  // in the second block
  DescentOptions options;
  EXPECT_THROW(stored.descent(options, true), dstorm::ConfigError);
  options.ranks = 2;
  EXPECT_NO_THROW(stored.descent(options, true));
  options.rank = 1;
  EXPECT_THROW(stored.descent(options, true), dstorm::ConfigError);
}

}  // namespace
}  // namespace learn
