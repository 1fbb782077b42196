#include "learn/linear_train.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "learn/linear_adaptive.hpp"
#include "learn/linear_loss.hpp"
#include "learn/row_prefetch.hpp"

namespace learn {
namespace {

constexpr double kSparseIntercept = 0.01;  // a hundredth of a step, as in scikit-learn

template <class T>
constexpr double intercept_part(const Csr<T>&) {
  return kSparseIntercept;
}
template <class T>
constexpr double intercept_part(const Dense<T>&) {
  return 1;
}

template <class T>
void move_intercepts(const Model<T>& model, std::size_t outputs, const T* slopes, double eta) {
  for (std::size_t k = 0; k < outputs; ++k) {
    const std::size_t at = model.features * outputs + k;
    double length = eta;
    if (model.squares != nullptr) {
      const T squares = model.squares[at] + slopes[k] * slopes[k];
      model.squares[at] = squares;
      length = static_cast<double>(rate_of(model, squares));
    }
    const T step = static_cast<T>(length) * slopes[k];
    if (step != 0) model.weights[at] = model.weights[at] - step;
  }
}

// Intercepts are in every row, so their average is kept at every step.
template <class T>
void average_intercepts(const Model<T>& model, std::size_t outputs, std::int64_t averaged) {
  for (std::size_t k = 0; k < outputs; ++k) {
    const std::size_t at = model.features * outputs + k;
    const T before = model.average[at];
    const T part = (model.weights[at] - before) / static_cast<T>(averaged);
    model.average[at] = before + part;
  }
}

template <template <bool> class Way, bool kSingle, class T, class Matrix>
double train_in(const Matrix& matrix, const Targets<T>& targets, const Rows& rows,
                const Model<T>& model, const Lesson& lesson, Clock& clock) {
  using Step = Way<kSingle>;
  const std::size_t outputs = outputs_of<kSingle>(model.outputs);
  const auto row_at = [&](std::int64_t i) {
    return static_cast<std::size_t>(rows.order.empty() ? i
                                                       : rows.order[static_cast<std::size_t>(i)]);
  };
  const double intercept = intercept_part(matrix);
  std::vector<T> values(outputs);
  double losses = 0;
  for (std::int64_t i = rows.first; i < rows.last; ++i) {
    if (const std::int64_t ahead = i + kStartAhead; ahead < rows.last) {
      prefetch_start(matrix, row_at(ahead));
      __builtin_prefetch(&targets.values[row_at(ahead)]);
      if (!targets.weights.empty()) __builtin_prefetch(&targets.weights[row_at(ahead)]);
    }
    const std::size_t at = row_at(i);
    const auto row = view_and_prefetch(matrix, at, row_at(std::min(i + kRowAhead, rows.last - 1)));
    const double weight = targets.weights.empty() ? 1 : static_cast<double>(targets.weights[at]);
    Step::decide(row, model, clock, values.data());
    losses += slopes_at<kSingle>(lesson.loss, lesson.epsilon, lesson.class_weights,
                                 targets.values[at], weight, outputs, values.data());
    const double eta = clock.rate(lesson.pace);
    clock.begin_step(lesson.pace, eta);
    if (clock.scale < kLeastScale) fold(model, lesson.pace, clock);
    const bool moves =
        std::any_of(values.begin(), values.end(), [](T slope) { return slope != 0; });
    Step::move(row, model, clock, values.data(), eta, moves);
    if (lesson.intercept && moves) {
      move_intercepts(model, outputs, values.data(), eta * intercept);
    }
    clock.end_step(lesson.pace);
    if (model.average != nullptr && clock.averaged(lesson.pace) > 0) {
      average_intercepts(model, outputs, clock.averaged(lesson.pace));
    }
  }
  return losses;
}

template <bool kSingle, class T, class Matrix>
double train_outputs(const Matrix& matrix, const Targets<T>& targets, const Rows& rows,
                     const Model<T>& model, const Lesson& lesson, Clock& clock) {
  const auto train = model.squares != nullptr   ? train_in<Adaptive, kSingle, T, Matrix>
                     : model.charged != nullptr ? train_in<Truncated, kSingle, T, Matrix>
                                                : train_in<Scaled, kSingle, T, Matrix>;
  return train(matrix, targets, rows, model, lesson, clock);
}

}  // namespace

template <class T>
void fold(const Model<T>& model, const Pace& pace, Clock& clock) {
  const std::size_t count = model.features * model.outputs;
  if (model.average != nullptr && clock.lag > 0) {
    const auto averaged = static_cast<double>(clock.averaged(pace));
    const auto part = static_cast<T>(clock.folded / averaged);
    const auto lag = static_cast<T>(clock.lag);
    for (std::size_t i = 0; i < count; ++i) {
      model.average[i] = (model.average[i] + lag * model.weights[i]) * part;
    }
    clock.folded = averaged;
    clock.lag = 0;
  }
  if (clock.scale != 1) {
    const auto scale = static_cast<T>(clock.scale);
    for (std::size_t i = 0; i < count; ++i) model.weights[i] *= scale;
    clock.scale = 1;
  }
}

template <class T>
void catch_up(const Model<T>& model, const Clock& clock) {
  const auto lag = static_cast<T>(clock.lag);
  if (model.touched != nullptr) {
    for (std::size_t feature = 0; feature < model.features; ++feature) {
      shrink_towards_now(model, feature, model.outputs, clock);
    }
  }
  if (model.charged != nullptr) {
    for (std::size_t at = 0; at < model.features * model.outputs; ++at) {
      const T from = model.weights[at];
      change(model, at, from, truncate(model, at, clock, from), lag);
    }
  }
}

template <class T, class Matrix>
double train_on(const Matrix& matrix, const Targets<T>& targets, const Rows& rows,
                const Model<T>& model, const Lesson& lesson, Clock& clock) {
  const auto train =
      model.outputs == 1 ? train_outputs<true, T, Matrix> : train_outputs<false, T, Matrix>;
  return train(matrix, targets, rows, model, lesson, clock);
}

template void fold(const Model<float>&, const Pace&, Clock&);
template void fold(const Model<double>&, const Pace&, Clock&);
template void catch_up(const Model<float>&, const Clock&);
template void catch_up(const Model<double>&, const Clock&);
template double train_on(const Csr<float>&, const Targets<float>&, const Rows&, const Model<float>&,
                         const Lesson&, Clock&);
template double train_on(const Csr<double>&, const Targets<double>&, const Rows&,
                         const Model<double>&, const Lesson&, Clock&);
template double train_on(const Dense<float>&, const Targets<float>&, const Rows&,
                         const Model<float>&, const Lesson&, Clock&);
template double train_on(const Dense<double>&, const Targets<double>&, const Rows&,
                         const Model<double>&, const Lesson&, Clock&);

}  // namespace learn
