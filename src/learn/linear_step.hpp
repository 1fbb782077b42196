// One row's part in training: the decision values of a row, and the step along it. Internal to linear
// models.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "learn/linear_clock.hpp"
#include "learn/matrix.hpp"

namespace learn {

// A row of either matrix, by its values and the features they belong to.
template <class T>
struct SparseView {
  using Value = T;
  const std::int32_t* columns;
  const T* values;
  std::size_t count;
  std::size_t feature(std::size_t i) const { return static_cast<std::size_t>(columns[i]); }
};
template <class T>
struct DenseView {
  using Value = T;
  const T* values;
  std::size_t count;
  std::size_t feature(std::size_t i) const { return i; }
};

template <class T>
SparseView<T> view_of(const Csr<T>& matrix, std::size_t row) {
  const auto first = static_cast<std::size_t>(matrix.starts[row]);
  return {matrix.columns.data() + first, matrix.values.data() + first,
          static_cast<std::size_t>(matrix.starts[row + 1]) - first};
}
template <class T>
DenseView<T> view_of(const Dense<T>& matrix, std::size_t row) {
  const auto features = static_cast<std::size_t>(matrix.features);
  return {matrix.values.data() + row * features, features};
}

// The arrays trained, null where the options ask for none: (features + 1) rows of `outputs` values,
// the last of them the intercepts'.
template <class T>
struct Model {
  T* weights;
  T* average;
  T* squares;
  T* charged;             // L1 applied so far, signed
  std::int64_t* touched;  // of each feature: the steps whose penalty it has had (AdaGrad)
  std::size_t features;
  std::size_t outputs;
  double eta0;  // AdaGrad's
  double l2;    // of the penalty that AdaGrad applies to each weight
  double l1;
};

// Memory of one thread, or of all of Hogwild's: relaxed atomics are plain loads and stores to the
// processor, but no race to the language.
template <bool kShared, class T>
T read(const T& from) {
  if constexpr (kShared) {
    return std::atomic_ref<T>(const_cast<T&>(from)).load(std::memory_order_relaxed);
  } else {
    return from;
  }
}
template <bool kShared, class T>
void write(T& to, T value) {
  if constexpr (kShared) {
    std::atomic_ref<T>(to).store(value, std::memory_order_relaxed);
  } else {
    to = value;
  }
}

// With one output, known to the compiler, the loops over outputs vanish.
template <bool kSingle>
std::size_t outputs_of(std::size_t outputs) {
  return kSingle ? 1 : outputs;
}

// Sums of its own for neighbouring values: one sum would wait for each addition.
template <bool kShared, class View, class T = typename View::Value>
T dot(const View& row, const T* weights) {
  constexpr std::size_t kSums = 8;
  T sums[kSums]{};
  std::size_t i = 0;
  for (; row.count - i >= kSums; i += kSums) {
    for (std::size_t s = 0; s < kSums; ++s) {
      sums[s] += row.values[i + s] * read<kShared>(weights[row.feature(i + s)]);
    }
  }
  for (std::size_t s = 0; i < row.count; ++i, ++s) {
    sums[s] += row.values[i] * read<kShared>(weights[row.feature(i)]);
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// values[k] = scale * (the row times the weights of output k) + its intercept
template <bool kSingle, bool kShared, class View, class T>
void decide(const View& row, const T* weights, std::size_t features, std::size_t some_outputs,
            T scale, T* values) {
  const std::size_t outputs = outputs_of<kSingle>(some_outputs);
  const T* intercepts = weights + features * outputs;
  if constexpr (kSingle) {
    values[0] = dot<kShared>(row, weights) * scale + read<kShared>(intercepts[0]);
  } else {
    std::fill_n(values, outputs, T{0});
    for (std::size_t i = 0; i < row.count; ++i) {
      const T* of_feature = weights + row.feature(i) * outputs;
      for (std::size_t k = 0; k < outputs; ++k) {
        values[k] += row.values[i] * read<kShared>(of_feature[k]);
      }
    }
    for (std::size_t k = 0; k < outputs; ++k) {
      values[k] = values[k] * scale + read<kShared>(intercepts[k]);
    }
  }
}

// A weight changes; its average, which is made up for at the next fold, hears of it.
template <bool kShared, class T>
void change(const Model<T>& model, std::size_t at, T from, T to, T lag) {
  write<kShared>(model.weights[at], to);
  if (model.average != nullptr) {
    write<kShared>(model.average[at], read<kShared>(model.average[at]) - lag * (to - from));
  }
}

// The ways of stepping. Each has
//   decide(row, model, clock, values)          as above
//   move(row, model, clock, slopes, eta, moves)  w -= eta * slopes[k] * row, where `moves` (not all
//                                              slopes are 0), and the penalty that is not in the scale

// L2 alone: all of the penalty is in the clock's scale.
template <bool kSingle, bool kShared>
struct Scaled {
  template <class View, class T>
  static void decide(const View& row, const Model<T>& model, const Clock& clock, T* values) {
    learn::decide<kSingle, kShared>(row, static_cast<const T*>(model.weights), model.features,
                                    model.outputs, static_cast<T>(clock.scale), values);
  }

  template <class View, class T>
  static void move(const View& row, const Model<T>& model, const Clock& clock, const T* slopes,
                   double eta, bool moves) {
    if (!moves) return;
    const std::size_t outputs = outputs_of<kSingle>(model.outputs);
    const T step = static_cast<T>(-eta / clock.scale);
    const T lag = static_cast<T>(clock.lag);
    for (std::size_t i = 0; i < row.count; ++i) {
      const std::size_t first = row.feature(i) * outputs;
      const T along = step * row.values[i];
      for (std::size_t k = 0; k < outputs; ++k) {
        const T from = read<kShared>(model.weights[first + k]);
        change<kShared>(model, first + k, from, from + along * slopes[k], lag);
      }
    }
  }
};

// Takes from a weight what is due of L1, but not beyond 0 (Tsuruoka et al. 2009, APPLYPENALTY).
template <bool kShared, class T>
T truncate(const Model<T>& model, std::size_t at, const Clock& clock, T weight) {
  const double value = clock.scale * static_cast<double>(weight);
  if (!(std::abs(value) > 0)) return weight;
  const auto charged = static_cast<double>(read<kShared>(model.charged[at]));
  const double left = value > 0 ? std::max(0.0, value - (clock.charge + charged))
                                : std::min(0.0, value + (clock.charge - charged));
  write<kShared>(model.charged[at], static_cast<T>(charged + (left - value)));
  return static_cast<T>(left / clock.scale);
}

// With L1: each weight of the row is charged after its step.
template <bool kSingle, bool kShared>
struct Truncated : Scaled<kSingle, kShared> {
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
        const T from = read<kShared>(model.weights[first + k]);
        const T to = truncate<kShared>(model, first + k, clock, from + along * slopes[k]);
        change<kShared>(model, first + k, from, to, lag);
      }
    }
  }
};

