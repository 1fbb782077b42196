// Training over many rows by one thread. Internal to linear models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "learn/linear.hpp"
#include "learn/linear_clock.hpp"
#include "learn/linear_step.hpp"

namespace learn {

// What is in no row: how to learn from them.
struct Lesson {
  Loss loss;
  double epsilon;
  bool intercept;
  Pace pace;
  std::span<const double> class_weights;
};

// Below this, `scale` is folded into the weights: steps divided by it would lose precision.
inline constexpr double kLeastScale = 1e-6;

// Makes the stored values those of the model: applies the scale and completes the average.
template <class T>
void fold(const Model<T>& model, const Pace& pace, Clock& clock);
// Applies the penalties that weights have not had since they were last touched.
template <class T>
void catch_up(const Model<T>& model, const Clock& clock);

// A share of the rows: every `stride`th one from the `begin`th, where others take the rest.
struct Share {
  std::int64_t begin = 0;
  std::int64_t stride = 1;
};

// One step for each row of the share, from `clock`, which has the steps before rows.first, on. Returns
// the sum of the losses; leaves in `clock` what holds after the share's last row. With a stride of
// 1 the model is this thread's alone; otherwise it is shared, and its scale far above kLeastScale.
template <class T, class Matrix>
double train_share(const Matrix& matrix, const Targets<T>& targets, const Rows& rows, Share share,
                   const Model<T>& model, const Lesson& lesson, Clock& clock);

}  // namespace learn
