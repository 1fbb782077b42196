// AdaGrad's part in training (Duchi et al. 2011): a rate for each weight, and with it a penalty for
// each weight. Internal to linear models.
//
// With one output, the elements of a row are taken in blocks, with all loads before
// the stores; no feature comes twice in a row. So the compiler computes their roots and quotients
// side by side. The bits are the same as when the elements are taken one after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "learn/linear_step.hpp"

namespace learn {

// AdaGrad's rate of one weight.
template <class T>
T rate_of(const Model<T>& model, T squares) {
  return squares > 0 ? static_cast<T>(model.eta0) / std::sqrt(squares) : T{0};
}

// One proximal step (Duchi et al. 2011, section 5) for all steps since the last one.
template <class T>
void shrink_towards_now(const Model<T>& model, std::size_t feature, std::size_t outputs,
                        const Clock& clock) {
  const std::int64_t due = clock.steps - model.touched[feature];
  if (due <= 0) return;
  model.touched[feature] = clock.steps;
  const T lag = static_cast<T>(clock.lag);
  for (std::size_t k = 0; k < outputs; ++k) {
    const std::size_t at = feature * outputs + k;
    const T from = model.weights[at];
    const T length = static_cast<T>(due) * rate_of(model, model.squares[at]);
    const T kept = std::max(T{0}, std::abs(from) - length * static_cast<T>(model.l1));
    const T to = std::copysign(kept / (1 + length * static_cast<T>(model.l2)), from);
    change(model, at, from, to, lag);
  }
}

// Calls take<kCount>(first) for elements first to first + kCount - 1, until all have been taken.
template <class View, class Take>
void in_blocks(const View& row, Take&& take) {
  constexpr std::size_t kAtOnce = 8;
  std::size_t first = 0;
  for (; row.count - first >= kAtOnce; first += kAtOnce) take.template operator()<kAtOnce>(first);
  for (; first < row.count; ++first) take.template operator()<1>(first);
}

// shrink_towards_now() for a block.
template <std::size_t kCount, class View, class T>
void shrink_block(const View& row, std::size_t first, const Model<T>& model, const Clock& clock) {
  const auto eta0 = static_cast<T>(model.eta0);
  const auto l1 = static_cast<T>(model.l1);
  const auto l2 = static_cast<T>(model.l2);
  T due[kCount];
  T squares[kCount];
  T from[kCount];
  T to[kCount];
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t at = row.feature(first + i);
    due[i] = static_cast<T>(clock.steps - model.touched[at]);
    squares[i] = model.squares[at];
    from[i] = model.weights[at];
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const T rate = eta0 / std::sqrt(squares[i] > 0 ? squares[i] : T{1});
    const T length = due[i] * (squares[i] > 0 ? rate : T{0});
    const T kept = std::max(T{0}, std::abs(from[i]) - length * l1);
    to[i] = std::copysign(kept / (1 + length * l2), from[i]);
  }
  const T lag = static_cast<T>(clock.lag);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t at = row.feature(first + i);
    model.touched[at] = clock.steps;
    change(model, at, from[i], to[i], lag);
  }
}

// The steps of a block.
template <std::size_t kCount, class View, class T>
void step_block(const View& row, std::size_t first, const Model<T>& model, T slope, T lag) {
  const auto eta0 = static_cast<T>(model.eta0);
  T squares[kCount];
  T steps[kCount];
  for (std::size_t i = 0; i < kCount; ++i) {
    steps[i] = slope * row.values[first + i];
    squares[i] = model.squares[row.feature(first + i)] + steps[i] * steps[i];
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const T rate = eta0 / std::sqrt(squares[i] > 0 ? squares[i] : T{1});
    steps[i] *= squares[i] > 0 ? rate : T{0};
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t at = row.feature(first + i);
    const T from = model.weights[at];
    model.squares[at] = squares[i];
    change(model, at, from, from - steps[i], lag);
  }
}

template <bool kSingle>
struct Adaptive {
  template <class View, class T>
  static void decide(const View& row, const Model<T>& model, const Clock& clock, T* values) {
    if (model.touched != nullptr) shrink(row, model, clock);
    learn::decide<kSingle>(row, static_cast<const T*>(model.weights), model.features, model.outputs,
                           T{1}, values);
  }

  template <class View, class T>
  static void move(const View& row, const Model<T>& model, const Clock& clock, const T* slopes,
                   double, bool moves) {
    if (!moves) return;
    const std::size_t outputs = outputs_of<kSingle>(model.outputs);
    const T lag = static_cast<T>(clock.lag);
    if constexpr (kSingle) {
      in_blocks(row, [&]<std::size_t kCount>(std::size_t first) {
        step_block<kCount>(row, first, model, slopes[0], lag);
      });
      return;
    }
    for (std::size_t i = 0; i < row.count; ++i) {
      const std::size_t first = row.feature(i) * outputs;
      for (std::size_t k = 0; k < outputs; ++k) {
        const T slope = slopes[k] * row.values[i];
        const T squares = model.squares[first + k] + slope * slope;
        model.squares[first + k] = squares;
        const T from = model.weights[first + k];
        change(model, first + k, from, from - rate_of(model, squares) * slope, lag);
      }
    }
  }

 private:
  template <class View, class T>
  static void shrink(const View& row, const Model<T>& model, const Clock& clock) {
    if constexpr (kSingle) {
      in_blocks(row, [&]<std::size_t kCount>(std::size_t first) {
        shrink_block<kCount>(row, first, model, clock);
      });
    } else {
      const std::size_t outputs = outputs_of<kSingle>(model.outputs);
      for (std::size_t i = 0; i < row.count; ++i) {
        shrink_towards_now(model, row.feature(i), outputs, clock);
      }
    }
  }
};

}  // namespace learn