// AdaGrad's rate of one weight.
template <class T>
T rate_of(const Model<T>& model, T squares) {
  return squares > 0 ? static_cast<T>(model.eta0) / std::sqrt(squares) : T{0};
}

// One proximal step (Duchi et al. 2011, section 5) for all the steps since the last.
template <bool kShared, class T>
void shrink_towards_now(const Model<T>& model, std::size_t feature, std::size_t outputs,
                        const Clock& clock) {
  const std::int64_t due = clock.steps - read<kShared>(model.touched[feature]);
  if (due <= 0) return;  // none, or another thread is ahead
  write<kShared>(model.touched[feature], clock.steps);
  const T lag = static_cast<T>(clock.lag);
  for (std::size_t k = 0; k < outputs; ++k) {
    const std::size_t at = feature * outputs + k;
    const T from = read<kShared>(model.weights[at]);
    const T length = static_cast<T>(due) * rate_of(model, read<kShared>(model.squares[at]));
    const T kept = std::max(T{0}, std::abs(from) - length * static_cast<T>(model.l1));
    const T to = std::copysign(kept / (1 + length * static_cast<T>(model.l2)), from);
    change<kShared>(model, at, from, to, lag);
  }
}

// A rate for each weight, and with it a penalty for each.
template <bool kSingle, bool kShared>
struct Adaptive {
  template <class View, class T>
  static void decide(const View& row, const Model<T>& model, const Clock& clock, T* values) {
    if (model.touched != nullptr) {
      for (std::size_t i = 0; i < row.count; ++i) {
        shrink_towards_now<kShared>(model, row.feature(i), outputs_of<kSingle>(model.outputs),
                                    clock);
      }
    }
    learn::decide<kSingle, kShared>(row, static_cast<const T*>(model.weights), model.features,
                                    model.outputs, T{1}, values);
  }

  template <class View, class T>
  static void move(const View& row, const Model<T>& model, const Clock& clock, const T* slopes,
                   double, bool moves) {
    if (!moves) return;
    const std::size_t outputs = outputs_of<kSingle>(model.outputs);
    const T lag = static_cast<T>(clock.lag);
    for (std::size_t i = 0; i < row.count; ++i) {
      const std::size_t first = row.feature(i) * outputs;
      for (std::size_t k = 0; k < outputs; ++k) {
        const T slope = slopes[k] * row.values[i];
        const T squares = read<kShared>(model.squares[first + k]) + slope * slope;
        write<kShared>(model.squares[first + k], squares);
        const T from = read<kShared>(model.weights[first + k]);
        change<kShared>(model, first + k, from, from - rate_of(model, squares) * slope, lag);
      }
    }
  }
};

}  // namespace learn
