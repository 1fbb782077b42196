// One row's part in training: the decision values of a row, and the step along it. Internal to
// linear models.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "learn/linear_clock.hpp"
#include "learn/row_view.hpp"

namespace learn {

// The arrays that are trained; null for those that the options do not ask for. Each has (features +
// 1) rows of `outputs` values, the last row for the intercepts.
template <class T>
struct Model {
  T* weights;
  T* average;
  T* squares;
  T* charged;             // L1 applied so far, signed
  std::int64_t* touched;  // by feature: the steps whose penalty it has had (AdaGrad)
  std::size_t features;
  std::size_t outputs;
  double eta0;  // AdaGrad's
  double l2;    // of the penalty that AdaGrad applies to each weight
  double l1;
};

// With one output, known at compile time, the loops over outputs vanish.
template <bool kSingle>
std::size_t outputs_of(std::size_t outputs) {
  return kSingle ? 1 : outputs;
}

// values[k] = scale * (the product of the row and the weights of output k) + its intercept
template <bool kSingle, class View, class T>
void decide(const View& row, const T* weights, std::size_t features, std::size_t some_outputs,
            T scale, T* values) {
  const std::size_t outputs = outputs_of<kSingle>(some_outputs);
  const T* intercepts = weights + features * outputs;
  if constexpr (kSingle) {
    values[0] = dot(row, weights) * scale + intercepts[0];
  } else {
    std::fill_n(values, outputs, T{0});
    for (std::size_t i = 0; i < row.count; ++i) {
      const T* of_feature = weights + row.feature(i) * outputs;
      for (std::size_t k = 0; k < outputs; ++k) {
        values[k] += row.values[i] * of_feature[k];
      }
    }
    for (std::size_t k = 0; k < outputs; ++k) {
      values[k] = values[k] * scale + intercepts[k];
    }
  }
}

// Changes a weight, and adds to its average what the next fold would otherwise get wrong.
template <class T>
void change(const Model<T>& model, std::size_t at, T from, T to, T lag) {
  model.weights[at] = to;
  if (model.average != nullptr) {
    model.average[at] = model.average[at] - lag * (to - from);
  }
}

// The ways of stepping. Each has
//   decide(row, model, clock, values)            as above
//   move(row, model, clock, slopes, eta, moves)  w -= eta * slopes[k] * row, if `moves` (not all
//                                                slopes are 0), and the penalty that is not in the
//                                                scale

// L2 alone: all of the penalty is in the clock's scale.
template <bool kSingle>
struct Scaled {
  template <class View, class T>
  static void decide(const View& row, const Model<T>& model, const Clock& clock, T* values) {
    learn::decide<kSingle>(row, static_cast<const T*>(model.weights), model.features, model.outputs,
                           static_cast<T>(clock.scale), values);
  }

  template <class View, class T>
  static void move(const View& row, const Model<T>& model, const Clock& clock, const T* slopes,
                   double eta, bool moves) {
    if (!moves) return;
    const std::size_t outputs = outputs_of<kSingle>(model.outputs);
    const T step = static_cast<T>(-eta / clock.scale);
    const T lag = static_cast<T>(clock.lag);
    if (kSingle && model.average == nullptr) {
      add(row, step * slopes[0], model.weights);
      return;
    }
    for (std::size_t i = 0; i < row.count; ++i) {
      const std::size_t first = row.feature(i) * outputs;
      const T along = step * row.values[i];
      for (std::size_t k = 0; k < outputs; ++k) {
        const T from = model.weights[first + k];
        change(model, first + k, from, from + along * slopes[k], lag);
      }
    }
  }
};

// Charges a weight the L1 that is due, but not beyond 0 (Tsuruoka et al. 2009, APPLYPENALTY).
template <class T>
T truncate(const Model<T>& model, std::size_t at, const Clock& clock, T weight) {
  const double value = clock.scale * static_cast<double>(weight);
  if (!(std::abs(value) > 0)) return weight;
  const auto charged = static_cast<double>(model.charged[at]);
  const double left = value > 0 ? std::max(0.0, value - (clock.charge + charged))
                                : std::min(0.0, value + (clock.charge - charged));
  model.charged[at] = static_cast<T>(charged + (left - value));
  return static_cast<T>(left / clock.scale);
}

// With L1: each weight of the row is charged after its step.
template <bool kSingle>
struct Truncated : Scaled<kSingle> {
  template <class View, class T>
  static void move(const View& row, const Model<T>& model, const Clock& clock, const T* slopes,
                   double eta, bool) {
    const std::size_t outputs = outputs_of<kSingle>(model.outputs);
    const T step = static_cast<T>(-eta / clock.scale);
    const T lag = static_cast<T>(clock.lag);
    for (std::size_t i = 0; i < row.count; ++i) {
      const std::size_t first = row.feature(i) * outputs;
      const T along = step * row.values[i];
      for (std::size_t k = 0; k < outputs; ++k) {
        const T from = model.weights[first + k];
        const T to = truncate(model, first + k, clock, from + along * slopes[k]);
        change(model, first + k, from, to, lag);
      }
    }
  }
};

}  // namespace learn
