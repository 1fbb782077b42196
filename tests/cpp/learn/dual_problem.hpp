// Problems for dual ascent.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace learn
