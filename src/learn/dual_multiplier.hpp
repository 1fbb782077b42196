// The intercept of dual ascent, as the multiplier of sum alpha = 0; dual_ascent.hpp says why it is
// done so. Internal to dual ascent.
#pragma once

#include <algorithm>
#include <cmath>

#include "learn/dual_ascent.hpp"

namespace learn {

class DualMultiplier {
 public:
  DualMultiplier(bool is_used, double start) : is_used_(is_used), b_(is_used ? start : 0) {}

  double rho() const { return rho_; }
  double intercept() const { return b_ + rho_ * sum_; }

  // The sum of all alphas has changed by `change`.
  void add(double change) { sum_ += change; }

  // b += rho * sum. If the sum keeps its sign and most of its size from one step to the next, rho
  // was too short to move b; if it changes its sign and keeps most of its size, rho was too long.
  // `pliancy` is 1 / (1 + kappa).
  void step(double pliancy) {
    if (!is_used_ || sum_ == 0) return;
    b_ += rho_ * sum_;
    if (before_ != 0 && std::abs(sum_) > std::abs(before_) / 2) {
      const double to = sum_ * before_ > 0 ? pull_ * 2 : pull_ / 2;
      const double of_rows = norm_ * pliancy * curvature_;
      pull_ = std::clamp(to, std::min(of_rows, 1.0), of_rows + kFirstPull);
      rho_ = pull_ / curvature_;
    }
    before_ = sum_;
  }

  // Takes the sum of all alphas, from `all`, or 0 if they have been balanced. The intercept stays.
  void settle(const DualScales& all, bool is_kept) {
    if (!is_used_) return;
    const double before = is_kept ? intercept() : b_;
    curvature_ = std::max({all.curvature, kLeastCurvature * all.cost, kTiny});
    norm_ = all.cost > 0 ? all.norms / all.cost : 0;
    if (pull_ == 0) pull_ = std::clamp(all.rows / kRowsAPull, 1.0, kFirstPull);
    sum_ = is_kept ? all.positive - all.negative : 0;
    rho_ = pull_ / curvature_;
    b_ = before - rho_ * sum_;
  }

 private:
  static constexpr double kFirstPull = 256;
  static constexpr double kRowsAPull = 16;
  // Of a unit of cost: losses that are flat now need not be so further on.
  static constexpr double kLeastCurvature = 1e-4;
  static constexpr double kTiny = 1e-300;

  bool is_used_;
  double b_;
  double rho_ = 0;
  double sum_ = 0;        // of all alphas
  double before_ = 0;     // the sum at the last step
  double pull_ = 0;       // rho * curvature
  double curvature_ = 1;  // H of dual_ascent.hpp
  double norm_ = 0;       // R^2
};

}  // namespace learn
