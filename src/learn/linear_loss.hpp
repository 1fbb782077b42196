// The losses of linear models and their slopes. Internal to linear models.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "learn/linear.hpp"

namespace learn {

// The loss at one decision value, and its derivative in that value.
struct LossPoint {
  double loss;
  double slope;
};

inline LossPoint hinge_at(double threshold, double y, double p) {
  const double short_by = threshold - y * p;
  // The comparison is written this way round so that NaN gives a loss of NaN.
  return short_by < 0 ? LossPoint{0, 0} : LossPoint{short_by, -y};
}

inline LossPoint squared_hinge_at(double y, double p) {
  const double short_by = 1 - y * p;
  return short_by <= 0 ? LossPoint{0, 0} : LossPoint{short_by * short_by, -2 * y * short_by};
}

inline LossPoint log_at(double y, double p) {
  const double margin = y * p;
  const double tail = std::exp(-std::abs(margin));  // so that nothing overflows
  const double wrong = (margin > 0 ? tail : 1) / (1 + tail);
  return {std::log1p(tail) + std::max(-margin, 0.0), -y * wrong};
}

inline LossPoint modified_huber_at(double y, double p) {
  const double margin = y * p;
  return margin < -1 ? LossPoint{-4 * margin, -4 * y} : squared_hinge_at(y, p);
}

inline LossPoint huber_at(double epsilon, double error) {
  if (std::abs(error) <= epsilon) return {error * error / 2, error};
  return {epsilon * (std::abs(error) - epsilon / 2), std::copysign(epsilon, error)};
}

inline LossPoint insensitive_at(double epsilon, double error) {
  const double beyond = std::abs(error) - epsilon;
  return beyond <= 0 ? LossPoint{0, 0} : LossPoint{beyond, std::copysign(1.0, error)};
}

inline LossPoint loss_at(Loss loss, double epsilon, double y, double p) {
  switch (loss) {
    case Loss::kHinge:
      return hinge_at(1, y, p);
    case Loss::kPerceptron:
      return hinge_at(0, y, p);
    case Loss::kSquaredHinge:
      return squared_hinge_at(y, p);
    case Loss::kModifiedHuber:
      return modified_huber_at(y, p);
    case Loss::kSquared:
      return {(p - y) * (p - y) / 2, p - y};
    case Loss::kHuber:
      return huber_at(epsilon, p - y);
    case Loss::kEpsilonInsensitive:
      return insensitive_at(epsilon, p - y);
    case Loss::kSquaredEpsilonInsensitive: {
      const LossPoint at = insensitive_at(epsilon, p - y);
      return {at.loss * at.loss, 2 * at.loss * at.slope};
    }
    case Loss::kLog:
    case Loss::kSoftmax:  // with several outputs: softmax_at
      break;
  }
  return log_at(y, p);
}

// Replaces the decision values of `outputs` classes by the slopes in them; returns the loss.
template <class T>
double softmax_at(T label, T* values, std::size_t outputs) {
  const double most = static_cast<double>(*std::max_element(values, values + outputs));
  double sum = 0;
  double right = 0;
  for (std::size_t k = 0; k < outputs; ++k) {
    const double above = static_cast<double>(values[k]) - most;
    if (label == static_cast<T>(k)) right = above;
    const double share = std::exp(above);
    values[k] = static_cast<T>(share);
    sum += share;
  }
  for (std::size_t k = 0; k < outputs; ++k) {
    values[k] =
        static_cast<T>(static_cast<double>(values[k]) / sum - (label == static_cast<T>(k) ? 1 : 0));
  }
  return std::log(sum) - right;
}

// A slope is limited to this, so that one row cannot overflow the weights.
inline constexpr double kSteepest = 1e12;

// Replaces the decision values of a row by the slopes of its weighted loss; returns that loss.
template <bool kSingle, class T>
double slopes_at(Loss loss, double epsilon, std::span<const double> class_weights, T target,
                 double weight, std::size_t outputs, T* values) {
  if (!kSingle && loss == Loss::kSoftmax) {
    const double of_row = softmax_at(target, values, outputs);
    for (std::size_t k = 0; k < outputs; ++k) values[k] *= static_cast<T>(weight);
    return of_row * weight;
  }
  double of_row = 0;
  for (std::size_t k = 0; k < outputs; ++k) {
    const double y = kSingle ? static_cast<double>(target) : target == static_cast<T>(k) ? 1 : -1;
    const LossPoint at = loss_at(loss, epsilon, y, static_cast<double>(values[k]));
    const double own = !kSingle && y > 0 && !class_weights.empty() ? class_weights[k] : 1;
    values[k] = static_cast<T>(std::clamp(at.slope, -kSteepest, kSteepest) * own * weight);
    of_row += at.loss * own;
  }
  return of_row * weight;
}

}  // namespace learn
