// The maximum of the dual in one alpha, for each loss. Internal to dual ascent.
#pragma once

#include <algorithm>
#include <cmath>

#include "learn/linear.hpp"

namespace learn {

// A row's alpha and what its step needs to know of it. 0 <= target * alpha <= cost for kLog and
// kHinge, 0 <= target * alpha for kSquaredHinge, |alpha| <= cost for kEpsilonInsensitive.
template <class T>
struct Coordinate {
  T alpha;
  T target;
  T cost;  // c
  T norm;  // |x|^2
};

// A coordinate's numbers in double, and the decision value p of its row.
struct DualPoint {
  double alpha;
  double target;
  double cost;
  double norm;  // how fast p rises with alpha: sigma' (|x|^2 / (1 + kappa) + rho)
  double p;
};

inline double clamp_size(double value, double most) { return std::clamp(value, -most, most); }
inline double soften(double value, double by) {
  return std::copysign(std::max(std::abs(value) - by, 0.0), value);
}

// The alpha at which slope - norm * (to - alpha) is 0. A row of zeros has no such alpha: its slope
// is the same for all.
inline double along(double alpha, double slope, double norm, double bound) {
  if (norm > 0) return alpha + slope / norm;
  return slope == 0 ? alpha : std::copysign(bound, slope);
}

// Each has
//   kShrinks   whether alphas may rest at a bound
//   best       the alpha that is best while all others stay
//   gap        the row's share of the gap, before the step: c loss(p) + c conjugate(-alpha / c) +
//              alpha p
//   distance   of p from where the loss has its kink
//   rests      whether alpha is at a bound, and p further than `width` from the kink on that side
template <Loss kLoss>
struct DualStep;

template <>
struct DualStep<Loss::kHinge> {
  static constexpr bool kShrinks = true;
  static double gap(const DualPoint& at, double) {
    const double below = 1 - at.target * at.p;
    return at.cost * std::max(below, 0.0) - at.target * at.alpha * below;
  }
  static double best(const DualPoint& at, double) {
    const double beta = at.target * at.alpha;
    const double to = along(beta, 1 - at.target * at.p, at.norm, at.cost);
    return at.target * std::clamp(to, 0.0, at.cost);
  }
  static double distance(const DualPoint& at, double) { return std::abs(1 - at.target * at.p); }
  static bool rests(const DualPoint& at, double alpha, double, double width) {
    const double beyond = at.target * at.p - 1;
    return (alpha == 0 && beyond > width) || (std::abs(alpha) >= at.cost && beyond < -width);
  }
};

template <>
struct DualStep<Loss::kSquaredHinge> {
  static constexpr bool kShrinks = true;
  static double gap(const DualPoint& at, double) {
    const double below = std::max(1 - at.target * at.p, 0.0);
    const double beta = at.target * at.alpha;
    return at.cost * below * below - beta * (1 - at.target * at.p) + beta * beta / (4 * at.cost);
  }
  static double best(const DualPoint& at, double) {
    const double beta = at.target * at.alpha;
    const double flat = 0.5 / at.cost;
    const double slope = 1 - at.target * at.p - flat * beta;
    return at.target * std::max(beta + slope / (at.norm + flat), 0.0);
  }
  static double distance(const DualPoint& at, double) { return std::abs(1 - at.target * at.p); }
  static bool rests(const DualPoint& at, double alpha, double, double width) {
    return alpha == 0 && at.target * at.p - 1 > width;
  }
};

template <>
struct DualStep<Loss::kSquared> {
  static constexpr bool kShrinks = false;
  static double gap(const DualPoint& at, double) {
    const double off = at.cost * (at.target - at.p) - at.alpha;
    return off * off / (2 * at.cost);
  }
  static double best(const DualPoint& at, double) {
    const double flat = 1 / at.cost;
    return at.alpha + (at.target - at.p - flat * at.alpha) / (at.norm + flat);
  }
};

template <>
struct DualStep<Loss::kEpsilonInsensitive> {
  static constexpr bool kShrinks = true;
  static double gap(const DualPoint& at, double epsilon) {
    const double error = at.target - at.p;
    return at.cost * std::max(std::abs(error) - epsilon, 0.0) - at.alpha * error +
           epsilon * std::abs(at.alpha);
  }
  static double best(const DualPoint& at, double epsilon) {
    const double slope = at.target - at.p;
    if (at.norm > 0) {
      return clamp_size(soften(at.alpha + slope / at.norm, epsilon / at.norm), at.cost);
    }
    return std::abs(slope) > epsilon ? std::copysign(at.cost, slope) : 0;
  }
  static double distance(const DualPoint& at, double epsilon) {
    return std::abs(std::abs(at.target - at.p) - epsilon);
  }
  static bool rests(const DualPoint& at, double alpha, double epsilon, double width) {
    const double error = at.target - at.p;
    if (alpha == 0) return std::abs(error) < epsilon - width;
    return std::abs(alpha) >= at.cost && std::copysign(1.0, alpha) * error > epsilon + width;
  }
};

template <>
struct DualStep<Loss::kSquaredEpsilonInsensitive> {
  static constexpr bool kShrinks = true;
  static double gap(const DualPoint& at, double epsilon) {
    const double error = at.target - at.p;
    const double beyond = std::max(std::abs(error) - epsilon, 0.0);
    return at.cost * beyond * beyond - at.alpha * error + epsilon * std::abs(at.alpha) +
           at.alpha * at.alpha / (4 * at.cost);
  }
  static double best(const DualPoint& at, double epsilon) {
    const double flat = 0.5 / at.cost;
    const double pull = at.target - at.p + at.norm * at.alpha;
    return soften(pull, epsilon) / (at.norm + flat);
  }
  static double distance(const DualPoint& at, double epsilon) {
    return std::abs(std::abs(at.target - at.p) - epsilon);
  }
  static bool rests(const DualPoint& at, double alpha, double epsilon, double width) {
    return alpha == 0 && std::abs(at.target - at.p) < epsilon - width;
  }
};

inline double sigmoid(double value) { return 1 / (1 + std::exp(-value)); }

// The share a of c at which a = sigmoid(-margin), where the margin rises by `steep` a unit of a,
// and is `margin` at the share `from`. Newton's method for the margin, between bounds that hold the
// root: no share is below 0 or above 1, and sigmoid(-m) is at most exp(-m).
inline double solve_log(double margin, double from, double steep) {
  const double at_none = margin - steep * from;
  const double at_all = margin + steep * (1 - from);
  const double tail = std::log(steep);
  double low = std::max(at_none, std::min(at_all - 1, -tail));
  double high = std::min(at_all, std::max(at_none + 1, tail));
  double m = std::clamp(margin, low, high);
  for (int i = 0; i < 60; ++i) {
    const double share = sigmoid(-m);
    const double off = m - at_none - steep * share;
    (off > 0 ? high : low) = m;
    double next = m - off / (1 + steep * share * (1 - share));
    if (!(next > low && next < high)) next = (low + high) / 2;
    const bool near = std::abs(next - m) <= 1e-12 * (1 + std::abs(m));
    m = next;
    if (near) break;
  }
  return sigmoid(-m);
}

template <>
struct DualStep<Loss::kLog> {
  static constexpr bool kShrinks = false;
  // By the second derivative, as the logarithms would take as long as the step. Never more than the
  // loss and the entropy can make together.
  static double gap(const DualPoint& at, double) {
    const double share = at.target * at.alpha / at.cost;
    const double margin = at.target * at.p;
    const double s = sigmoid(-margin);
    const double most = at.cost * (std::abs(margin) + std::log(2.0));
    const double steepest = std::max(s * (1 - s), share * (1 - share));
    if (!(steepest > 0)) return s == share ? 0 : most;
    return std::min(most, at.cost * (s - share) * (s - share) / (2 * steepest));
  }
  // One step of Newton's method if it moves the margin by at most 1, as the curvature s (1 - s)
  // changes at most e times on that way; it ends between two values from 0 to 1.
  static double best(const DualPoint& at, double) {
    const double share = at.target * at.alpha / at.cost;
    const double margin = at.target * at.p;
    const double steep = at.norm * at.cost;
    const double s = sigmoid(-margin);
    const double step = (s - share) / (1 + steep * s * (1 - s));
    const double to = steep * std::abs(step) <= 1 ? share + step : solve_log(margin, share, steep);
    return at.target * at.cost * to;
  }
};

// c times the conjugate of the loss at -alpha / c, with the sign that it has in the dual.
inline double dual_at(Loss loss, double epsilon, double alpha, double target, double cost) {
  const auto entropy = [cost](double part) { return part > 0 ? part * std::log(part / cost) : 0; };
  const double linear = alpha * target;
  switch (loss) {
    case Loss::kHinge:
      return linear;
    case Loss::kSquaredHinge:
      return linear - alpha * alpha / (4 * cost);
    case Loss::kSquared:
      return linear - alpha * alpha / (2 * cost);
    case Loss::kEpsilonInsensitive:
      return linear - epsilon * std::abs(alpha);
    case Loss::kSquaredEpsilonInsensitive:
      return linear - epsilon * std::abs(alpha) - alpha * alpha / (4 * cost);
    default:
      return -entropy(linear) - entropy(cost - linear);
  }
}

// The alpha nearest to `alpha` that the dual allows.
inline double allowed(Loss loss, double alpha, double target, double cost) {
  switch (loss) {
    case Loss::kSquared:
    case Loss::kSquaredEpsilonInsensitive:
      return alpha;
    case Loss::kEpsilonInsensitive:
      return clamp_size(alpha, cost);
    case Loss::kSquaredHinge:
      return target * std::max(target * alpha, 0.0);
    default:
      return target * std::clamp(target * alpha, 0.0, cost);
  }
}

// c times the loss's second derivative where its slope is -alpha / c; for losses with a kink, the
// rise of their slope over the kink.
inline double curvature_at(Loss loss, double alpha, double cost) {
  switch (loss) {
    case Loss::kLog: {
      const double share = std::abs(alpha) / cost;
      return cost * share * (1 - share);
    }
    case Loss::kSquaredHinge:
    case Loss::kSquaredEpsilonInsensitive:
      return alpha == 0 ? 0 : 2 * cost;
    default:
      return cost;
  }
}
inline double most_curvature(Loss loss, double cost) {
  const bool is_squared = loss == Loss::kSquaredHinge || loss == Loss::kSquaredEpsilonInsensitive;
  return loss == Loss::kLog ? cost / 4 : is_squared ? 2 * cost : cost;
}
// Whether a loss's slope has no jump.
inline bool is_smooth(Loss loss) {
  return loss != Loss::kHinge && loss != Loss::kEpsilonInsensitive;
}

}  // namespace learn
