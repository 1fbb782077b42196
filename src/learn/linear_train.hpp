// Training on many rows by one thread. Internal to linear models.
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

// A share of the rows: every `stride`th row from the `begin`th on. Other threads take the rest.
struct Share {
  std::int64_t begin = 0;
  std::int64_t stride = 1;
};

// Takes one step for each row of the share. `clock` begins with the steps before rows.first, and
// ends with its state after the last row of the share. Returns the sum of the losses. With a stride
// of 1 the model is this thread's alone; otherwise it is shared, and its scale is far above
// kLeastScale.
template <class T, class Matrix>
double train_share(const Matrix& matrix, const Targets<T>& targets, const Rows& rows, Share share,
                   const Model<T>& model, const Lesson& lesson, Clock& clock);

}  // namespace learn
