// The optimum of a problem by Newton's method in the primal, which shares nothing with dual ascent.
#pragma once

#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "learn/dual_problem.hpp"

namespace learn {

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
  double smooth = 1;
  for (int round = 0; round < 16; ++round, smooth /= 4) {
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

}  // namespace learn
