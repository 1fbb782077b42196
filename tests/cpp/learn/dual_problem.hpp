// Problems for dual ascent, their optima by Newton's method in the primal, and jobs of several
// ranks in one process.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "learn/dual_ascent.hpp"
#include "learn/linear_loss.hpp"

namespace learn {

inline constexpr Loss kDualLosses[] = {Loss::kLog,
                                       Loss::kHinge,
                                       Loss::kSquaredHinge,
                                       Loss::kSquared,
                                       Loss::kEpsilonInsensitive,
                                       Loss::kSquaredEpsilonInsensitive};

inline bool is_of_labels(Loss loss) {
  return loss == Loss::kLog || loss == Loss::kHinge || loss == Loss::kSquaredHinge;
}

// Rows in full, and a target and a weight for each.
struct DualProblem {
  std::int64_t features = 0;
  std::vector<double> values;
  std::vector<double> targets;
  std::vector<double> weights;
  DualOptions options;

  std::size_t rows() const { return targets.size(); }
  std::span<const double> row(std::size_t i) const {
    const auto width = static_cast<std::size_t>(features);
    return std::span(values).subspan(i * width, width);
  }
  double decide(std::size_t i, std::span<const double> w, double b) const {
    const auto x = row(i);
    return std::inner_product(x.begin(), x.end(), w.begin(), b);
  }
  double primal(std::span<const double> w, double b) const {
    double sum = std::inner_product(w.begin(), w.end(), w.begin(), 0.0) / 2;
    for (std::size_t i = 0; i < rows(); ++i) {
      sum += options.c * weights[i] *
             loss_at(options.loss, options.epsilon, targets[i], decide(i, w, b)).loss;
    }
    return sum;
  }
};

// Two fifths of the values are present; a fifth of the targets is wrong; a tenth of the weights is
// 0.
inline DualProblem random_problem(Loss loss, bool intercept, std::size_t rows = 80,
                                  std::int64_t features = 12, unsigned seed = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  DualProblem problem;
  problem.features = features;
  problem.options.loss = loss;
  problem.options.intercept = intercept;
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0.7;
    for (std::int64_t j = 0; j < features; ++j) {
      const double value = uniform(random) < 0.4 ? static_cast<float>(normal(random)) : 0;
      problem.values.push_back(value);
      sum += j % 2 == 0 ? value : -value;
    }
    if (uniform(random) < 0.2) sum = -sum;
    problem.targets.push_back(is_of_labels(loss) ? (sum > 0 ? 1 : -1) : static_cast<float>(sum));
    const double weight = uniform(random);
    problem.weights.push_back(weight < 0.1 ? 0 : static_cast<float>(2 * weight));
  }
  return problem;
}

// A loss with its corners rounded off over a width of `smooth`, and its first two derivatives.
struct SmoothPoint {
  double loss;
  double slope;
  double bend;
};

inline SmoothPoint round_ramp(double x, double smooth) {  // max(0, x)
  if (x <= 0) return {0, 0, 0};
  if (x >= smooth) return {x - smooth / 2, 1, 0};
  return {x * x / (2 * smooth), x / smooth, 1 / smooth};
}
inline SmoothPoint square_ramp(double x) {  // max(0, x)^2
  return x <= 0 ? SmoothPoint{0, 0, 0} : SmoothPoint{x * x, 2 * x, 2};
}

inline SmoothPoint smooth_loss(const DualOptions& options, double y, double p, double smooth) {
  const auto two_sided = [&](auto ramp) {
    const SmoothPoint above = ramp(p - y - options.epsilon);
    const SmoothPoint below = ramp(y - p - options.epsilon);
    return SmoothPoint{above.loss + below.loss, above.slope - below.slope, above.bend + below.bend};
  };
  const auto ramp = [smooth](double x) { return round_ramp(x, smooth); };
  switch (options.loss) {
    case Loss::kHinge: {
      const SmoothPoint at = ramp(1 - y * p);
      return {at.loss, -y * at.slope, at.bend};
    }
    case Loss::kSquaredHinge: {
      const SmoothPoint at = square_ramp(1 - y * p);
      return {at.loss, -y * at.slope, at.bend};
    }
    case Loss::kSquared:
      return {(p - y) * (p - y) / 2, p - y, 1};
    case Loss::kEpsilonInsensitive:
      return two_sided(ramp);
    case Loss::kSquaredEpsilonInsensitive:
      return two_sided(square_ramp);
    default: {
      const LossPoint at = log_at(y, p);
      const double wrong = std::abs(at.slope);
      return {at.loss, at.slope, wrong * (1 - wrong)};
    }
  }
}

