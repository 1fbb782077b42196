// The proximal term kappa / 2 |w - z|^2 of dual ascent; dual_ascent.hpp says what it is for.
// Internal to dual ascent.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "learn/dual_ascent.hpp"
#include "learn/dual_step.hpp"

namespace learn {

template <class T>
class DualCentre {
 public:
  double pliancy() const { return 1 / (1 + kappa_); }
  bool is_used() const { return kappa_ > 0; }

  // Half of a row's curvature along its own x; less where there are fewer rows than features, as
  // rows are then nearly orthogonal. Below the penalty's curvature, 1, it gains nothing.
  void choose(const DualOptions& options, const DualScales& all, std::size_t features) {
    const double rows = std::max(all.rows, 1.0);
    const double steep = options.ranks * all.norms / rows * most_curvature(options.loss, 1);
    const double crowded = std::min(1.0, rows / std::max(static_cast<double>(features), 1.0));
    const double kappa = is_smooth(options.loss) ? steep * crowded / 2 : 0;
    kappa_ = std::max(options.least_kappa, kappa > 1 ? kappa : 0);
  }

  // Sets the weights to (alpha_x + kappa z) / (1 + kappa).
  void set_weights(std::span<const double> alpha_x, std::vector<T>& weights) {
    std::ranges::transform(alpha_x, weights.begin(),
                           [](double value) { return static_cast<T>(value); });
    if (!is_used()) {
      z_.clear();
      return;
    }
    if (z_.empty()) z_ = before_ = weights;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double sum = static_cast<double>(weights[i]) + kappa_ * static_cast<double>(z_[i]);
      weights[i] = static_cast<T>(sum * pliancy());
    }
  }

  // The gap minus the sum of the rows' shares in it: |w - sum of alpha x|^2 / 2.
  double gap(const std::vector<T>& weights) const {
    double square = 0;
    for (std::size_t i = 0; i < z_.size(); ++i) {
      const double off = static_cast<double>(weights[i]) - static_cast<double>(z_[i]);
      square += off * off;
    }
    return kappa_ * kappa_ * square / 2;
  }

  // Moves z to the weights and beyond by Nesterov's momentum, which fits a penalty of 1 in steps of
  // 1 + kappa; not beyond where that has led uphill (O'Donoghue and Candes 2015, section 3.2), or
  // where the gap has risen.
  void move(std::vector<T>& weights, bool may_accelerate) {
    if (z_.empty()) return;
    double uphill = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto at = static_cast<double>(weights[i]);
      uphill += (static_cast<double>(z_[i]) - at) * (at - static_cast<double>(before_[i]));
    }
    const double root = std::sqrt(pliancy());
    const double momentum = uphill > 0 || !may_accelerate ? 0 : (1 - root) / (1 + root);
    const double follow = kappa_ * pliancy();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto at = static_cast<double>(weights[i]);
      const double to = at + momentum * (at - static_cast<double>(before_[i]));
      before_[i] = weights[i];
      weights[i] = static_cast<T>(at + follow * (to - static_cast<double>(z_[i])));
      z_[i] = static_cast<T>(to);
    }
  }

 private:
  double kappa_ = 0;
  std::vector<T> z_;       // empty while kappa is 0
  std::vector<T> before_;  // the weights when z last moved
};

}  // namespace learn
