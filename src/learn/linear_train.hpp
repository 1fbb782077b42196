// Training on many rows. Internal to linear models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "learn/linear.hpp"
#include "learn/linear_clock.hpp"
#include "learn/linear_step.hpp"

namespace learn {

// The settings of training that are the same for all rows.
struct Lesson {
  Loss loss;
  double epsilon;
  bool intercept;
  Pace pace;
  std::span<const double> class_weights;
};

// If `scale` falls below this, it is folded into the weights: steps divided by it would lose
// precision.
inline constexpr double kLeastScale = 1e-6;

// Makes the stored values those of the model: applies the scale and completes the average.
template <class T>
void fold(const Model<T>& model, const Pace& pace, Clock& clock);
// Applies the penalties that weights have not had since they were last touched.
template <class T>
void catch_up(const Model<T>& model, const Clock& clock);

// Takes one step for each of the rows. `clock` begins with the steps before them. Returns the sum
// of the losses.
template <class T, class Matrix>
double train_on(const Matrix& matrix, const Targets<T>& targets, const Rows& rows,
                const Model<T>& model, const Lesson& lesson, Clock& clock);

}  // namespace learn