// The objective, its gradient and Hessian in (w, b); without an intercept, b stays where it is.
struct Quadratic {
  double value;
  std::vector<double> gradient;
  std::vector<double> hessian;  // (features + 1)^2
};

inline Quadratic quadratic_at(const DualProblem& problem, const std::vector<double>& at,
                              double smooth) {
  const auto width = static_cast<std::size_t>(problem.features) + 1;
  Quadratic sum{0, std::vector<double>(width), std::vector<double>(width * width)};
  for (std::size_t j = 0; j < width; ++j) {
    const bool free = j + 1 == width;
    sum.value += free ? 0 : at[j] * at[j] / 2;
    sum.gradient[j] = free ? 0 : at[j];
    sum.hessian[j * width + j] = free ? !problem.options.intercept : 1;
  }
  for (std::size_t i = 0; i < problem.rows(); ++i) {
    const double cost = problem.options.c * problem.weights[i];
    sum.hessian.back() += problem.options.intercept ? cost / 1000 : 0;  // rows may be all flat in b
    std::vector<double> x(problem.row(i).begin(), problem.row(i).end());
    x.push_back(problem.options.intercept ? 1 : 0);
    const double p = std::inner_product(x.begin(), x.end(), at.begin(), 0.0);
    const SmoothPoint point = smooth_loss(problem.options, problem.targets[i], p, smooth);
    sum.value += cost * point.loss;
    for (std::size_t j = 0; j < width; ++j) {
      sum.gradient[j] += cost * point.slope * x[j];
      for (std::size_t k = 0; k < width; ++k) {
        sum.hessian[j * width + k] += cost * point.bend * x[j] * x[k];
      }
    }
  }
  return sum;
}

// Solves a positive definite system by Gauss's elimination.
inline std::vector<double> solve(std::vector<double> matrix, std::vector<double> right) {
  const std::size_t n = right.size();
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = k + 1; i < n; ++i) {
      const double by = matrix[i * n + k] / matrix[k * n + k];
      for (std::size_t j = k; j < n; ++j) matrix[i * n + j] -= by * matrix[k * n + j];
      right[i] -= by * right[k];
    }
  }
  for (std::size_t k = n; k-- > 0;) {
    for (std::size_t j = k + 1; j < n; ++j) right[k] -= matrix[k * n + j] * right[j];
    right[k] /= matrix[k * n + k];
  }
  return right;
}

// The least value of the problem, by Newton's method with halved steps. Corners are rounded over
// ever smaller widths, down to one that changes the value by less than 1e-8 of it.
inline double least_value(const DualProblem& problem) {
  std::vector<double> at(static_cast<std::size_t>(problem.features) + 1);
  for (double smooth = 1; smooth > 1e-9; smooth /= 4) {
    for (int step = 0; step < 100; ++step) {
      const Quadratic now = quadratic_at(problem, at, smooth);
      const std::vector<double> way = solve(now.hessian, now.gradient);
      const double slope = std::inner_product(way.begin(), way.end(), now.gradient.begin(), 0.0);
      if (slope <= 1e-13 * now.value) break;
      double length = 1;
      std::vector<double> to(at.size());
      do {
        for (std::size_t j = 0; j < at.size(); ++j) to[j] = at[j] - length * way[j];
        length /= 2;
      } while (quadratic_at(problem, to, smooth).value > now.value - length * slope / 10 &&
               length > 1e-9);
      at = to;
    }
  }
  const std::span<const double> w(at.data(), at.size() - 1);
  return problem.primal(w, at.back());
}

// Some rows of a problem, as a matrix that a rank trains on.
template <class T>
class Shard {
 public:
  Shard(const DualProblem& problem, std::span<const std::size_t> rows)
      : features_(problem.features) {
    for (const std::size_t i : rows) {
      for (std::int32_t j = 0; j < features_; ++j) {
        const T value = static_cast<T>(problem.row(i)[static_cast<std::size_t>(j)]);
        dense_.push_back(value);
        if (value == 0) continue;
        columns_.push_back(j);
        values_.push_back(value);
      }
      starts_.push_back(static_cast<std::int64_t>(values_.size()));
      targets_.push_back(static_cast<T>(problem.targets[i]));
      weights_.push_back(static_cast<T>(problem.weights[i]));
    }
  }
  Csr<T> csr() const { return {starts_, columns_, values_, features_}; }
  Dense<T> dense() const { return {dense_, features_}; }
  Targets<T> targets() const { return {targets_, weights_}; }

 private:
  std::int64_t features_;
  std::vector<std::int64_t> starts_{0};
  std::vector<std::int32_t> columns_;
  std::vector<T> values_;
  std::vector<T> dense_;
  std::vector<T> targets_;
  std::vector<T> weights_;
};

inline std::vector<std::size_t> all_rows(const DualProblem& problem) {
  std::vector<std::size_t> rows(problem.rows());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return rows;
}

// Shards that are unequal and unlike: rows sorted by target, rank k's part k + 1 times the first's.
inline std::vector<std::vector<std::size_t>> unlike_shards(const DualProblem& problem,
                                                           std::size_t ranks) {
  std::vector<std::size_t> rows = all_rows(problem);
  std::stable_sort(rows.begin(), rows.end(), [&](std::size_t a, std::size_t b) {
    return problem.targets[a] < problem.targets[b];
  });
  std::vector<std::vector<std::size_t>> shards(ranks);
  const std::size_t parts = ranks * (ranks + 1) / 2;
  for (std::size_t k = 0; k < ranks; ++k) {
    const std::size_t first = rows.size() * (k * (k + 1) / 2) / parts;
    const std::size_t last = rows.size() * ((k + 1) * (k + 2) / 2) / parts;
    for (std::size_t i = first; i < last; ++i) shards[k].push_back(rows[i]);
  }
  return shards;
}

// All ranks of a job, in one process.
template <class T>
class DualJob {
 public:
  DualJob(const DualProblem& problem, const std::vector<std::vector<std::size_t>>& shards,
          bool is_sparse)
      : features_(static_cast<std::size_t>(problem.features)) {
    DualOptions options = problem.options;
    options.ranks = static_cast<int>(shards.size());
    for (const auto& rows : shards) {
      shards_.push_back(std::make_unique<Shard<T>>(problem, rows));
      const Shard<T>& shard = *shards_.back();
      options.seed += 1;
      if (is_sparse) {
        ranks_.emplace_back(options, shard.csr(), shard.targets());
      } else {
        ranks_.emplace_back(options, shard.dense(), shard.targets());
      }
    }
  }

  DualAscent<T>& rank(std::size_t k) { return ranks_[k]; }
  std::size_t size() const { return ranks_.size(); }
  // A rank dies with its rows.
  void lose_last() {
    ranks_.pop_back();
    for (DualAscent<T>& rank : ranks_) rank.set_ranks(static_cast<int>(ranks_.size()));
  }

  void settle() {
    DualScales all;
    for (const DualAscent<T>& rank : ranks_) {
      const DualScales own = rank.scales();
      all.rows += own.rows;
      all.positive += own.positive;
      all.negative += own.negative;
      all.cost += own.cost;
      all.norms += own.norms;
      all.curvature += own.curvature;
    }
    exchange(
        features_, [&](auto& rank, auto own) { rank.contribute(all, own); },
        [](auto& rank, auto sum) { rank.settle(sum); });
  }
  void sweep(int pieces) {
    for (DualAscent<T>& rank : ranks_) rank.begin_sweep();
    for (int piece = 0; piece < pieces; ++piece) {
      for (DualAscent<T>& rank : ranks_) rank.sweep(piece, pieces);
      exchange(
          features_ + 1, [](auto& rank, auto own) { rank.take_change(own); },
          [](auto& rank, auto sum) { rank.add_changes(sum); });
    }
  }
  DualGap gap() {
    settle();
    DualLosses all;
    for (const DualAscent<T>& rank : ranks_) {
      const DualLosses own = rank.losses();
      all.primal += own.primal;
      all.dual += own.dual;
    }
    return ranks_.front().gap(all);
  }

  // Sweeps until the gap is at most `tolerance` of the primal objective. Returns the last gap.
  DualGap solve(double tolerance, int most_sweeps, int pieces = 16) {
    settle();
    DualGap last;
    for (sweeps = 1; sweeps <= most_sweeps; ++sweeps) {
      sweep(pieces);
      if (sweeps % 4 != 0) continue;
      last = gap();
      if (last.primal - last.dual <= tolerance * last.primal) break;
    }
    return last;
  }
  int sweeps = 0;

  std::vector<double> weights() const {
    return {ranks_.front().weights().begin(), ranks_.front().weights().end()};
  }
  double intercept() const { return ranks_.front().intercept(); }

 private:
  template <class Give, class Take>
  void exchange(std::size_t length, Give give, Take take) {
    std::vector<T> sum(length);
    std::vector<T> own(length);
    for (DualAscent<T>& rank : ranks_) {
      give(rank, std::span<T>(own));
      for (std::size_t j = 0; j < length; ++j) sum[j] += own[j];
    }
    for (DualAscent<T>& rank : ranks_) take(rank, std::span<const T>(sum));
  }

  std::size_t features_;
  std::vector<std::unique_ptr<Shard<T>>> shards_;
  std::vector<DualAscent<T>> ranks_;
};

}  // namespace learn
